"""`kvtrail epoch show`, `cost` and `adoption`, on the real engine, and what each refuses."""

import json
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner, Result
from kvtrail.cli.main import kvtrail, main
from kvtrail.producers.facts import epoch_bumped
from kvtrail.schemas.config import ClickHouseConfig
from kvtrail.schemas.facts import Fact
from kvtrail.schemas.topics import FACTS
from kvtrail.store.client import connect
from kvtrail.store.rows import Source, fact_rows, record_rows
from kvtrail.tests.audit.test_epochs import Log
from kvtrail.tests.store.samples import record

pytestmark = pytest.mark.engine
Run = Callable[..., Result]


@pytest.fixture
def run(database: ClickHouseConfig, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("KVTRAIL_CLICKHOUSE__URL", database.url)
    monkeypatch.setenv("KVTRAIL_CLICKHOUSE__DATABASE", database.database)
    return lambda *words: CliRunner().invoke(kvtrail, ["epoch", *words], catch_exceptions=False)


@pytest.fixture
def log(database: ClickHouseConfig) -> Iterator[Log]:
    with connect(database) as client:
        yield Log(client)


def told(log: Log, *facts: Fact) -> None:
    log.client.insert(*fact_rows([(Source(FACTS, 0, n, n), fact) for n, fact in enumerate(facts)]), token="facts")


def shown(result: Result) -> str:
    return result.output.replace("\u00a0", " ").replace("\u202f", " ")


def test_show_names_every_scope_and_the_marker_of_a_prefix(run: Run, log: Log) -> None:
    assert "No epoch was ever bumped" in run("show").output
    now_us = time.time_ns() // 1000
    told(
        log, epoch_bumped("7", why="first", effective_at_us=now_us - 9), epoch_bumped("8", effective_at_us=now_us - 8),
        epoch_bumped("2", {"tenant_id": "contoso"}, why="INC-42 \x1b[31m", effective_at_us=now_us - 7),
        epoch_bumped("99", {"tenant_id": "contoso"}, effective_at_us=now_us + 3_600_000_000),
    )  # fmt: skip
    first, second = shown(run("show")).splitlines()
    assert first.startswith("the fleet  8  since ") and first.endswith(", 2 bumps")
    assert second.startswith("tenant_id=contoso  2  since ") and "\x1b" not in second and "INC-42" in second
    assert run("show", "--for", "tenant_id=contoso,template_id=t").output == (
        "[epoch:8+tenant_id:2]  epoch=8+tenant_id:2\n"
    )
    document = json.loads(run("show", "--for", "tenant_id=northwind", "--json").output)
    assert document["of"] == {"epoch": "8", "marker": "[epoch:8]\n"}
    assert [(one["scope"], one["epoch"], one["bumps"]) for one in document["epochs"]] == [
        ({}, "8", 2), ({"tenant_id": "contoso"}, "2", 2),
    ]  # fmt: skip


def test_adoption_lists_who_is_left_and_ends_with_a_status(run: Run, log: Log) -> None:
    bump_s = time.time() - 500
    told(log, epoch_bumped("2", why="INC-42", effective_at_us=int(bump_s * 1e6)))
    for node in ("n1", "n2", "n3"):
        log.create(node, bump_s - 100, epoch="1")
    log.create("n1", bump_s + 5, key="K2", epoch="2")
    log.hit("n2", bump_s + 7, epoch="1", tenant="contoso")
    log.store()
    result = run("adoption", "--why", "inc-42")
    assert result.exit_code == 1
    lines = shown(result).splitlines()
    assert lines[0].startswith("Epoch 2 of the fleet, since ") and lines[0].endswith(
        "(INC-42): 1 of 3 nodes moved on (33%)."
    )
    assert lines[1].startswith("  n1  moved on   1 use since the bump")
    assert lines[2].startswith("  n2  earlier    last on an earlier epoch") and "1 hit on earlier epochs" in lines[2]
    assert lines[3].startswith("  n3  unknown    not heard from since ")
    assert lines[5].startswith("  n2  support_v7  contoso: 1 hit, 100 tokens, epoch 1, last ")
    document = json.loads(run("adoption", "--epoch", "2", "--json").output)
    assert (document["adopted"], document["nodes_total"], document["complete"]) == (1, 3, False)
    assert [node["state"] for node in document["nodes"]] == ["adopted", "earlier", "unknown"]


def test_adoption_waits_until_it_is_complete(run: Run, log: Log) -> None:
    bump_s = time.time() - 500
    told(log, epoch_bumped("2", effective_at_us=int(bump_s * 1e6)))
    log.create("n1", bump_s - 100, epoch="1")
    log.store()
    # Unknown is not adopted, however long one waits.
    result = run("adoption", "--wait", "1s")
    assert result.exit_code == 3 and "0 of 1 node moved on" in shown(result)

    def later() -> None:
        log.events.clear()
        log.create("n1", bump_s + 5, key="K2", epoch="2")
        log.client.insert(*record_rows([record(log.events, 9)]), token="later")

    waiting = threading.Timer(1.5, later)
    waiting.start()
    result = run("adoption", "--wait", "60s")
    waiting.join()
    assert result.exit_code == 0 and "1 of 1 node moved on (100%)" in shown(result)


def test_nobody_has_used_it(run: Run, log: Log) -> None:
    told(log, epoch_bumped("2", {"tenant_id": "adatum"}, effective_at_us=time.time_ns() // 1000))
    result = run("adoption")
    assert result.exit_code == 3 and "no node has used it" in result.output


def test_cost_says_what_it_takes_for_granted(run: Run, log: Log) -> None:
    now = time.time()
    log.create("n1", now - 60, tokens=1200)
    log.hit("n1", now - 30)
    log.create("n1", now - 60, key="N", tenant="northwind", tokens=800)
    log.hit("n1", now - 20, key="N", tenant="northwind")
    log.store()
    lines = shown(run("cost", "--tenant", "contoso")).splitlines()
    assert lines[0] == (
        "A bump of tenant_id=contoso would make 1 live entry unreachable: 1 prefix in 1 place, 1 200 tokens."
    )
    assert "Expect these cold prefills soon: 1 200 tokens" in lines[1]
    assert "50.0% of hits (1 of 2)" in lines[2] and "0.6 hours' worth" in lines[3]
    assert lines[4] == "Assumed:" and len(lines) == 8
    document = json.loads(run("cost", "--json").output)
    assert (document["prefill_tokens"], document["entries"]["entries"], document["share_of_hits"]) == (2000, 2, 1.0)
    assert "no live entry of it is stored" in run("cost", "--template", "nothing").output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["cost", "--where", "tenant=contoso"], "where.tenant: is no dimension. Did you mean tenant_id?"),
        (["cost", "--where", "contoso"], "where: is not DIMENSION=VALUE."),
        (["cost", "--tenant", "a", "--where", "tenant_id=b"], "where.tenant_id: is given twice."),
        (["cost", "--history", "long"], "history: is not a duration."),
        (["adoption", "--wait", "soon"], "wait: is not a duration."),
        (["adoption", "--epoch", "9"], "epoch: no such bump is stored."),
        (["show", "--for", "contoso"], "scopes: is no scope."),
    ],
)
def test_what_means_nothing_is_refused(
    run: Run, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["epoch", *words])
    assert caught.value.code == 2 and said in capsys.readouterr().err
