"""Judging core: events per second of decode and judge on one core, bytes per live entry.

    python -m kvtrail.benchmarks.judging [--events N] [--entries N]

Traffic: creates under full fingerprints, each with token ids of its own, nine hits an entry, expiries, 256 events an
envelope.
Speed is by CPU time of this process, so that a busy machine does not count. Memory is measured on the resident set
while entries are created and kept alive.
"""

import argparse
import gc
import hashlib
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from kvtrail.judging.factbook import FactBook
from kvtrail.judging.judge import Judge
from kvtrail.schemas.config import JudgingConfig
from kvtrail.schemas.envelope import EnvelopeDecoder, EnvelopeEncoder
from kvtrail.schemas.events import Body, Create, Event, Expire, Hit
from kvtrail.schemas.identity import Identity

ENVELOPE = 256
BUDGET_EVENTS, BUDGET_BYTES = 150_000, 500


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


def speed(count: int) -> tuple[float, float]:
    """Events per second of CPU time: decode and judge, decode alone."""
    packed = list(records(events(count // 11, 9, expire=True)))
    total = count // 11 * 11
    gc.collect()
    gc.freeze()
    decoder = EnvelopeDecoder()
    start = time.process_time()
    for raw in packed:
        decoder.decode(raw)
    alone = total / (time.process_time() - start)
    decoder, judge = EnvelopeDecoder(), Judge(JudgingConfig(), "bench", FactBook())
    start = time.process_time()
    for index, raw in enumerate(packed):
        found = judge.batch(decoder.decode(raw), index)
        assert not found, found[0]
    return total / (time.process_time() - start), alone


def resident() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def memory(entries: int) -> tuple[float, float, float]:
    """Bytes per live entry; seconds and bytes of a snapshot of them."""
    judge = Judge(JudgingConfig(), "bench", FactBook())
    gc.collect()
    before = resident()
    for index, raw in enumerate(records(events(entries, 0, expire=False))):
        # Encoder and decoder keep identities they have seen, which is no part of the judge.
        judge.batch(EnvelopeDecoder().decode(raw), index)
    gc.collect()
    used = (resident() - before) / entries
    start = time.process_time()
    raw = judge.dump()
    return used, time.process_time() - start, len(raw) / entries


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=550_000)
    parser.add_argument("--entries", type=int, default=1_000_000)
    options = parser.parse_args()
    out = sys.stdout.write
    # Memory first: what a fresh process has not yet given back would hide the growth.
    if options.entries:
        used, seconds, size = memory(options.entries)
        out(f"live entry        {used:>10,.0f} bytes     (budget {BUDGET_BYTES}; {options.entries:,} entries)\n")
        out(f"snapshot          {seconds:>10,.1f} s         ({size:,.0f} bytes an entry)\n")
    judged, decoded = speed(options.events)
    out(f"decode and judge  {judged:>10,.0f} events/s  (budget {BUDGET_EVENTS:,}; decoding alone {decoded:,.0f})\n")


if __name__ == "__main__":
    main()
