"""Push folder, data source, dashboards and rule groups to a Grafana, in this order, each only where it differs."""

from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote, urlsplit

from ..schemas.config import ClickHouseConfig
from ..schemas.errors import ConfigError
from .alerts import FOLDER_TITLE, FOLDER_UID, api_group
from .generate import dashboards
from .grafana import Grafana, GrafanaRefused
from .integrity import RULES
from .target import DATASOURCE_UID, PLUGIN

Verb = Literal["create", "update", "keep"]


@dataclass(frozen=True, slots=True)
class Step:
    """What was done (or, dry, would be) to one object."""

    verb: Verb
    what: str
    name: str


def datasource(config: ClickHouseConfig, name: str = "kvtrail ClickHouse") -> dict[str, Any]:
    """The data source that reads this ClickHouse over HTTP, as the HTTP API takes it.

    Raises `ConfigError` for an address that is none.
    """
    parts = urlsplit(config.url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError("is not an http or https address.", field="clickhouse.url", remedy="Write http://host:8123.")
    secure = parts.scheme == "https"
    out: dict[str, Any] = {
        "name": name,
        "uid": DATASOURCE_UID,
        "type": PLUGIN,
        "access": "proxy",
        "jsonData": {
            "host": parts.hostname,
            "port": parts.port or (8443 if secure else 8123),
            "protocol": "http",
            "secure": secure,
            "username": config.user,
            "defaultDatabase": config.database,
            "queryTimeout": "60",
        },
    }
    if config.password.get_secret_value():
        out["secureJsonData"] = {"password": config.password.get_secret_value()}
    return out


def push(
    grafana: Grafana, *, source: dict[str, Any] | None, runbooks: str, dry_run: bool = False, message: str = ""
) -> list[Step]:
    """Bring Grafana to the state of this code; `dry_run` only reads and says what would be done.

    `source`: the data source, None to leave it alone. Raises `GrafanaError`; what was pushed before stays, and pushing
    again completes it.
    """
    grafana.version()
    done = [_folder(grafana, dry_run)]
    if source is not None:
        done.append(_datasource(grafana, source, dry_run))
    done += [_dashboard(grafana, board, dry_run, message) for board in dashboards().values()]
    done.append(_rules(grafana, runbooks, dry_run))
    return done


def _folder(grafana: Grafana, dry_run: bool) -> Step:
    found = grafana.get("folder", f"/folders/{quote(FOLDER_UID)}")
    if found is None:
        if not dry_run:
            grafana.create_folder(FOLDER_UID, FOLDER_TITLE)
        return Step("create", "folder", FOLDER_TITLE)
    if found.get("title") == FOLDER_TITLE:
        return Step("keep", "folder", FOLDER_TITLE)
    if not dry_run:
        grafana.rename_folder(FOLDER_UID, FOLDER_TITLE)
    return Step("update", "folder", FOLDER_TITLE)


def _datasource(grafana: Grafana, source: dict[str, Any], dry_run: bool) -> Step:
    uid, name = source["uid"], source["name"]
    found = grafana.get("data source", f"/datasources/uid/{quote(uid)}")
    if found is None:
        if not dry_run:
            grafana.create_datasource(source)
        return Step("create", "data source", name)
    if found.get("readOnly"):
        raise GrafanaRefused(
            "data source: it is provisioned from a file on that server.",
            field="grafana",
            remedy="Push with --no-datasource, or change the file there.",
        )
    # A password cannot be read back, so a source that has one is always written.
    if "secureJsonData" not in source and _covers(found, source):
        return Step("keep", "data source", name)
    if not dry_run:
        grafana.update_datasource(uid, source)
    return Step("update", "data source", name)


def _dashboard(grafana: Grafana, board: dict[str, Any], dry_run: bool, message: str) -> Step:
    found = grafana.get("dashboard", f"/dashboards/uid/{quote(board['uid'])}")
    placed = found is not None and found.get("meta", {}).get("folderUid") == FOLDER_UID
    if found is not None and placed and _covers(found.get("dashboard"), board):
        return Step("keep", "dashboard", board["title"])
    if not dry_run:
        grafana.put_dashboard(board, FOLDER_UID, message or "pushed by kvtrail")
    return Step("create" if found is None else "update", "dashboard", board["title"])


def _rules(grafana: Grafana, runbooks: str, dry_run: bool) -> Step:
    group = api_group(RULES, runbooks)
    path = f"/v1/provisioning/folder/{quote(FOLDER_UID)}/rule-groups/{quote(group['title'])}"
    found = grafana.get("rule group", path)
    if found is not None and _covers(found, group) and len(found.get("rules", ())) == len(group["rules"]):
        return Step("keep", "rule group", group["title"])
    if not dry_run:
        grafana.put_rule_group(FOLDER_UID, group)
    return Step("create" if found is None else "update", "rule group", group["title"])


def _covers(found: Any, wanted: Any) -> bool:
    """Whether everything wanted is there; what Grafana adds (ids, versions, times) is not a difference."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(_covers(found.get(key), value) for key, value in wanted.items())
    if isinstance(wanted, list):
        return (
            isinstance(found, list)
            and len(found) == len(wanted)
            and all(_covers(one, other) for one, other in zip(found, wanted, strict=True))
        )
    return bool(found == wanted)
