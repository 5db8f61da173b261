"""The notifier on a real broker: one page a root cause through kills and restarts, and a page for silence."""

import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from kvtrail.cli.local.handover import to_environ
from kvtrail.cli.local.kafka import KafkaBroker
from kvtrail.cli.main import kvtrail
from kvtrail.schemas.config import ClickHouseConfig, Config, KafkaConfig
from kvtrail.schemas.dimensions import Severity
from kvtrail.schemas.findings import Finding, encode_finding
from kvtrail.schemas.notifications import Attempt, Entry, decode_entry
from kvtrail.schemas.paging import AlertmanagerTarget, HeartbeatConfig, NotifyConfig, WebhookTarget
from kvtrail.schemas.topics import FACTS, FINDINGS, LIFECYCLE, NOTIFICATIONS
from kvtrail.store.client import connect
from kvtrail.streams.rejudging import Span, rejudge
from kvtrail.tests.streams import histories
from kvtrail.tests.streams.harness import Worker, all_stored, config_of, publish, published_findings, read_topic, until
from kvtrail.tests.streams.stub_receiver import Plan, Receiver, StubAlertmanager
from kvtrail.tests.streams.test_notifier_policy import finding as unplaced
from msgspec.structs import replace
from pydantic import SecretStr

pytestmark = pytest.mark.kafka


def paging(config: Config, hook: Receiver, manager: StubAlertmanager | None = None, **heartbeat: Any) -> Config:
    alertmanagers = {} if manager is None else {"am": AlertmanagerTarget(url=manager.url, resend_s=0.5, hold_s=60)}
    notify = NotifyConfig(
        group_wait_s=0.2, growth_interval_s=0.2, retry_cap_s=0.2, snapshot_s=0.5, max_age_s=10 * 365 * 86400,
        webhooks={"hook": WebhookTarget(url=SecretStr(hook.url), secret=SecretStr("hush"))},
        alertmanagers=alertmanagers,
    )  # fmt: skip
    return config.model_copy(
        update={"notify": notify, "heartbeat": HeartbeatConfig(**(heartbeat or {"enabled": False}))}
    )


def found(kafka: KafkaConfig, *findings: Finding) -> None:
    publish(kafka, [(one.home, encode_finding(one)) for one in findings], FINDINGS)


def finding(name: str, revision: int = 1, **values: Any) -> Finding:
    return replace(unplaced(name, revision, **values), home=f"n:{name}")


def entries(kafka: KafkaConfig) -> list[Entry]:
    return [decode_entry(record.value) for record in read_topic(kafka, NOTIFICATIONS)]


def delivered(kafka: KafkaConfig) -> list[tuple[str, str]]:
    return [(one.target, one.id) for one in entries(kafka) if isinstance(one, Attempt) and one.status == "delivered"]


def kinds(hook: Receiver) -> list[str]:
    return [body["kind"] for body in hook.bodies()]


def test_one_root_cause_pages_once_through_kills_and_restarts(topics: KafkaConfig, tmp_path: Path) -> None:
    with Receiver() as hook, StubAlertmanager() as manager:
        config = paging(config_of(topics, None, tmp_path), hook, manager)
        found(topics, *(finding(f"f{number}") for number in range(30)))
        with Worker("notify", config, tmp_path) as notifier:
            until(lambda: len(delivered(topics)) == 2, "both targets to be told")
            notifier.kill()
            found(topics, finding("more"), finding("f1"), finding("f2", 2, severity=Severity.HIGH))
            notifier.start()
            found(topics, finding("worse", severity=Severity.CRITICAL))
            until(lambda: len(delivered(topics)) == 4, "growth to be told")
            assert notifier.stop(signal.SIGHUP) == 0
            notifier.start()
            names = [*(f"f{number}" for number in range(30)), "more", "worse"]
            found(topics, *(finding(name, 9, status="retracted", severity=Severity.HIGH) for name in names))
            until(lambda: len(delivered(topics)) == 6, "the end to be told")
            notifier.kill()
            notifier.start()
            found(topics, finding("other", cause_id="d"))
            until(lambda: len(delivered(topics)) == 8, "another cause to be told")
            assert notifier.stop() == 0
        assert kinds(hook) == ["opened", "grown", "resolved", "opened"]
        assert hook.bodies()[1]["findings"] >= 31 and hook.bodies()[1]["severity"] == "critical"
        assert {dict(labels)["severity"] for labels in manager.alerts} == {"high", "critical"}
        said = CliRunner().invoke(kvtrail, ["notify", "log"], env=to_environ(config))
        assert said.exit_code == 0, said.output
        assert len(said.output.splitlines()) == 12 and "hush" not in said.output + notifier.log.read_text()
        assert said.output.count("delivered  hook") == 4


