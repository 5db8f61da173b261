"""Histories with a known meaning: the incident, in the words of events."""

from collections.abc import Sequence

from kvtrail.schemas.digests import digest_template, digest_token_ids
from kvtrail.schemas.envelope import EnvelopeEncoder
from kvtrail.schemas.events import Body, Create, Event, Hit, NodeStart
from kvtrail.schemas.facts import Fact, TemplateFact
from kvtrail.schemas.identity import Identity

START_US = 1_760_000_000_000_000
KEY = "support_v7:smollm2"
_encoder = EnvelopeEncoder()


def identity(tenant: str, wording: str) -> Identity:
    """A tenant's prompt through the support template in one wording."""
    return Identity(
        tenant_id=tenant,
        model_id="smollm2",
        template_id="support_v7",
        template_digest=digest_template(wording),
        token_ids_digest=digest_token_ids(map(ord, tenant + wording)),
    )


class Lane:
    """One node's events, numbered."""

    def __init__(self, node: str, incarnation: str = "i1") -> None:
        self.node, self.incarnation, self.home = node, incarnation, f"n:{node}"
        self.seq = 0

    def event(self, body: Body, who: Identity | None = None, key: str = KEY, request: str = "") -> Event:
        self.seq += 1
        return Event(
            node=self.node, incarnation=self.incarnation, home=self.home, seq=self.seq,
            time_us=START_US + self.seq * 1_000_000, body=body, store="kv", tier="nvme", key=key,
            key_origin="asserted", request_id=request, identity=who,
        )  # fmt: skip


def incident(node: str = "node-1") -> list[Event]:
    """A wrong key: contoso is served northwind's prefix, then an edited template is answered from the old one."""
    lane, old, new = Lane(node), "answer kindly", "answer briefly"
    return [
        lane.event(NodeStart(surviving_tiers=("nvme",)), key=""),
        lane.event(Create(tokens=900), identity("northwind", old), request="r-1"),
        lane.event(Hit(reused_tokens=900), identity("northwind", old), request="r-2"),
        lane.event(Hit(reused_tokens=900), identity("contoso", old), request="r-3"),
        lane.event(Hit(reused_tokens=900), identity("northwind", new), request="r-4"),
    ]


def template(wording: str, number: int) -> Fact:
    """The support template was published in this wording before everything else."""
    return Fact(
        id=f"template-{number}", effective_at_us=START_US - 1,
        body=TemplateFact(template_id="support_v7", template_digest=digest_template(wording)),
    )  # fmt: skip


def envelope(events: Sequence[Event]) -> tuple[str, bytes]:
    """One record, with its home."""
    return events[0].home, _encoder.encode(events)
