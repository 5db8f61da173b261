"""A history with what no single home can see: drifting keys, a part that is missing, a walk along prefixes."""

from collections.abc import Iterator
from random import Random

from kvtrail.schemas.config import Config, JudgingConfig
from kvtrail.schemas.digests import digest_token_ids
from kvtrail.schemas.envelope import EnvelopeEncoder
from kvtrail.schemas.events import Body, Create, Event, Hit, RequestEnd
from kvtrail.schemas.findings import finding_id
from kvtrail.schemas.fleet_settings import FleetConfig
from kvtrail.schemas.identity import Identity
from kvtrail.schemas.topics import FINDINGS, OBSERVATIONS
from kvtrail.tests.streams.harness import committed, end_offsets, read_topic

NODES = ("n1", "n2", "n3", "n4", "n5")
DRIFTING = ("n2", "n4")
CAUSES = {"KEY_DRIFT", "COMPONENT_MISSING", "PREFIX_PROBING"}
SETTINGS = JudgingConfig(drift_threshold=4, probing_threshold=12)
LAST_REQUEST = "request-last"
_encoder = EnvelopeEncoder()


def exactly(config: Config) -> Config:
    """What is found of such a history follows from its log alone: no detector is ever given up."""
    fleet = FleetConfig(request_s=2, patience_s=24 * 3600, snapshot_s=0.5)
    return config.model_copy(update={"judging": SETTINGS, "fleet": fleet})


class Fleet:
    """Nodes that number what they do; each event is a record of its own."""

    def __init__(self, start_us: int) -> None:
        self.now_us = start_us
        self._seq: dict[tuple[str, str], int] = {}

    def does(
        self, node: str, body: Body, key: str, who: Identity, *, owner: str = "", part: str = "", request: str = "",
        span: str = "",
    ) -> tuple[str, bytes]:  # fmt: skip
        """Home and record of one event."""
        self.now_us += 1000
        home = f"n:{owner or node}"
        seq = self._seq[node, home] = self._seq.get((node, home), 0) + 1
        event = Event(
            node=node, incarnation="i1", home=home, seq=seq, time_us=self.now_us, body=body, store="gpu", tier="nvme",
            key=key, part=part, request_id=request, identity=who, kind="kv", span=span,
        )  # fmt: skip
        return home, _encoder.encode([event])


def who(tenant: str, content: str, principal: str | None = None, parent: str | None = None) -> Identity:
    return Identity(
        tenant_id=tenant, model_id="m", principal=principal, token_ids_digest=digest_token_ids(map(ord, content)),
        parent_digest=None if parent is None else digest_token_ids(map(ord, parent)),
    )  # fmt: skip


def fleet_history(seed: int, start_us: int, contents: int = 40) -> Iterator[tuple[str, bytes]]:
    """Records in the order of their events. Two nodes derive other keys than the rest."""
    random, fleet = Random(seed), Fleet(start_us)
    for number in range(contents):
        content = f"content-{number}"
        for node in random.sample(NODES, 4):
            key = f"{content}/drifted/{node}" if node in DRIFTING else content
            yield fleet.does(node, Create(tokens=16), key, who("northwind", content))
        request = f"request-{number}"
        parts = ("attention", "state") if number % 3 else ("attention",)
        for part, node in zip(parts, random.sample(NODES, len(parts)), strict=True):
            entry = f"{request}/{part}"
            asked = who("northwind", f"multi-{number}")
            yield fleet.does(node, Create(tokens=16), entry, asked, part=part)
            served = Hit(reused_tokens=16, parts_required=("attention", "state"))
            yield fleet.does(node, served, entry, asked, part=part, request=request)
        if number % 2:
            closing = RequestEnd(parts_required=("attention", "state"))
            yield fleet.does(random.choice(NODES), closing, "", who("northwind", request), request=request)
        # A walk along the victim's chain of prefixes, one request a step, over all nodes.
        node, chain = random.choice(NODES), f"chain-{number}"
        parent = f"chain-{number - 1}" if number else None
        yield fleet.does(node, Create(tokens=16 * (number + 1)), chain, who("victim", chain, parent=parent))
        yield fleet.does(
            node,
            Hit(reused_tokens=16),
            chain,
            who("prober", chain, f"mallory-{number // 20}", parent),
            request=f"probe-{number}",
        )


def last_request(start_us: int) -> Iterator[tuple[str, bytes]]:
    """One that names a part it never gets and never ends: once it is found, every earlier one was looked at."""
    fleet, asked = Fleet(start_us), who("northwind", "last")
    yield fleet.does("n9", Create(tokens=16), f"{LAST_REQUEST}/attention", asked, part="attention")
    served = Hit(reused_tokens=16, parts_required=("attention", "state"))
    yield fleet.does(
        "n9", served, f"{LAST_REQUEST}/attention", asked, part="attention", request=LAST_REQUEST
    )  # fmt: skip


def all_folded(config: Config) -> bool:
    """Whether the fleet worker has folded everything, and was beyond the time at which the last request is over."""
    done = committed(config.kafka, "kvtrail-fleet", OBSERVATIONS)
    ends = end_offsets(config.kafka, OBSERVATIONS)
    if any(done.get(partition, (0, ""))[0] < end for partition, end in ends.items()):
        return False
    last = finding_id(f"request:{LAST_REQUEST}").encode()
    return any(last in record.value for record in read_topic(config.kafka, FINDINGS))
