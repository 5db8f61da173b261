"""`kvtrail tour`: the incident from a recording of a real run, through the real judging core, in seconds."""

import importlib.resources
import shutil
import sys
from pathlib import Path

import click

from ..audit.history import Question, build_history
from ..audit.render import paint, render_history
from ..judging.offline import judge_history
from ..schemas.config import JudgingConfig
from ..schemas.envelope import Batch
from ..schemas.errors import ConfigError
from .incident import telling
from .incident.account import finding_of, problems
from .incident.recording import Recording, read_recording
from .incident.steps import Chapter
from .screen import colourful, say

_PATH = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.option("--recording", "path", type=_PATH, help="Another recording, written by `kvtrail demo --record`.")
def tour(path: Path | None) -> None:
    """The incident of `kvtrail demo` from a recording: no broker, no store, no model; the verdicts are made now.

    Exit status: 0 all went as it must, 1 it did not.
    """
    recording = load(path)
    colour = colourful(sys.stdout)
    width = min(shutil.get_terminal_size((100, 40)).columns, 120)
    about = recording.about
    day, _, clock = about.recorded_at.partition("T")
    say(
        paint(
            telling.paragraph(
                f"RECORDED on {day} at {clock[:5]} UTC: {about.model} answered, kvtrail's node published these events. "
                "Nothing is computed by a model now; the findings below are judged now, by the same core as live.",
                width,
            ),
            "2",
            colour,
        )
    )
    say()
    say(telling.paragraph(telling.INTRODUCTION, width))
    findings = judge_history(recording.records, JudgingConfig(), about.deployment)
    chapter: Chapter | None = None
    for played in recording.played:
        if played.step.chapter != chapter:
            _end_of(chapter, width)
            chapter = played.step.chapter
            say()
            say(telling.head(played.step.chapter, colour))
        say(telling.told(played, colour))
        finding = finding_of(played, findings)
        if finding is not None:
            say(telling.found(finding, width, colour))
    _end_of(chapter, width)
    say()
    say(telling.side_by_side(recording.played, width, colour))
    say()
    wrong = next(played for played in recording.played if played.step.finding)
    say("The history of the request that contoso complains about:")
    events = [event for record in recording.records if isinstance(record, Batch) for event in record.events]
    history = build_history(Question(kind="request", value=wrong.request_id), events, findings)
    say(
        render_history(
            history, width=shutil.get_terminal_size().columns if sys.stdout.isatty() else None, colour=colour
        )
    )
    say()
    failed = problems(recording.played, findings)
    for sentence in failed:
        say(f"✗ {sentence}", style="red")
    if failed:
        sys.exit(1)
    say("✓ 2 wrong answers, 2 findings; 7 right answers, none.", style="green")
    say("Next: `kvtrail demo` plays this live, with Kafka, ClickHouse's engine and the model on this machine.")


def load(path: Path | None = None) -> Recording:
    """The recording at `path`, or the one that comes with kvtrail. Raises `ConfigError` where it cannot be read."""
    try:
        if path is not None:
            return read_recording(path.read_bytes())
        folder = importlib.resources.files(__package__).joinpath("recordings")
        return read_recording(folder.joinpath("incident.jsonl").read_bytes())
    except OSError as error:
        raise ConfigError(
            f"cannot be read ({error.strerror}).",
            field=str(path or "recording"),
            remedy="`kvtrail demo --record FILE` writes one.",
        ) from error


def _end_of(chapter: Chapter | None, width: int) -> None:
    if chapter in telling.ENDS:
        say(telling.paragraph(telling.ENDS[chapter], width))
