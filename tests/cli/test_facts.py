"""`kvtrail facts` and `kvtrail epoch bump`: what is published, and what is refused before anything is."""

import json
from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result
from kvtrail.cli.facts import body_of, facts
from kvtrail.cli.main import kvtrail
from kvtrail.schemas.config import ClickHouseConfig, KafkaConfig
from kvtrail.schemas.errors import BadInput, InvalidField
from kvtrail.schemas.facts import EpochFact, Fact, PolicyFact, StoreFact, TemplateFact, decode_fact
from kvtrail.schemas.topics import FACTS
from kvtrail.store.client import connect
from kvtrail.store.rows import Source, fact_rows
from kvtrail.tests.streams.harness import read_topic

DIGEST = "ab" * 32
Run = Callable[..., Result]


def test_words_become_the_content_of_a_fact() -> None:
    template = body_of("template", ("template_id=support_v7", f"template_digest={DIGEST}"))
    assert template == TemplateFact(template_id="support_v7", template_digest=DIGEST)
    policy = body_of("policy", ("tenant_id=contoso", "sharing=none", "caching=false", "max_lag_versions=2"))
    assert policy == PolicyFact(tenant_id="contoso", sharing="none", caching=False, max_lag_versions=2)
    assert body_of("store", ("store=kv", "partitioned=true")) == StoreFact(store="kv", partitioned=True)
    assert body_of("epoch", ("epoch=7", "where.tenant_id=a=b")) == EpochFact(epoch="7", where={"tenant_id": "a=b"})


@pytest.mark.parametrize(
    ("kind", "words", "said"),
    [
        ("template", ("template_id=support_v7",), "template: lacks template_digest."),
        ("template", ("template_id=a", "template_digest=v7"), "template.template_digest: holds a name"),
        ("policy", ("tenant_id=a", "sharing=some"), "policy: has a value that does not fit."),
        ("policy", ("tenant=a",), "policy.tenant: is no value of this kind of fact. Write name=value, of: tenant_id, "),
        ("epoch", ("epoch=7", "where=all"), "epoch.where: is no value of this kind of fact. Write name=value, of: e"),
        ("epoch", ("epoch=7", "where.tenant=a"), "epoch.where.tenant: is no dimension. Did you mean tenant_id?"),
        ("epoch", ("epoch=7", "where.template_digest=v7"), "epoch.where.template_digest: holds a name"),
        ("epoch", ("epoch=[7]",), "epoch: is no epoch."),
    ],
)
def test_what_no_reader_would_understand_is_refused_without_its_value(
    kind: str, words: tuple[str, ...], said: str
) -> None:
    with pytest.raises(BadInput) as caught:
        body_of(kind, words)
    assert str(caught.value).startswith(said)


def test_the_help_names_every_kind_and_its_values() -> None:
    shown = CliRunner().invoke(facts, ["publish", "--help"]).output
    assert "policy: tenant_id sharing group caching max_lag_versions" in shown and "tick" not in shown


@pytest.fixture
def run(topics: KafkaConfig, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("KVTRAIL_KAFKA__BOOTSTRAP", topics.bootstrap)
    return lambda *words: CliRunner().invoke(kvtrail, words, catch_exceptions=False)


def published(kafka: KafkaConfig) -> list[Fact]:
    return [decode_fact(record.value) for record in read_topic(kafka, FACTS)]


@pytest.mark.kafka
def test_a_bump_is_published_and_says_what_is_left_to_do(run: Run, topics: KafkaConfig) -> None:
    said = run(
        "epoch", "bump", "--why", "INC-42", "--where", "template_id=support_v7", "--epoch", "2026-11-29.1"
    ).output  # fmt: skip
    (fact,) = published(topics)
    assert fact.body == EpochFact(epoch="2026-11-29.1", where={"template_id": "support_v7"}, why="INC-42")
    assert fact.source == "kvtrail epoch bump" and fact.id[:16] in said
    assert "put [epoch:template_id:2026-11-29.1] at the very front of your prompts" in said and "STALE_EPOCH" in said
    # Without a name the epoch is the time, which sorts behind every earlier one.
    assert run("epoch", "bump", "--why", "again").exit_code == 0
    newest = published(topics)[1].body
    assert isinstance(newest, EpochFact) and newest.epoch > "2026-11-29T" and newest.where == {}


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("second", "said"), [("7", "was an epoch of this scope already"), ("6", "is a smaller number")]
)
def test_a_bump_to_what_was_before_is_refused(topics: KafkaConfig, run: Run, second: str, said: str) -> None:
    assert run("epoch", "bump", "--why", "first", "--epoch", "7").exit_code == 0
    with pytest.raises(InvalidField, match=said):
        run("epoch", "bump", "--why", "again", "--epoch", second)
    assert run("epoch", "bump", "--why", "another scope", "--tenant", "contoso", "--epoch", second).exit_code == 0
    assert [fact.body.why for fact in published(topics) if isinstance(fact.body, EpochFact)] == [
        "first",
        "another scope",
    ]


