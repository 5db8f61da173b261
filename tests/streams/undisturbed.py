"""One undisturbed offline run over the log as it lies in the topics: the measure of every disturbed one.

It judges the records in the order of their append, facts first where both have the same time, and writes what a sink
that nobody ever disturbed would have written into a database of its own.
"""

from collections.abc import Iterable, Sequence
from heapq import merge
from itertools import groupby, islice
from operator import attrgetter
from typing import NamedTuple

from kvtrail.judging.factbook import FactBook
from kvtrail.judging.fleet import FleetJudge
from kvtrail.judging.judge import Judge
from kvtrail.judging.offline import History
from kvtrail.schemas.config import Config, ResolverConfig
from kvtrail.schemas.context import RequestContext, decode_record
from kvtrail.schemas.dead_letters import DeadLetter, dead_letter
from kvtrail.schemas.envelope import EnvelopeDecoder
from kvtrail.schemas.errors import BadInput
from kvtrail.schemas.events import Event
from kvtrail.schemas.facts import Fact, Tick, decode_fact
from kvtrail.schemas.findings import Finding
from kvtrail.schemas.topics import CONTEXT, DEAD_LETTER, FACTS, FINDINGS, LIFECYCLE
from kvtrail.store.client import Client
from kvtrail.store.rows import Source, dead_letter_rows, finding_rows
from kvtrail.streams.intake import FactsIntake, FindingsIntake, Intake, Item, LifecycleIntake, letters_of
from kvtrail.streams.joining import Window
from kvtrail.streams.lanes import StoredLanes
from kvtrail.streams.records import Record
from kvtrail.tests.streams.harness import read_topic

FLEET_CAUSES = ("KEY_DRIFT", "PREFIX_PROBING", "COMPONENT_MISSING")
"""What several partitions show together: a fleet worker's."""
_AT_ONCE = 500


class Log(NamedTuple):
    """The topics as they lie in the broker, each by partition and offset."""

    lifecycle: list[Record]
    facts: list[Record]
    findings: list[Record]
    context: list[Record]


def read_log(config: Config) -> Log:
    """All of it."""
    return Log(*(read_topic(config.kafka, topic) for topic in (LIFECYCLE, FACTS, FINDINGS, CONTEXT)))


def judged(config: Config, log: Log) -> list[Finding]:
    """Every revision of every finding, in order, partition by partition: a home's rules see its partition. Without what
    compares several homes: `fleet_judged`."""
    found: list[Finding] = []
    for _, group in groupby(log.lifecycle, key=attrgetter("partition")):
        history, decoder = History(config.judging, config.deployment), EnvelopeDecoder()
        for record in merge(_facts_of(log), group, key=lambda one: (one.append_us, one.topic != FACTS)):
            if record.topic == FACTS:
                fact = _fact(record)
                if fact is not None:
                    history.take(fact, record.append_us)
            else:
                found += history.take(decoder.decode(record.value), record.append_us)
    return [finding for finding in found if finding.cause not in FLEET_CAUSES]


def fleet_judged(config: Config, log: Log) -> list[Finding]:
    """Every revision of what compares several homes, in order: one judge over the whole fleet's log, in the order of
    its appends. The log's time says when a request that nobody closed is over, looked at once a second."""
    book = FactBook()
    for record in _facts_of(log):
        fact = _fact(record)
        if fact is not None:
            book.add(fact, record.append_us)
    judge = Judge(config.judging, config.deployment, book, observe=True)
    fleet, decoder = FleetJudge(config.judging, config.deployment), EnvelopeDecoder()
    found: list[Finding] = []
    for append_us, record in _appended(log.lifecycle):
        found += fleet.over(_second(append_us) - round(config.fleet.request_s * 1e6))
        judge.batch(decoder.decode(record.value), record.append_us)
        assert judge.observations is not None
        for observation in judge.observations:
            found += fleet.take(observation, append_us)
        judge.observations.clear()
    return found + fleet.finish()


def _appended(records: Iterable[Record]) -> list[tuple[int, Record]]:
    """All partitions in the order of their appends; a broker's clock may step back, and its log does not."""
    latest: dict[int, int] = {}
    found = []
    for record in records:
        latest[record.partition] = max(record.append_us, latest.get(record.partition, 0))
        found.append((latest[record.partition], record))
    return sorted(found, key=lambda one: (one[0], one[1].partition, one[1].offset))


def _second(time_us: int) -> int:
    return time_us // 1_000_000 * 1_000_000


def _facts_of(log: Log) -> Iterable[Record]:
    return sorted(log.facts, key=lambda record: (record.append_us, record.offset))


def _fact(record: Record) -> Fact | None:
    try:
        fact = decode_fact(record.value)
    except BadInput:
        return None
    return None if isinstance(fact.body, Tick) else fact


def resolved(config: ResolverConfig, log: Log) -> tuple[dict[str, Event], list[DeadLetter]]:
    """Every resolution that one undisturbed resolver makes, by id, and what it refuses."""
    made: dict[str, Event] = {}
    letters: list[DeadLetter] = []
    decoder = EnvelopeDecoder()
    for _, group in groupby(log.context, key=attrgetter("partition")):
        window = Window(round(config.window_s * 1e6), config.limit)
        for record in group:
            content: RequestContext | Event | None = None
            try:
                content = decode_record(record.value, decoder)
            except BadInput as error:
                letters.append(_refusal(error, record))
            for event in window.take(record.offset, record.append_us, content):
                made[event.id] = event
    return made, letters


def _refusal(error: BadInput, record: Record) -> DeadLetter:
    return dead_letter(
        error, record.value, topic=record.topic, partition=record.partition, offset=record.offset, stage="resolve",
        at_us=record.append_us,
    )  # fmt: skip


def store(client: Client, config: Config, log: Log, revisions: Sequence[Finding]) -> None:
    """Everything that the log holds, each thing once, into an empty database; findings as `revisions` says."""
    letters: list[DeadLetter] = []
    for records in (log.lifecycle, log.facts, log.findings):
        for partition, group in groupby(records, key=attrgetter("partition")):
            intake = _intake(records[0].topic)
            while items := [intake.take(record) for record in islice(group, _AT_ONCE)]:
                letters += letters_of(items)
                if records is not log.findings:
                    _insert(client, intake, items, f"{records[0].topic}/{partition}/{items[0].record.offset}")
    letters += resolved(config.resolver, log)[1]
    sources = [Source(FINDINGS, 0, at, log.lifecycle[0].append_us) for at in range(len(revisions))]
    for start in range(0, len(revisions), _AT_ONCE):
        chunk = zip(sources[start : start + _AT_ONCE], revisions[start : start + _AT_ONCE], strict=True)
        rows = finding_rows(chunk)
        client.insert(rows.table, rows.columns, f"findings/{start}")
    if letters:
        rows = dead_letter_rows((Source(DEAD_LETTER, 0, at, letter.at_us), letter) for at, letter in enumerate(letters))
        client.insert(rows.table, rows.columns, "letters")


def _intake(topic: str) -> Intake:
    if topic == LIFECYCLE:
        return LifecycleIntake(StoredLanes())
    return FactsIntake() if topic == FACTS else FindingsIntake()


def _insert(client: Client, intake: Intake, items: list[Item], token: str) -> None:
    rows = intake.rows(items)
    if rows.size:
        client.insert(rows.table, rows.columns, token)
