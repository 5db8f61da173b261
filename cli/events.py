"""`kvtrail events tail`: lifecycle events straight from the broker, one line an event."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any, NamedTuple

import click
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from ..audit import wording
from ..audit.history import Row
from ..audit.render import details, operation
from ..producers.kafka_client import connection
from ..schemas.clocks import plausible_us
from ..schemas.config import KafkaConfig
from ..schemas.envelope import EnvelopeDecoder, encode_plain
from ..schemas.errors import BrokerError
from ..schemas.events import EVENT_TYPES, Event
from ..schemas.reserved import HEARTBEAT_NODE
from ..schemas.topics import LIFECYCLE
from .local.running import current_config

_POLL_MS = 200
_PATIENCE_S = 10.0
_FIRST_STEP = 100
"""Records of each partition to look at first."""


class Wanted(NamedTuple):
    """Which events to show; an empty field means any."""

    types: tuple[str, ...] = ()
    tenant: str = ""
    key: str = ""

    def takes(self, event: Event) -> bool:
        """Whether the event is wanted. `key` may be the beginning of a key, as people are shown it; kvtrail's own
        heartbeat is wanted by nobody."""
        if event.node == HEARTBEAT_NODE:
            return False
        if self.types and event.type not in self.types:
            return False
        if self.tenant and (event.identity is None or event.identity.tenant_id != self.tenant):
            return False
        return event.key.startswith(self.key)


class Seen(NamedTuple):
    """A decoded event, or what a refused record says of itself, in the order of the log."""

    place: tuple[int, int, int, int]
    event: Event | None
    text: str


@click.group()
def events() -> None:
    """Look at the event stream."""


@events.command()
@click.option("--type", "types", multiple=True, type=click.Choice(EVENT_TYPES), help="Only these types; repeatable.")
@click.option("--tenant", default="", help="Only events of this tenant.")
@click.option("--key", default="", help="Only this store key, or keys that begin so.")
@click.option("--follow", "-f", is_flag=True, help="Go on with what comes, until stopped.")
@click.option("--last", "-n", default=20, type=click.IntRange(min=0), show_default=True, help="Events to begin with.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="One JSON object a line, which `kvtrail judge` reads; refused records are left out, so it may see gaps.",
)
def tail(types: tuple[str, ...], tenant: str, key: str, follow: bool, last: int, as_json: bool) -> None:
    """Print the newest events, in the broker's order; with --follow, the coming ones too.

    It reads without a group and changes nothing. What the broker has, this shows: also events that the sink or the
    detectors have not processed yet, and records that were refused. --json leaves those out: what it prints may have
    gaps that the topic has not.
    """
    wanted = Wanted(types, tenant, key.removesuffix("…"))
    show = _as_json if as_json else _as_line
    silent = True

    def tell(seen: Seen) -> None:
        nonlocal silent
        line = show(seen)
        if line:
            silent = False
            click.echo(line)

    try:
        asyncio.run(_tail(current_config().kafka, wanted, last, follow, tell))
    except KeyboardInterrupt:
        pass
    except (KafkaError, OSError, TimeoutError) as error:
        raise BrokerError(
            f"the events cannot be read ({type(error).__name__}).",
            field="kafka.bootstrap",
            remedy="Check the address, and that `kvtrail up` or your broker is running.",
        ) from error
    if silent and last and not (follow or as_json):
        click.echo("No event." if wanted == Wanted() else "No event matches.")


async def _tail(kafka: KafkaConfig, wanted: Wanted, last: int, follow: bool, tell: Callable[[Seen], None]) -> None:
    consumer = AIOKafkaConsumer(LIFECYCLE, **connection(kafka), auto_offset_reset="earliest")
    try:
        async with asyncio.timeout(_PATIENCE_S):
            await consumer.start()
            partitions = await _partitions(consumer)
            ends: dict[TopicPartition, int] = await consumer.end_offsets(partitions)
            starts: dict[TopicPartition, int] = await consumer.beginning_offsets(partitions)
        for seen in await _newest(consumer, wanted, starts, ends, last):
            tell(seen)
        if follow:
            for partition, end in ends.items():
                consumer.seek(partition, end)
            async with aclosing(_read(consumer, wanted, None)) as found:
                async for seen in found:
                    tell(seen)
    finally:
        await consumer.stop()


async def _newest(
    consumer: Any, wanted: Wanted, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], last: int
) -> list[Seen]:
    """The `last` newest wanted events. What is hidden (the heartbeat, what is filtered out) may be most of a log, so
    each partition is read further back, in steps that grow, until it has given so many or has no more."""
    found: dict[TopicPartition, list[Seen]] = {partition: [] for partition in ends}
    upper, step = dict(ends), max(last, _FIRST_STEP)
    while left := [each for each in found if len(found[each]) < last and upper[each] > starts[each]]:
        parts: dict[int, deque[Seen]] = {each.partition: deque(maxlen=last) for each in left}
        until = {each: upper[each] for each in left}
        for each in left:
            upper[each] = max(starts[each], upper[each] - step)
            consumer.seek(each, upper[each])
        async with aclosing(_read(consumer, wanted, until)) as read:
            async for seen in read:
                parts[seen.place[1]].append(seen)
        for each in left:
            found[each] = [*parts[each.partition], *found[each]][-last:]
        step *= 4
    whole = sorted((seen for some in found.values() for seen in some), key=lambda seen: seen.place)
    return whole[-last:] if last else []


async def _partitions(consumer: Any) -> list[TopicPartition]:
    until = time.monotonic() + _PATIENCE_S / 2
    while time.monotonic() < until:
        if LIFECYCLE in await consumer.topics() and consumer.assignment():
            return sorted(consumer.assignment())
        await asyncio.sleep(_POLL_MS / 1000)
    raise BrokerError(
        f"topic {LIFECYCLE} does not exist.",
        field="kafka.bootstrap",
        remedy="`kvtrail up` makes it; check that this is the right broker.",
    )


async def _read(consumer: Any, wanted: Wanted, ends: dict[TopicPartition, int] | None) -> AsyncGenerator[Seen, None]:
    """Wanted events of the partitions in `ends` up to there, or of all for ever, each poll in the broker's order."""
    decoder = EnvelopeDecoder()
    left = {partition for partition, end in (ends or {}).items() if await consumer.position(partition) < end}
    while ends is None or left:
        chunk: list[Seen] = []
        for partition, records in (await consumer.getmany(*left, timeout_ms=_POLL_MS)).items():
            for record in records:
                if ends is None or record.offset < ends[partition]:
                    chunk += _unpack(decoder, record, wanted)
            if ends is not None and await consumer.position(partition) >= ends[partition]:
                left.discard(partition)
        for seen in sorted(chunk, key=lambda seen: seen.place):
            yield seen


