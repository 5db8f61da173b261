"""Histories by seed in which most events are ordinary and some are odd in one way: what fast paths are made for."""

from random import Random
from typing import Any

from kvtrail.schemas.envelope import Batch, EnvelopeDecoder, EnvelopeEncoder
from kvtrail.schemas.events import Event

from .test_properties import TENANTS, nodes

_ODD: dict[str, tuple[str, ...]] = {
    "in": ("I1", "I2"),
    "iso": ("sA", "sB", "pub"),
    "payload": ("P1", "P2"),
    "kind": ("kv", "response"),
    "who": ("u1", "u2"),
    "finish": ("none", "stop"),
    "loc": ("b1#g1", "b2#g1", "b1#g2", "b2#g2"),
    "maxage": ("20",),
    "age": ("10", "30"),
    "ver": ("1", "2"),
    "upto": ("8",),
}
_TYPES = ("create", "create", "create", "hit", "hit", "hit", "hit", "hit", "expire", "expire", "commit", "fail")


def _line(random: Random, odd: float, shared: float) -> tuple[Any, ...]:
    if random.random() < 0.04:
        return "invalidate", "*", random.choice(("-", *TENANTS)), {"scope": "node"}
    type_, key = random.choice(_TYPES), f"K{random.randrange(6)}"
    tenant = "acme" if random.random() < 0.7 else random.choice(TENANTS)
    fields = {name: random.choice(values) for name, values in _ODD.items() if random.random() < odd}
    if random.random() < shared:
        fields["tier"] = "l3"
    if type_ == "create" and random.random() < 0.15:
        fields["state"] = "pending"
    return type_, key, "-" if type_ in ("expire", "commit", "fail") else tenant, fields


def odd_history(seed: int, lines: int = 80, odd: float | None = None) -> list[Batch]:
    """Envelopes of two nodes, one of which restarts; some sent twice, late or never. `odd`: how odd, else drawn."""
    random = Random(seed)
    drawn, shared = random.choice((0.0, 0.02, 0.1)), random.choice((0.0, 0.8))
    odd = drawn if odd is None else odd
    who = ("n1", "n1", "n1", "n1/i2", "n2")
    records = nodes([(random.choice(who), _line(random, odd, shared)) for _ in range(lines)])
    runs: list[list[Event]] = []
    size = random.randint(1, 9)
    for event in records:
        if not isinstance(event, Event):
            continue
        if runs and len(runs[-1]) < size and _lane(runs[-1][-1]) == _lane(event) and runs[-1][-1].seq + 1 == event.seq:
            runs[-1].append(event)
        else:
            runs.append([event])
    encoder, decoder = EnvelopeEncoder(), EnvelopeDecoder()
    batches = [decoder.decode(encoder.encode(run)) for run in runs]
    for index in range(len(batches) - 1, -1, -1):
        chance = random.random()
        if chance < 0.03:
            del batches[index]
        elif chance < 0.06:
            batches.insert(min(len(batches), index + random.randint(1, 5)), batches[index])
        elif chance < 0.12:
            batches.insert(min(len(batches), index + random.randint(1, 12)), batches.pop(index))
    return batches


def _lane(event: Event) -> tuple[str, str, str]:
    return event.node, event.incarnation, event.home
