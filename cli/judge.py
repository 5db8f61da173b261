"""`kvtrail judge`: recorded histories and scenarios through the judging core, offline."""

import json
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import msgspec

from ..audit import wording
from ..audit.incidents import fold_incidents
from ..audit.listing import SHORT_ID
from ..judging.examination import Result, examine
from ..judging.incidents import Incident, fold
from ..judging.offline import judge_history
from ..judging.scenarios import parse_scenario
from ..schemas.config import load_config
from ..schemas.dimensions import Severity
from ..schemas.envelope import Batch, EnvelopeDecoder
from ..schemas.errors import BadInput, InvalidField
from ..schemas.facts import Fact, decode_fact
from ..schemas.findings import Finding
from ..schemas.identity import titles

_SCENARIOS = (".yaml", ".yml")
HISTORIES = (".jsonl", ".ndjson", ".json")


class Lines:
    """Records of JSON Lines files; what is refused is said on stderr, counted, and the rest proceeds."""

    def __init__(self, paths: list[Path]) -> None:
        self._paths = paths
        self.refused = 0

    def __iter__(self) -> Iterator[Fact | Batch]:
        decoder = EnvelopeDecoder()
        for path in self._paths:
            with path.open("rb") as stream:
                for number, raw in enumerate(stream, 1):
                    if not raw.strip():
                        continue
                    try:
                        yield from self._line(decoder, raw.strip(), f"{path.name}:{number}")
                    except BadInput as error:
                        self._refuse(f"{path.name}:{number}", error)

    def _line(self, decoder: EnvelopeDecoder, raw: bytes, where: str) -> Iterator[Fact | Batch]:
        if _is_about_a_run(raw):
            return
        fact = _fact(raw)
        if fact is not None:
            yield fact
            return
        batch = decoder.decode(raw)
        for reject in batch.rejects:
            self._refuse(where, reject.error)
        if batch.first is not None:
            yield batch

    def _refuse(self, where: str, error: BadInput) -> None:
        self.refused += 1
        if self.refused <= 20:
            click.echo(f"{where}: refused: {error}", err=True)


class _Wrapped(msgspec.Struct):
    fact: msgspec.Raw = msgspec.Raw()


class _Told(msgspec.Struct):
    recording: msgspec.Raw = msgspec.Raw()
    answer: msgspec.Raw = msgspec.Raw()
    v: msgspec.Raw = msgspec.Raw()


def _is_about_a_run(raw: bytes) -> bool:
    """Whether the line is one that `kvtrail demo --record` writes between the records, for people."""
    if b'"recording"' not in raw and b'"answer"' not in raw:
        return False
    try:
        told = msgspec.json.decode(raw, type=_Told)
    except msgspec.DecodeError:
        return False
    return not bytes(told.v) and bool(bytes(told.recording) or bytes(told.answer))


def _fact(raw: bytes) -> Fact | None:
    """The fact of a `{"fact": ...}` line, None for any other line."""
    if b'"fact"' not in raw:
        return None
    try:
        wrapped = msgspec.json.decode(raw, type=_Wrapped)
    except msgspec.DecodeError:
        return None
    return decode_fact(bytes(wrapped.fact)) if bytes(wrapped.fact) else None


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object for machines.")
@click.option("--retracted", is_flag=True, help="Show retracted findings too.")
@click.option(
    "--fail-on",
    type=click.Choice([severity.value for severity in Severity]),
    help="Exit with status 1 when a finding of a history stands that is at least this severe.",
)
def judge(paths: tuple[Path, ...], as_json: bool, retracted: bool, fail_on: str | None) -> None:
    """Judge recorded histories offline.

    PATHS are JSON Lines files (each line an envelope, a plain event, or {"fact": {...}}; a recording of `kvtrail demo`
    too), scenario files in YAML, or folders of them. Histories print their findings and incidents; findings are no
    failure of the command, so the exit status is 0 unless --fail-on asks for more. Scenarios print expected and found,
    and the exit status is 1 when one is wrong.
    """
    scenarios, histories = _sorted(paths)
    results = [_scenario(path) for path in scenarios]
    findings: list[Finding] = []
    lines = Lines(histories)
    if histories:
        config = load_config()
        findings = judge_history(lines, config.judging, config.deployment, retracted=retracted)
    incidents = fold(findings)
    if as_json:
        _print_json(results, findings, incidents, lines.refused)
    else:
        if results:
            _print_results(results)
        if histories:
            _print_findings(findings, incidents, lines.refused)
    least = Severity(fail_on).rank if fail_on else None
    loud = least is not None and any(one.status == "open" and one.severity.rank >= least for one in findings)
    if loud or any(result.wrong for result in results):
        sys.exit(1)