def _unpack(decoder: EnvelopeDecoder, record: Any, wanted: Wanted) -> list[Seen]:
    batch = decoder.decode(record.value or b"")
    place = (record.timestamp, record.partition, record.offset)
    found = [Seen((*place, event.seq), event, "") for event in batch.events if wanted.takes(event)]
    if not any(wanted):
        where = f"{LIFECYCLE}/{record.partition}/{record.offset}"
        for reject in batch.rejects:
            text = f"refused         {where}  {wording.clean(str(reject.error))}"
            found.append(Seen((*place, reject.seq or 0), None, f"{wording.moment(record.timestamp * 1000)}  {text}"))
    return found


def _as_line(seen: Seen) -> str:
    event = seen.event
    if event is None:
        return seen.text
    shown_us = plausible_us(event.time_us, seen.place[0] * 1000)
    row = Row(event=event, received_us=shown_us if shown_us != event.time_us else 0)
    line = [f"{wording.moment(row.time_us)}  {operation(event):<16}"]
    if event.key:
        line.append(f"key={wording.person_key(event.key)}")
    if event.identity is not None:
        line.append(f"tenant={wording.column(event.identity.tenant_id)}")
    line += details(row)
    if event.key:
        line.append(f"tier={event.tier}")
    if event.request_id:
        line.append(f"request={wording.column(event.request_id)}")
    return "  ".join([*line, f"home={wording.column(event.home)}", f"seq={event.seq}"])


def _as_json(seen: Seen) -> str:
    return encode_plain(seen.event).decode() if seen.event is not None else ""