@pytest.mark.kafka
def test_a_published_fact_is_one_record(run: Run, topics: KafkaConfig) -> None:
    said = run("facts", "publish", "policy", "tenant_id=contoso", "sharing=none", "--source", "ops").output
    (fact,) = published(topics)
    assert (fact.body, fact.source) == (PolicyFact(tenant_id="contoso", sharing="none"), "ops")
    assert "policy        tenant_id=contoso  sharing=none" in said


@pytest.mark.engine
def test_the_list_is_what_is_stored(database: ClickHouseConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVTRAIL_CLICKHOUSE__URL", database.url)
    monkeypatch.setenv("KVTRAIL_CLICKHOUSE__DATABASE", database.database)
    assert CliRunner().invoke(facts, ["list"]).output == "No fact is stored.\n"
    assert CliRunner().invoke(facts, ["list", "--kind", "epoch"]).output == "No fact of kind epoch is stored.\n"
    assert CliRunner().invoke(facts, ["list", "--json"]).output == ""
    stored = [
        Fact(id="f1", effective_at_us=1, body=PolicyFact(tenant_id="evil\x1b[31m")),
        Fact(id="f2", effective_at_us=2, body=EpochFact(epoch="7", where={"tenant_id": "contoso"}, why="INC-1")),
    ]
    with connect(database) as client:
        client.insert(*fact_rows([(Source(FACTS, 0, n, n), fact) for n, fact in enumerate(stored)]), token="f")
    shown = CliRunner().invoke(facts, ["list"]).output
    assert "\x1b" not in shown and "epoch=7  why=INC-1  where.tenant_id=contoso  id=f2" in shown
    (line,) = CliRunner().invoke(facts, ["list", "--kind", "epoch", "--json"]).output.splitlines()
    assert json.loads(line)["fact"]["id"] == "f2"


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("bump", "--why", "x", "--tenant", ""), "--tenant"),
        (("bump", "--why", "x", "--template", " "), "--template"),
        (("bump", "--why", "x", "--model", ""), "--model"),
        (("bump", "--why", "x", "--corpus", ""), "--corpus"),
        (("bump", "--why", "x", "--where", "tenant_id="), "where"),
        (("bump", "--why", ""), "--why"),
        (("bump", "--why", "x", "--epoch", ""), "--epoch"),
        (("bump", "--why", "x", "--tenant", "kvtrail:heartbeat-a"), "--tenant"),
        (("bump", "--why", "x", "--where", "tenant_id=kvtrail:heartbeat-a"), "--where"),
        (("cost", "--tenant", ""), "--tenant"),
        (("adoption", "--why", ""), "--why"),
        (("adoption", "--epoch", ""), "--epoch"),
        (("show", "--for", ""), "--for"),
    ],
)
def test_an_empty_or_reserved_name_is_no_scope_and_never_the_fleet(words: tuple[str, ...], option: str) -> None:
    nowhere = {"KVTRAIL_KAFKA__BOOTSTRAP": "127.0.0.1:1", "KVTRAIL_CLICKHOUSE__URL": "http://127.0.0.1:1"}
    told = CliRunner().invoke(kvtrail, ["epoch", *words], env=nowhere)
    assert isinstance(told.exception, InvalidField)
    assert told.exception.field == option