def _sorted(paths: Iterable[Path]) -> tuple[list[Path], list[Path]]:
    scenarios: list[Path] = []
    histories: list[Path] = []
    for path in paths:
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.suffix in _SCENARIOS:
                scenarios.append(file)
            elif file.suffix in HISTORIES or not path.is_dir():
                histories.append(file)
    if not scenarios and not histories:
        raise InvalidField(
            "holds neither histories nor scenarios.",
            field="PATHS",
            remedy="Name .jsonl or .yaml files, or their folder.",
        )
    return scenarios, histories


def _scenario(path: Path) -> Result:
    import yaml  # not part of the base installation

    try:
        document: Any = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise InvalidField(f"is not YAML ({error}).", field=path.name, remedy="Mend the file.") from None
    try:
        return examine(parse_scenario(document, path.stem))
    except BadInput as error:  # the other cases are judged all the same
        return Result(id=path.stem, title="cannot be read", expected=(), found=(), wrong=(str(error),))


def _print_json(results: list[Result], findings: list[Finding], incidents: list[Incident], refused: int) -> None:
    click.echo(
        json.dumps(
            {
                "scenarios": msgspec.to_builtins(results),
                "findings": msgspec.to_builtins(findings),
                "incidents": [{**msgspec.to_builtins(one), "title": one.title} for one in incidents],
                "refused": refused,
            },
            indent=2,
        )
    )


def _print_results(results: list[Result]) -> None:
    width = max(len(result.id) for result in results)
    for result in results:
        mark = "wrong" if result.wrong else "ok"
        click.echo(f"{result.id:<{width}}  {mark:<5}  {result.title}")
        expected = result.expected or ("no finding",)
        found = result.found or ("no finding",)
        for index in range(max(len(expected), len(found))):
            left = expected[index] if index < len(expected) else ""
            right = found[index] if index < len(found) else ""
            click.echo(f"{'':<{width}}    expected {left:<64} found {right}")
        for wrong in result.wrong:
            click.echo(f"{'':<{width}}    WRONG    {wrong}")
    right_ones = sum(not result.wrong for result in results)
    click.echo(f"{right_ones} of {len(results)} cases right")


def _print_findings(findings: list[Finding], incidents: list[Incident], refused: int) -> None:
    for finding in sorted(findings, key=lambda one: (one.event_time_us, one.subject)):
        click.echo(_line(finding))
    if incidents:
        click.echo("")
        for one in fold_incidents(findings):
            click.echo(f"incident {one.cause_id[:SHORT_ID]}  {one.severity.value:<8}  {one.cause}  {one.sentence}")
    total = sum(finding.status == "open" for finding in findings)
    counted = f"{wording.plural(total, 'finding')}, {wording.plural(len(incidents), 'incident')}"
    click.echo(counted + (f", {refused} refused" if refused else ""))


def _line(finding: Finding) -> str:
    time = datetime.fromtimestamp(finding.event_time_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S")
    names = titles(difference.dimension for difference in finding.differing)
    parts = [f"{finding.severity.value:<8}", time, finding.cause]
    if finding.key:
        parts.append(f"key={_short(finding.key)}")
    creator, requester = finding.creator, finding.requester
    if creator is not None and creator.tenant_id:
        parts.append(f"created by {creator.tenant_id}")
    if requester is not None and requester.tenant_id:
        parts.append(f"asked by {requester.tenant_id}")
    parts.append(f"differing: {names}" if names else finding.title)
    if finding.status == "retracted":
        parts.append(f"[retracted: {finding.reason}]")
    elif not finding.complete:
        parts.append("[incomplete history]")
    return "  ".join(parts)


def _short(key: str) -> str:
    return f"{key[:16]}…" if len(key) > 32 else key
