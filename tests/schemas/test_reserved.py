"""What is kvtrail's own: who may name it, and that nobody hides in it."""

from typing import Any

import pytest
from kvtrail.producers.memory import MemoryTransport
from kvtrail.producers.publisher import LifecyclePublisher
from kvtrail.schemas.context import RequestContext, decode_context, encode_context
from kvtrail.schemas.dimensions import Severity
from kvtrail.schemas.envelope import EnvelopeDecoder, EnvelopeEncoder, encode_plain
from kvtrail.schemas.errors import ConfigError, InvalidField
from kvtrail.schemas.events import Create, Event, LookupCount, Lookups
from kvtrail.schemas.findings import Finding, Party
from kvtrail.schemas.homes import node_home, partition_of
from kvtrail.schemas.identity import Identity
from kvtrail.schemas.reserved import CREATOR, HEARTBEAT_NODE, REQUESTER, is_own, owners


def event(node: str, home: str, tenant: str) -> Event:
    return Event(
        node=node, incarnation="i1", home=home, seq=1, time_us=1, body=Create(), store="kv", tier="nvme", key="k",
        identity=Identity(tenant_id=tenant),
    )  # fmt: skip


OWN_HOME = node_home(f"{HEARTBEAT_NODE}-0")


@pytest.mark.parametrize("encode", [encode_plain, lambda one: EnvelopeEncoder().encode([one])])
@pytest.mark.parametrize(
    ("node", "home", "tenant", "field"),
    [
        (HEARTBEAT_NODE, OWN_HOME, CREATOR, ""),
        ("gpu-1", "n:gpu-1", "northwind", ""),
        ("gpu-1", "n:gpu-1", CREATOR, "tenant_id"),
        ("gpu-1", "n:gpu-1", "kvtrail:mine", "tenant_id"),
        ("gpu-1", OWN_HOME, "northwind", "home"),
        (HEARTBEAT_NODE, OWN_HOME, "northwind", "tenant_id"),
        (HEARTBEAT_NODE, "n:gpu-1", CREATOR, "home"),
        ("kvtrail:other", "n:gpu-1", "northwind", "node"),
    ],
)
def test_only_the_heartbeat_speaks_of_reserved_tenants_and_only_of_them(
    encode: Any, node: str, home: str, tenant: str, field: str
) -> None:
    batch = EnvelopeDecoder().decode(encode(event(node, home, tenant)))
    assert [reject.error.field.rpartition(".")[2] for reject in batch.rejects] == ([field] if field else [])
    assert len(batch.events) == (0 if field else 1)


@pytest.mark.parametrize("encode", [encode_plain, lambda one: EnvelopeEncoder().encode([one])])
@pytest.mark.parametrize(
    ("node", "home", "tenant", "is_taken"),
    [
        ("gpu-1", "n:gpu-1", "northwind", True),
        ("gpu-1", "n:gpu-1", "kvtrail:mine", False),
        (HEARTBEAT_NODE, OWN_HOME, CREATOR, True),
        (HEARTBEAT_NODE, OWN_HOME, "northwind", False),
    ],
)
def test_lookups_are_counted_for_no_reserved_tenant(
    encode: Any, node: str, home: str, tenant: str, is_taken: bool
) -> None:
    counts = (LookupCount(tenant_id=CREATOR if node == HEARTBEAT_NODE else "good"), LookupCount(tenant_id=tenant))
    told = Event(node=node, incarnation="i1", home=home, seq=1, time_us=1, body=Lookups(counts=counts))
    batch = EnvelopeDecoder().decode(encode(told))
    assert len(batch.events) == is_taken
    assert all(reject.error.field.endswith("body.counts.1.tenant_id") for reject in batch.rejects)
    assert [reject.seq for reject in batch.rejects] == ([] if is_taken else [1])


def test_a_publisher_refuses_a_reserved_tenant_and_a_reserved_name() -> None:
    transport = MemoryTransport()
    with LifecyclePublisher("gpu-1", transport) as publisher:
        publisher.create("k", Identity(tenant_id=CREATOR), store="kv", tier="nvme")
        publisher.create("k", Identity(tenant_id="northwind"), store="kv", tier="nvme")
        assert publisher.flush(10)
        publisher.lookups([LookupCount(tenant_id=CREATOR, hit=1)])
        assert publisher.flush(10)
        assert publisher.stats().refused == {"create.identity.tenant_id": 1, "lookups.counts.tenant_id": 1}
    with pytest.raises(ConfigError, match=r"node: must not begin with 'kvtrail:'\. Choose"):
        LifecyclePublisher("kvtrail:mine", transport)


def test_a_context_for_a_reserved_tenant_is_refused() -> None:
    with pytest.raises(InvalidField, match=r"context\.tenant_id"):
        decode_context(encode_context(RequestContext(request_id="r", tenant_id=REQUESTER, at_us=1)))


@pytest.mark.parametrize("partitions", [1, 2, 4, 33])
def test_a_heartbeat_reaches_every_partition(partitions: int) -> None:
    assert [partition_of(node_home(owner), partitions) for owner in owners(partitions)] == [*range(partitions)]


def test_a_finding_is_kvtrails_own_only_if_nobody_else_is_in_it() -> None:
    def finding(home: str, *tenants: str) -> Finding:
        parties = [Party(tenant_id=tenant) for tenant in tenants]
        return Finding(
            id="f", revision=1, status="open", rule="R", cause="C", severity=Severity.HIGH, title="t", home=home,
            creator=parties[0] if parties else None, requester=parties[1] if len(parties) > 1 else None,
        )  # fmt: skip

    assert is_own(finding(OWN_HOME, CREATOR, REQUESTER))
    assert is_own(finding(OWN_HOME))
    assert not is_own(finding(OWN_HOME, CREATOR, "northwind"))
    assert not is_own(finding("n:gpu-1", CREATOR, REQUESTER))
    assert not is_own(finding("n:gpu-1"))
