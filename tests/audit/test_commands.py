"""`kvtrail investigate`, `findings` and `serve` as they are typed."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from kvtrail.audit.console.access import read_token, sign_in_link
from kvtrail.cli.main import kvtrail
from kvtrail.judging.incidents import fold
from kvtrail.schemas.config import ClickHouseConfig
from kvtrail.schemas.errors import KvtrailError
from kvtrail.store.client import connect
from msgspec.structs import replace

from .samples import FINDING, INCIDENT, KEY
from .seeding import put
from .test_render import GOLDEN

pytestmark = pytest.mark.engine
MAIN = (sys.executable, "-c", "from kvtrail.cli.main import main; main()")


@pytest.fixture
def environ(database: ClickHouseConfig, tmp_path: Path) -> dict[str, str]:
    """Where the commands find the seeded store, and a state directory of their own."""
    with connect(database) as client:
        put(client, INCIDENT, [FINDING])
    return {
        "KVTRAIL_CLICKHOUSE__URL": database.url,
        "KVTRAIL_CLICKHOUSE__DATABASE": database.database,
        "KVTRAIL_LOCAL__DIRECTORY": str(tmp_path / "state"),
        "KVTRAIL_SERVE__PORT": "0",
    }


def run(environ: Mapping[str, str], *words: str) -> Result:
    return CliRunner().invoke(kvtrail, list(words), env=environ)


def main(environ: Mapping[str, str], *words: str) -> "subprocess.CompletedProcess[str]":
    """The real entry point, in a process of its own."""
    return subprocess.run([*MAIN, *words], env={**os.environ, **environ}, capture_output=True, text=True, timeout=60)


def test_investigate_prints_the_table_and_the_verdict(environ: dict[str, str]) -> None:
    for words in (("--request", "req-3"), ("--key", KEY), ("--finding", FINDING.id), ("--key", KEY[:10])):
        result = run(environ, "investigate", *words)
        assert result.exit_code == 1, result.output
        assert result.output.startswith(GOLDEN + "\n")
        assert "Verdict: the cache is implicated: cross-tenant reuse (critical)" in result.output
        assert "What to do now" in result.output and "\x1b" not in result.output


def test_an_innocent_request_ends_with_zero(environ: dict[str, str]) -> None:
    result = run(environ, "investigate", "--request", "req-2")
    assert result.exit_code == 0 and "the cache is not implicated" in result.output


def test_investigate_json_is_one_document(environ: dict[str, str]) -> None:
    result = run(environ, "investigate", "--request", "req-3", "--json")
    told = json.loads(result.stdout)
    assert result.exit_code == 1
    assert told["schema"] == "kvtrail.investigation/1"
    assert told["verdict"]["outcome"] == "implicated"
    assert [row["operation"] for row in told["rows"]] == ["cache.create", "cache.hit", "cache.hit"]
    assert told["rows"][2]["key"] == KEY and told["rows"][2]["creator"]["tenant_id"] == "northwind"


def test_errors_are_one_line_and_status_two(environ: dict[str, str]) -> None:
    for words, told in (
        (("investigate", "--request", "nobody"), "no event and no finding carries this request id"),
        (("investigate",), "exactly one of request, key and finding"),
        (("investigate", "--request", "a", "--key", "b"), "exactly one of request, key and finding"),
        (("findings", "--since", "soon"), "since: is not a duration"),
        (("findings", "--severity", "loud"), "severity: is no severity"),
        (("findings", "--cause", "nope"), "cause: is no cause. `kvtrail rules list` names them."),
        (("findings", "--cause", "cross-tenant-resue"), "cause: is no cause. Did you mean CROSS_TENANT_REUSE?"),
        (("replay", "--from", "1h", "--rules", "stale-epoc"), "rules: is no cause. Did you mean STALE_EPOCH?"),
    ):
        result = run(environ, *words)
        assert isinstance(result.exception, KvtrailError) and told in str(result.exception)
    finished = main(environ, "investigate", "--request", "nobody")
    assert finished.returncode == 2 and finished.stdout == ""
    assert finished.stderr.startswith("kvtrail: request: no event") and finished.stderr.count("\n") == 1
    away = main({**environ, "KVTRAIL_CLICKHOUSE__URL": "http://127.0.0.1:9"}, "findings")
    assert away.returncode == 2 and "clickhouse: connect failed" in away.stderr and "Traceback" not in away.stderr


def test_an_ambiguous_beginning_lists_what_it_can_mean(environ: dict[str, str], database: ClickHouseConfig) -> None:
    from kvtrail.schemas.events import Create

    from .samples import NORTHWIND, event

    with connect(database) as client:
        put(client, [event(9, "15:00:00", Create(), NORTHWIND, key=KEY[:20])], offset=10)
    finished = main(environ, "investigate", "--key", KEY[:8])
    assert finished.returncode == 2
    assert f"--key {KEY}  --store nvme-cache" in finished.stderr and f"--key {KEY[:20]}  " in finished.stderr


def test_findings_and_incidents(environ: dict[str, str]) -> None:
    listed = run(environ, "findings")
    assert listed.exit_code == 1
    assert (
        f"14:20:09 critical  cross-tenant reuse  key=9f3c1a…  {FINDING.id[:12]}  contoso from northwind"
        in listed.output
    )
    folded = run(environ, "findings", "--incidents")
    assert folded.exit_code == 1
    assert "critical  this key does not cover tenant: 1 hit, 2 tenants" in folded.output
    assert "served: contoso; content of: northwind" in folded.output
    assert json.loads(run(environ, "findings", "--json").stdout)["findings"][0]["id"] == FINDING.id
    [told] = json.loads(run(environ, "findings", "--incidents", "--json").stdout)["incidents"]
    assert (told["tenants"], told["owners"], told["tenant_count"]) == (["contoso"], ["northwind"], 2)
    assert (
        FINDING.requester is not None
        and told["request_ids"] == [FINDING.requester.request_id]
        and told["finding_ids"] == [FINDING.id]
    )
    assert told["keys"] == [{"store": FINDING.store, "key": FINDING.key}]
    [paged] = fold([FINDING])
    assert told["tenant_count"] == len(paged.tenants), "as the notifier counts them"


def test_a_list_for_machines_is_whole_and_one_for_people_says_where_it_ends(
    environ: dict[str, str], database: ClickHouseConfig
) -> None:
    with connect(database) as client:
        put(client, findings=[replace(FINDING, id=f"{n:032x}") for n in range(120)], offset=1)
    whole = main(environ, "findings", "--json")
    assert len(json.loads(whole.stdout)["findings"]) == 121 and whole.stderr == ""
    shown = main(environ, "findings")
    assert len(shown.stdout.splitlines()) == 101
    assert shown.stderr.splitlines() == ["The first 100 are shown; --limit shows more."]
    cut = main(environ, "findings", "--json", "--limit", "7")
    assert len(json.loads(cut.stdout)["findings"]) == 7 and "The first 7 are shown" in cut.stderr


def test_nothing_found_ends_with_zero(environ: dict[str, str]) -> None:
    for words in (
        ("--since", "1s"),
        ("--cause", "STALE_HANDLE"),
        ("--status", "retracted"),
        ("--incidents", "--since", "1s"),
    ):
        result = run(environ, "findings", *words)
        assert result.exit_code == 0 and result.output.startswith("No ")


@pytest.fixture
def served(environ: dict[str, str]) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """A console in a process of its own, and its address."""
    process = subprocess.Popen([*MAIN, "serve"], env={**os.environ, **environ}, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)  # fmt: skip
    assert process.stderr is not None
    try:
        address = ""
        for line in process.stderr:
            found = re.search(r"ready: console (http://127\.0\.0\.1:\d+)", line)
            if found:
                address = found[1]
                break
        assert address, "it ended before it was ready"
        yield process, address
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def fetch(address: str, **headers: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_serve_keeps_everyone_out_but_the_token(
    served: tuple["subprocess.Popen[str]", str], environ: dict[str, str]
) -> None:
    process, address = served
    state = Path(environ["KVTRAIL_LOCAL__DIRECTORY"])
    assert fetch(address)[0] == 401
    assert fetch(f"{address}/healthz") == (200, "alive\n")
    assert fetch(f"{address}/readyz") == (200, "ready\n")
    status, page = fetch(address, Authorization=f"Bearer {read_token(state)}")
    assert status == 200 and "Cross-tenant reuse" in page
    assert fetch(f"{address}/api/findings", Host="evil.example", Authorization=f"Bearer {read_token(state)}")[0] == 421
    link = main(environ, "serve", "--link").stdout.strip()
    assert link.startswith(f"{address}/enter?code=")
    assert fetch(link)[0] == 200
    assert fetch(link)[0] == 401
    assert fetch(sign_in_link(address, "another-token-altogether", 2e9))[0] == 401
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0
    assert read_token(state) not in out + err and "code=" not in out + err


def test_serve_refuses_what_it_must(served: tuple["subprocess.Popen[str]", str], environ: dict[str, str]) -> None:
    port = served[1].rpartition(":")[2]
    taken = main({**environ, "KVTRAIL_SERVE__PORT": port}, "serve")
    assert taken.returncode == 2 and "KVTRAIL_SERVE__PORT" in taken.stderr and "Traceback" not in taken.stderr
    public = main({**environ, "KVTRAIL_SERVE__HOST": "0.0.0.0"}, "serve")
    assert public.returncode == 2 and "serve.token_file" in public.stderr
    short = main({**environ, "KVTRAIL_SERVE__TOKEN": "short"}, "serve")
    assert short.returncode == 2 and "serve.token" in short.stderr
