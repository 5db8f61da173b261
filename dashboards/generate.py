"""Everything Grafana reads, as files: `generated/` is written by this module and checked against it."""

import json
from pathlib import Path
from typing import Any

import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from .alerts import FOLDER_TITLE, FOLDER_UID, file_groups
from .integrity import RULES, integrity
from .target import DATASOURCE_UID, PLUGIN

GENERATED = Path(__file__).parent / "generated"
DASHBOARDS_PATH = "/etc/kvtrail/dashboards"
"""Where the dashboards lie inside Grafana's container."""

RUNBOOKS = "${RUNBOOKS_URL}"
"""Grafana fills it in from its environment when it reads the file."""

HEADER = "# Written by `kvtrail dashboards write`; edit dashboards/*.py instead.\n"


def dashboards() -> dict[str, dict[str, Any]]:
    """File name -> dashboard in Grafana's classic JSON."""
    return {"integrity.json": plain(integrity())}


def plain(dashboard: Dashboard) -> dict[str, Any]:
    """The dashboard as plain JSON values."""
    out: dict[str, Any] = json.loads(json.dumps(dashboard, cls=JSONEncoder))
    return out


def files() -> dict[str, str]:
    """Path below the target directory -> text. The same input gives the same bytes."""
    out = {
        f"dashboards/{name}": json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
        for name, value in dashboards().items()
    }
    out["provisioning/datasources/kvtrail.yaml"] = _yaml(_datasources())
    out["provisioning/dashboards/kvtrail.yaml"] = _yaml(_providers())
    out["provisioning/alerting/kvtrail.yaml"] = _yaml(file_groups(RULES, RUNBOOKS))
    return out


def write(directory: Path) -> list[Path]:
    """Write every file below `directory`; returns the paths whose content changed."""
    changed: list[Path] = []
    for name, text in files().items():
        path = directory / name
        if path.is_file() and path.read_text() == text:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        changed.append(path)
    return changed


def stale(directory: Path) -> list[str]:
    """Names below `directory` that are missing, differ from what would be written, or should not be there."""
    wanted = files()
    found = {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}
    differing = {name for name in wanted if name in found and (directory / name).read_text() != wanted[name]}
    return sorted((wanted.keys() ^ found) | differing)


class _Dumper(yaml.SafeDumper):
    """SQL stands as people read it: several lines as a literal block."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)


def _yaml(document: dict[str, Any]) -> str:
    return HEADER + yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)


def _datasources() -> dict[str, Any]:
    return {
        "apiVersion": 1,
        "datasources": [
            {
                "name": "kvtrail ClickHouse",
                "uid": DATASOURCE_UID,
                "type": PLUGIN,
                "access": "proxy",
                "editable": False,
                "jsonData": {
                    "host": "$CLICKHOUSE_HOST",
                    "port": 9000,
                    "protocol": "native",
                    "username": "$CLICKHOUSE_USER",
                    "defaultDatabase": "kvtrail",
                    "queryTimeout": "60",
                },
                "secureJsonData": {"password": "$CLICKHOUSE_PASSWORD"},
            }
        ],
    }


def _providers() -> dict[str, Any]:
    return {
        "apiVersion": 1,
        "providers": [
            {
                "name": "kvtrail",
                "orgId": 1,
                "folder": FOLDER_TITLE,
                "folderUid": FOLDER_UID,
                "type": "file",
                "disableDeletion": True,
                "allowUiUpdates": False,
                "updateIntervalSeconds": 30,
                "options": {"path": DASHBOARDS_PATH, "foldersFromFilesStructure": False},
            }
        ],
    }