def test_killed_between_the_delivery_and_its_record_it_tells_again_under_the_same_id(
    topics: KafkaConfig, tmp_path: Path
) -> None:
    with Receiver() as hook:
        answered = threading.Event()
        hook.plan(Plan(wait=answered))
        config = paging(config_of(topics, None, tmp_path), hook)
        found(topics, finding("f"))
        with Worker("notify", config, tmp_path) as notifier:
            until(lambda: hook.requests, "the notification to arrive")
            notifier.kill()
            answered.set()
            assert delivered(topics) == []
            notifier.start()
            until(lambda: len(delivered(topics)) == 1, "the record of its delivery")
            notifier.kill()
            notifier.start()
            found(topics, finding("g", cause_id="d"))
            until(lambda: len(delivered(topics)) == 2, "another cause to be told")
            assert notifier.stop() == 0
        ids = [request.headers["X-Kvtrail-Id"] for request in hook.requests]
        assert ids[0] == ids[1] and len(ids) == 3 and len(set(ids)) == 2


def test_a_lost_snapshot_pages_nobody_again(topics: KafkaConfig, tmp_path: Path) -> None:
    with Receiver() as hook:
        config = paging(config_of(topics, None, tmp_path), hook)
        found(topics, finding("f"), finding("g"))
        with Worker("notify", config, tmp_path) as notifier:
            until(lambda: len(delivered(topics)) == 1, "the notification")
            found(topics, finding("f", 2, status="retracted"))
            assert notifier.stop() == 0
            publish(topics, [("notify/0/manifest", None)], "kvtrail.state")
            notifier.start()
            found(topics, finding("h", cause_id="d"))
            until(lambda: len(delivered(topics)) == 2, "another cause to be told")
            assert notifier.stop() == 0
        assert [body["cause_id"] for body in hook.bodies()] == ["c", "d"]


def test_another_notifier_stands_by_and_takes_over(topics: KafkaConfig, tmp_path: Path) -> None:
    with Receiver() as hook:
        config = paging(config_of(topics, None, tmp_path), hook)
        update = {"notify": config.notify.model_copy(update={"instance": "notifier-1"})}
        (tmp_path / "other").mkdir()
        second = Worker("notify", config.model_copy(update=update), tmp_path / "other")
        with Worker("notify", config, tmp_path) as first, second:
            second.wait_for("standing by")
            found(topics, finding("f"))
            until(lambda: len(delivered(topics)) == 1, "the notification")
            assert first.stop() == 0
            found(topics, finding("g", cause_id="d"))
            until(lambda: len(delivered(topics)) == 2, "the other one to tell")
            assert second.stop() == 0
        assert kinds(hook) == ["opened", "opened"]


