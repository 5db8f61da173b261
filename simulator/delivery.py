"""From events to the log: buffered per lane, packed, sent late, twice, and now and then out of order."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from random import Random

from ..schemas.envelope import EnvelopeEncoder
from ..schemas.events import Event
from ..schemas.facts import Fact


@dataclass(frozen=True, slots=True)
class DeliverySpec:
    """`linger_us`: how long a lane gathers; `duplicate`, `reorder`: chances an envelope is sent again, or overtaken
    by later ones of the fleet (its own lane's included)."""

    envelope_events: int = 64
    linger_us: int = 200_000
    duplicate: float = 0.002
    reorder: float = 0.002


@dataclass(frozen=True, slots=True)
class Sent:
    """One record of the log: a fact, or an envelope of a home's events."""

    fact: Fact | None = None
    home: str = ""
    record: bytes = b""
    events: tuple[Event, ...] = ()


def deliver(history: Iterable[Event | Fact], random: Random, spec: DeliverySpec | None = None) -> Iterator[Sent]:
    """The history as it reaches the log. Nothing is lost here."""
    spec = spec or DeliverySpec()
    encoder = EnvelopeEncoder()
    lanes: dict[tuple[str, str, str], list[Event]] = {}
    due: dict[tuple[str, str, str], int] = {}
    held: list[tuple[int, Sent]] = []
    now = sent = 0

    def flush(lane: tuple[str, str, str]) -> Iterator[Sent]:
        nonlocal sent
        events = lanes.pop(lane)
        del due[lane]
        item = Sent(home=lane[2], record=encoder.encode(events), events=tuple(events))
        sent += 1
        if random.random() < spec.reorder:
            held.append((sent + random.randint(1, 8), item))
            return
        yield item
        if random.random() < spec.duplicate:
            held.append((sent + random.randint(1, 50), item))

    def release(everything: bool = False) -> Iterator[Sent]:
        ready = [pair for pair in held if everything or pair[0] <= sent]
        held[:] = [pair for pair in held if pair not in ready]
        for _, item in ready:
            yield item

    for item in history:
        if isinstance(item, Fact):
            now = max(now, item.effective_at_us)
            yield Sent(fact=item)
            continue
        # Skewed clocks would make lingering erratic, so the fleet's time only moves forward here.
        now = max(now, item.time_us)
        lane = (item.node, item.incarnation, item.home)
        waiting = lanes.get(lane)
        if waiting is not None and item.seq != waiting[-1].seq + 1:
            yield from flush(lane)
        lanes.setdefault(lane, []).append(item)
        due.setdefault(lane, now + spec.linger_us)
        if len(lanes[lane]) >= spec.envelope_events:
            yield from flush(lane)
        for late in [lane for lane, when in due.items() if when <= now]:
            yield from flush(late)
        yield from release()
    for lane in list(lanes):
        yield from flush(lane)
    yield from release(everything=True)
