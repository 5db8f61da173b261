"""Judging core: events per second of decode and judge on one core, bytes per live entry, time of a snapshot.

    python -m kvtrail.benchmarks.judging [--events N] [--entries N] [--seed N]

Traffic, all in one run and each beside its floor, decoding alone:

* plain lane: creates under full fingerprints, each with token ids of its own, nine hits an entry, expiries, 256 events
  an envelope;
* mixed: the simulator's fleet with faults of every family, node and shared tiers, restarts, epochs, policies, records
  sent twice and out of order. A quiet fleet fills few of its envelopes, a busy one fills them.

Speed is by CPU time of this process, so that a busy machine does not count as work, although it still slows the memory
that is shared. Memory is measured on the resident set while entries are created and kept alive.
"""

import argparse
import gc
import hashlib
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kvtrail.judging.factbook import FactBook
from kvtrail.judging.judge import Judge
from kvtrail.schemas.config import JudgingConfig
from kvtrail.schemas.envelope import EnvelopeDecoder, EnvelopeEncoder
from kvtrail.schemas.events import Body, Create, Event, Expire, Hit
from kvtrail.schemas.facts import Fact
from kvtrail.schemas.identity import Identity
from kvtrail.simulator.fleet import FleetSpec
from kvtrail.simulator.run import Run

ENVELOPE = 256
BUDGET_EVENTS, BUDGET_BYTES = 150_000, 500
BUSY_MS, QUIET_MS = 0.1, 8.0
"""Milliseconds between two requests of the fleet."""


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def identity(n: int) -> Identity:
    """Of a fleet: few tenants, templates and models; every entry has token ids of its own."""
    return Identity(
        tenant_id=f"tenant-{n % 7}",
        model_id="m1",
        weights_digest=digest("w"),
        kv_dtype="bf16",
        tokenizer_id="t1",
        template_id=f"template-{n % 11}",
        template_digest=digest(f"template-{n % 11}"),
        tool_schema_digest="",
        token_ids_digest=digest(f"tokens-{n}"),
    )


def events(entries: int, hits: int, expire: bool) -> Iterator[Event]:
    """One lane: each entry is created, hit `hits` times and, where `expire`, ended."""
    seq = 0

    def event(key: str, who: Identity | None, body: Body, n: int) -> Event:
        nonlocal seq
        seq += 1
        return Event(
            node="n1", incarnation="i1", home="n:n1", seq=seq, time_us=1_700_000_000_000_000 + seq, body=body, key=key,
            request_id=f"r{n}", identity=who,
        )  # fmt: skip

    for n in range(entries):
        key, who = digest(f"key-{n}"), identity(n)
        yield event(key, who, Create(tokens=512, bytes=1 << 20, payload_digest=digest(f"p{n}")), n)
        for _ in range(hits):
            yield event(key, who, Hit(reused_tokens=512, tokens_read=512), n)
        if expire:
            yield event(key, None, Expire(reason="capacity"), n)


def records(source: Iterator[Event]) -> Iterator[bytes]:
    batch: list[Event] = []
    for event in source:
        batch.append(event)
        if len(batch) == ENVELOPE:
            yield EnvelopeEncoder().encode(batch)
            batch = []
    if batch:
        yield EnvelopeEncoder().encode(batch)


class Speed(NamedTuple):
    """Events per second of CPU time: decoded only; decoded and judged."""

    events: int
    records: int
    decoded: float
    judged: float


def speed(log: list[Fact | bytes], total: int, *, observe: bool = False) -> Speed:
    gc.collect()
    gc.freeze()
    decoder = EnvelopeDecoder()
    start = time.process_time()
    for record in log:
        if isinstance(record, bytes):
            decoder.decode(record)
    decoded = total / (time.process_time() - start)
    facts = FactBook()
    decoder, judge = EnvelopeDecoder(), Judge(JudgingConfig(), "bench", facts, observe=observe)
    start = time.process_time()
    for index, record in enumerate(log):
        if isinstance(record, Fact):
            facts.add(record, index)
            continue
        judge.batch(decoder.decode(record), index)
        if judge.observations:
            judge.observations.clear()
    judged = total / (time.process_time() - start)
    return Speed(total, len(log), decoded, judged)


def plain(count: int) -> tuple[list[Fact | bytes], int]:
    """Records of one plain lane, and their events."""
    return list(records(events(count // 11, 9, expire=True))), count // 11 * 11


def mixed(count: int, seed: int, request_ms: float) -> tuple[list[Fact | bytes], int]:
    """Records of a simulated fleet, and their events."""
    run = Run(seed=seed, events=count, faults=40, fleet=FleetSpec(request_ms=request_ms))
    log: list[Fact | bytes] = []
    total = 0
    for sent in run.sent():
        log.append(sent.fact or sent.record)
        total += len(sent.events)
    return log, total


def resident() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Memory(NamedTuple):
    """Bytes per live entry; seconds to freeze and to encode a snapshot of all; bytes of it per entry."""

    entry: float
    freeze_s: float
    encode_s: float
    snapshot: float


def memory(entries: int) -> Memory:
    judge = Judge(JudgingConfig(), "bench", FactBook())
    gc.collect()
    before = resident()
    for index, raw in enumerate(records(events(entries, 0, expire=False))):
        # Encoder and decoder keep identities they have seen, which is no part of the judge.
        judge.batch(EnvelopeDecoder().decode(raw), index)
    gc.collect()
    used = (resident() - before) / entries
    start = time.process_time()
    frozen = judge.freeze()
    stopped = time.process_time()
    size = len(frozen.encode())
    return Memory(used, stopped - start, time.process_time() - stopped, size / entries)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=220_000)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    out = sys.stdout.write
    # Memory first: what a fresh process has not yet given back would hide the growth.
    if options.entries:
        found = memory(options.entries)
        out(f"{options.entries:,} live entries\n")
        out(f"  bytes per entry   {found.entry:>9,.0f}      (budget {BUDGET_BYTES})\n")
        out(f"  snapshot, freeze  {found.freeze_s * 1000:>9,.0f} ms   (in the loop)\n")
        out(f"  snapshot, encode  {found.encode_s * 1000:>9,.0f} ms   (elsewhere)\n")
        out(f"  snapshot          {found.snapshot:>9,.0f}      (bytes an entry)\n")
    out(f"events/s of CPU time (budget {BUDGET_EVENTS:,}, decoding included)\n")
    out(f"  {'traffic':<28}{'a record':>10}{'decode':>12}{'and judge':>12}{'ratio':>8}{'us to judge':>13}\n")
    for name, log, total in (
        ("plain lane", *plain(options.events)),
        ("mixed, busy fleet", *mixed(options.events, options.seed, BUSY_MS)),
        ("mixed, quiet fleet", *mixed(options.events, options.seed, QUIET_MS)),
    ):
        for observe in (False, True):
            one = speed(log, total, observe=observe)
            judging_us = (1 / one.judged - 1 / one.decoded) * 1e6
            label = f"{name}, observed" if observe else name
            out(
                f"  {label:<28}{one.events / one.records:>10,.0f}{one.decoded:>12,.0f}{one.judged:>12,.0f}"
                f"{one.judged / one.decoded:>8.2f}{judging_us:>13.2f}\n"
            )


if __name__ == "__main__":
    main()
