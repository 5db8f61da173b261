"""Recorded histories and what was found in them: `NAME.jsonl` and `NAME.findings.jsonl`, one finding a line.

`python -m kvtrail.tests.histories.golden` writes the findings anew; `record` made the fleets' histories, once.
"""

from collections.abc import Iterator
from pathlib import Path

from kvtrail.judging.offline import judge_history
from kvtrail.schemas.envelope import Batch, EnvelopeDecoder
from kvtrail.schemas.errors import BadInput
from kvtrail.schemas.facts import Fact, encode_fact
from kvtrail.schemas.findings import encode_finding
from kvtrail.simulator.run import Run
from kvtrail.streams.backfill import read

FOLDER = Path(__file__).parent
NAMES = ("fleet-11", "fleet-23", "incident")


def history(name: str) -> Iterator[Fact | Batch]:
    """The records of a recorded history, in the order of their append."""

    def refuse(number: int, error: BadInput) -> None:
        raise AssertionError(f"{name}:{number} cannot be read any more: {error}")

    decoder = EnvelopeDecoder()
    for line in read(FOLDER / f"{name}.jsonl", refuse):
        yield line.fact if line.fact is not None else decoder.decode(line.raw)


def judged(name: str) -> str:
    """The final revision of every finding, retracted ones too, by id."""
    findings = judge_history(history(name), retracted=True)
    lines = [encode_finding(finding).decode() for finding in sorted(findings, key=lambda finding: finding.id)]
    return "".join(f"{line}\n" for line in lines)


def expected(name: str) -> str:
    """What was found when the history was recorded, or when a change was last listed."""
    return (FOLDER / f"{name}.findings.jsonl").read_text()


def record(seed: int) -> None:
    """A small fleet with a fault of most families."""
    with (FOLDER / f"fleet-{seed}.jsonl").open("wb") as stream:
        for sent in Run(seed=seed, events=260, faults=20).sent():
            stream.write(b'{"fact":' + encode_fact(sent.fact) + b"}\n" if sent.fact else sent.record + b"\n")


def main() -> None:
    """Write the findings anew."""
    for name in NAMES:
        (FOLDER / f"{name}.findings.jsonl").write_text(judged(name))


if __name__ == "__main__":
    main()