def test_a_silent_pipeline_pages_and_its_return_resolves(topics: KafkaConfig, tmp_path: Path) -> None:
    with Receiver() as hook, StubAlertmanager() as manager:
        config = paging(config_of(topics, None, tmp_path), hook, manager, every_s=0.5, deadline_s=3)
        detector, heart = Worker("detect", config, tmp_path), Worker("heartbeat", config, tmp_path)
        with detector, heart, Worker("notify", config, tmp_path) as notifier:
            until(lambda: len(published_findings(topics)) >= 8, "heartbeats to be found")
            assert hook.requests == [], "a pipeline that works pages nobody"
            assert detector.stop() == 0
            until(lambda: len(hook.requests) == 1, "the silence to be told")
            assert hook.bodies()[0]["kind"] == "opened" and hook.bodies()[0]["cause"] == "PIPELINE_SILENT"
            assert "kvtrail detect" in hook.bodies()[0]["title"]
            until(lambda: "hook" in dict(delivered(topics)), "the record of that")
            notifier.kill()
            notifier.start()
            detector.start()
            until(lambda: len(hook.requests) == 2, "the return to be told")
            assert hook.bodies()[1]["kind"] == "resolved"
            heart.kill()
            until(lambda: len(hook.requests) == 3, "the silence to be told")
            assert "kvtrail heartbeat" in hook.bodies()[2]["title"]
            heart.start()
            until(lambda: len(hook.requests) == 4, "the return to be told")
            alive = CliRunner().invoke(kvtrail, ["alive", "heartbeat"], env=to_environ(config))
            assert alive.exit_code == 0, alive.output
            for worker in (heart, notifier, detector):
                assert worker.stop() == 0
        assert kinds(hook) == ["opened", "resolved"] * 2
        assert {dict(labels)["alertname"] for labels in manager.alerts} == {"KvtrailPipelineSilent"}
        assert {one.cause for one in published_findings(topics)} == {"CROSS_TENANT_REUSE"}


def test_a_broker_that_is_away_is_told_although_nothing_can_be_written_down(
    broker: KafkaBroker, tmp_path: Path
) -> None:
    with Receiver() as hook:
        config = paging(config_of(broker.config, None, tmp_path), hook, every_s=0.5, deadline_s=5)
        workers = [Worker(name, config, tmp_path) for name in ("detect", "heartbeat", "notify")]
        with workers[0], workers[1], workers[2]:
            until(lambda: len(published_findings(broker.config)) >= 8, "heartbeats to be found")
            broker.kill()
            until(lambda: hook.requests, "the silence to be told")
            assert "the broker does not answer" in hook.bodies()[0]["title"]
            broker.start()
            until(lambda: kinds(hook) == ["opened", "resolved"], "the return to be told", 150)
            until(lambda: len(delivered(broker.config)) == 2, "what was told to be written down")


@pytest.mark.engine
def test_the_heartbeat_is_in_no_report(topics: KafkaConfig, database: ClickHouseConfig, tmp_path: Path) -> None:
    with Receiver() as hook:
        config = paging(config_of(topics, database, tmp_path), hook, every_s=0.5, deadline_s=60)
        workers = [Worker(name, config, tmp_path) for name in ("detect", "sink", "notify", "heartbeat")]
        with workers[0], workers[1], workers[2], workers[3] as heart:
            publish(topics, [histories.envelope(histories.incident())])
            until(lambda: len(published_findings(topics)) >= 10, "findings")
            assert heart.stop() == 0
            until(all_stored(config, LIFECYCLE, FINDINGS, FACTS), "everything to be stored")
            until(lambda: hook.requests, "the incident to be told")
            for worker in workers[:3]:
                assert worker.stop() == 0
        assert [body["tenants"] for body in hook.bodies()] == [["contoso", "northwind"]] * len(hook.bodies())
        with connect(database) as client:
            tables = [row["name"] for row in client.query("SHOW TABLES", {})]
            assert {"events", "findings", "per_minute", "entry", "evidence"} <= set(tables)
            for table in set(tables) - {"evidence", "evidence_mv"}:
                columns = client.query(
                    "SELECT name FROM system.columns WHERE database = {db:String} AND table = {table:String} "
                    "AND type NOT LIKE '%AggregateFunction%'",
                    {"db": database.database, "table": table},
                )
                rows = client.query(f"SELECT {', '.join(column['name'] for column in columns)} FROM {table}", {})
                assert "kvtrail:" not in str(rows), table
            assert client.query("SELECT count() AS n FROM evidence WHERE node = 'kvtrail:heartbeat'", {})[0]["n"] > 0
            again = rejudge(client, config, Span(from_us=0, to_us=2**60))
            assert (again.changes, again.same) == ((), 2), "judged again, the evidence says nothing of it either"
            tail = CliRunner().invoke(kvtrail, ["events", "tail", "--json", "-n", "10000"], env=to_environ(config))
            assert len(tail.output.splitlines()) == len(histories.incident()) and "kvtrail:" not in tail.output
            assert client.query("SELECT count() AS n FROM events", {})[0]["n"] == len(histories.incident())
