"""`kvtrail simulate`: a fleet that behaves, faults at a chosen rate, and the answer key."""

import time
from collections import Counter
from pathlib import Path

import click
import msgspec

from ..judging.offline import judge_history
from ..schemas.envelope import Batch, EnvelopeDecoder
from ..schemas.facts import Fact, encode_fact
from ..simulator.fleet import FleetSpec
from ..simulator.run import Run, score


@click.command()
@click.option("--events", default=100_000, show_default=True, help="Lifecycle events to make.")
@click.option("--seed", default=1, show_default=True, help="Equal seeds give equal histories.")
@click.option("--faults", default=20, show_default=True, help="Faults to inject, spread over every family.")
@click.option("--request-ms", default=8.0, show_default=True, help="Mean time between the fleet's requests.")
@click.option("--skew-ms", default=1500, show_default=True, help="How wrong a node's clock is at most.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the history here, as `kvtrail judge` reads it.")
@click.option("--answers", type=click.Path(path_type=Path), help="Write the answer key here, as JSON Lines.")
@click.option("--check", is_flag=True, help="Judge the history and compare with the answer key.")
def simulate(
    events: int, seed: int, faults: int, request_ms: float, skew_ms: int, out: Path | None, answers: Path | None,
    check: bool,
) -> None:  # fmt: skip
    """Make a history of a believable fleet, deterministic by seed."""
    run = Run(seed=seed, events=events, faults=faults, fleet=FleetSpec(request_ms=request_ms, skew_ms=skew_ms))
    records: list[Fact | Batch] = []
    decoder, made = EnvelopeDecoder(), 0
    stream = out.open("wb") if out else None
    for sent in run.sent():
        made += len(sent.events)
        if stream:
            stream.write(b'{"fact":' + encode_fact(sent.fact) + b"}\n" if sent.fact else sent.record + b"\n")
        if check:
            records.append(sent.fact or decoder.decode(sent.record))
    if stream:
        stream.close()
    if answers:
        answers.write_bytes(b"".join(msgspec.json.encode(item) + b"\n" for item in run.answers))
    click.echo(f"{made} events, {len(run.answers)} faults, seed {seed}")
    if check:
        _check(run, records)


def _check(run: Run, records: list[Fact | Batch]) -> None:
    started = time.perf_counter()
    findings = judge_history(records)
    took = time.perf_counter() - started
    result = score(run.answers, findings)
    events = sum(len(record.events) for record in records if isinstance(record, Batch))
    click.echo(
        f"found {len(result.found)} of {len(run.answers)}, missed {len(result.missed)}, other cause "
        f"{len(result.misnamed)}, false alarms {len(result.false_alarms)}; {events / took:,.0f} events/s"
    )
    for expected in result.missed:
        click.echo(f"  missed       {expected.family:10} {expected.cause:22} {expected.subject}")
    for expected, cause in result.misnamed:
        click.echo(f"  other cause  {expected.family:10} {expected.cause:22} {expected.subject} was {cause}")
    for cause, count in Counter(finding.cause for finding in result.false_alarms).most_common():
        example = next(finding for finding in result.false_alarms if finding.cause == cause)
        click.echo(f"  false alarm  {count:6} x {cause:22} e.g. {example.subject}")
    if result.missed or result.misnamed or result.false_alarms:
        raise SystemExit(1)
