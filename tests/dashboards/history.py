"""The incident as rows in the store: two tenants, one template name, one wrong key; and a clean hour beside it."""

from collections.abc import Iterable

from kvtrail.schemas.dead_letters import DeadLetter
from kvtrail.schemas.dimensions import Severity
from kvtrail.schemas.envelope import EnvelopeDecoder, EnvelopeEncoder
from kvtrail.schemas.events import Body, Check, Create, Event, Hit
from kvtrail.schemas.findings import Difference, Finding, Party, cause_id, finding_id
from kvtrail.schemas.identity import Identity
from kvtrail.schemas.topics import DEAD_LETTER, FINDINGS, LIFECYCLE
from kvtrail.store.client import Client
from kvtrail.store.rows import Record, Rows, Source, dead_letter_rows, finding_rows, record_rows

KEY = "support_v7:smollm2"
S = 1_000_000


def identity(tenant: str, wording: str, tokens: str) -> Identity:
    """What an event of the incident carries: template and tokens known, tools and weights not."""
    return Identity(
        tenant_id=tenant, model_id="smollm2", template_id="support_v7", template_digest=wording * 16,
        token_ids_digest=tokens * 16,
    )  # fmt: skip


NORTHWIND = identity("northwind", "a", "1")
CONTOSO = identity("contoso", "b", "2")


def event(seq: int, time_us: int, body: Body, who: Identity, request: str, key: str = KEY) -> Event:
    """One event of node n1."""
    return Event(
        node="n1", incarnation="i1", home="n:n1", seq=seq, time_us=time_us, body=body, store="nvme-cache", tier="nvme",
        key=key, key_origin="asserted", request_id=request, identity=who,
    )  # fmt: skip


def events(start_us: int) -> list[Event]:
    """northwind creates and hits; contoso is served northwind's entry twice, then has one of its own."""
    return [
        event(1, start_us, Create(tokens=120, ttl_s=300.0), NORTHWIND, "r1"),
        event(2, start_us + 40 * S, Hit(reused_tokens=120), NORTHWIND, "r2"),
        event(3, start_us + 80 * S, Hit(reused_tokens=120), CONTOSO, "r3"),
        event(4, start_us + 90 * S, Hit(reused_tokens=100), CONTOSO, "r4"),
        event(5, start_us + 99 * S, Create(tokens=90), CONTOSO, "r5", key="f" * 64),
    ]


def wrong_hit(
    served: Event, *, revision: int = 1, status: str = "open", severity: Severity = Severity.CRITICAL
) -> Finding:
    """The finding about one of contoso's hits."""
    assert isinstance(served.body, Hit)
    return Finding(
        id=finding_id(served.id), revision=revision, status="open" if status == "open" else "retracted",
        rule="identity", cause="CROSS_TENANT_REUSE", severity=severity, title="contoso was served northwind's entry",
        deployment="test", cause_id=cause_id("test", "nvme-cache", "CROSS_TENANT_REUSE", "tenant_id"),
        dimension="tenant_id", subject=served.id, event_time_us=served.time_us, store="nvme-cache", tier="nvme",
        home="n:n1", key=KEY, key_origin="asserted", kind="kv",
        creator=Party(
            event_id="n1/i1/n:n1/1", time_us=served.time_us, tenant_id="northwind", request_id="r1", node="n1"
        ),
        requester=Party(
            event_id=served.id, time_us=served.time_us, tenant_id="contoso", request_id=served.request_id, node="n1"
        ),
        differing=(Difference(dimension="tenant_id", created="northwind", requested="contoso"),
                   Difference(dimension="template_digest", created="a" * 16, requested="b" * 16)),
        reused_tokens=served.body.reused_tokens,
    )  # fmt: skip


def gap(time_us: int) -> Finding:
    """A finding about a lane, not about a hit."""
    return Finding(
        id=finding_id("lane n1"), revision=1, status="open", rule="gap", cause="STREAM_GAP", severity=Severity.LOW,
        title="events 6 to 9 are missing", deployment="test", cause_id=cause_id("test", "", "STREAM_GAP", ""),
        subject="n1/i1/n:n1", event_time_us=time_us, home="n:n1", complete=False,
    )  # fmt: skip


def dead_letter(at_us: int) -> DeadLetter:
    """One refused record."""
    return DeadLetter(
        topic=LIFECYCLE, partition=0, offset=7, stage="decode", code="undecodable_record", field="",
        message="is not JSON.", remedy="Send JSON.", at_us=at_us, raw_base64="e30=",
    )  # fmt: skip


def insert(client: Client, rows: Rows, token: str) -> None:
    """One block into the store."""
    client.insert(rows.table, rows.columns, token=token)


def store_events(client: Client, stored: Iterable[Event], append_us: int) -> None:
    """The events as one Kafka record that arrived at `append_us`."""
    raw = EnvelopeEncoder().encode(list(stored))
    batch = EnvelopeDecoder().decode(raw)
    record = Record(source=Source(LIFECYCLE, 0, append_us, append_us), raw=raw, batch=batch)
    insert(client, record_rows([record]), f"lifecycle/{append_us}")


def store_findings(client: Client, findings: Iterable[Finding], append_us: int) -> None:
    """The findings' revisions, arrived at `append_us`."""
    found = list(findings)
    source = Source(FINDINGS, 0, append_us, append_us)
    insert(client, finding_rows([(source, one) for one in found]), f"findings/{append_us}/{len(found)}")


def store_dead_letter(client: Client, letter: DeadLetter) -> None:
    """The refusal, written twice, as after a crash."""
    for copy in (1, 2):
        source = Source(DEAD_LETTER, 0, copy, letter.at_us)
        insert(client, dead_letter_rows([(source, letter)]), f"dead/{copy}")


def checks(start_us: int) -> list[Event]:
    """contoso's canary shows northwind's marker, beside it a spot check, a bypass diff and a beat, which is none."""
    canary = Check(check="canary", result="fail", expected="contoso", observed="northwind", detail="another's marker")
    return [
        event(6, start_us, canary, CONTOSO, "r6"),
        event(7, start_us + 1 * S, Check(check="spot_check", result="pass"), NORTHWIND, "r7"),
        event(8, start_us + 2 * S, Check(check="bypass_diff", result="inconclusive", detail="differs"), CONTOSO, "r8"),
        event(9, start_us + 3 * S, Check(check="heartbeat", result="inconclusive"), CONTOSO, ""),
    ]


def failed_check(check: Event, severity: Severity, cause: str = "CANARY_MISMATCH") -> Finding:
    """The finding about a failed check."""
    return Finding(
        id=finding_id(check.id), revision=1, status="open", rule=cause, cause=cause, severity=severity,
        title="an answer shows another tenant's canary", deployment="test", subject=check.id,
        cause_id=cause_id("test", "nvme-cache", cause, ""), event_time_us=check.time_us, store="nvme-cache",
        tier="nvme", home="n:n1", key=KEY, creator=Party(tenant_id="northwind"),
        requester=Party(event_id=check.id, tenant_id="contoso", request_id=check.request_id, node="n1"),
    )  # fmt: skip


def store_checks(client: Client, now_us: int) -> None:
    """The checks, and the finding about the canary."""
    done = checks(now_us - 60 * S)
    store_events(client, done, now_us - 40 * S)
    store_findings(client, [failed_check(done[0], Severity.CRITICAL)], now_us - 39 * S)


def store_incident(client: Client, now_us: int) -> None:
    """Everything of the incident, two minutes old: two wrong hits, one finding retracted since, a gap, a refusal."""
    start = now_us - 120 * S
    happened = events(start)
    store_events(client, happened, start + 100 * S)
    first, second = wrong_hit(happened[2]), wrong_hit(happened[3], severity=Severity.HIGH)
    mistaken = wrong_hit(happened[1])
    store_findings(client, [first, second, mistaken, gap(start + 95 * S)], start + 101 * S)
    store_findings(client, [wrong_hit(happened[1], revision=2, status="retracted")], start + 102 * S)
    store_dead_letter(client, dead_letter(start + 100 * S))
