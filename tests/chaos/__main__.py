"""Kill what can be killed and compare with an undisturbed run: `python -m kvtrail.tests.chaos`.

By default the stream tier: broker, store, detectors, sinks, resolver, fleet worker and notifier are killed, paused,
stopped and restarted under load, and partitions are moved; then ClickHouse is compared, row by row, with one
undisturbed offline run over the same history, and what a webhook was told with what that run finds. `--producers` kills
producers instead, see `tests/producers/chaos.py`. Exit status 1 on any difference.
"""

import logging
import shutil
import sys
import tempfile
import time
from pathlib import Path

import click
from kvtrail.tests.chaos.run import Chaos
from kvtrail.tests.streams.comparison import Account

_SHOWN = 600
_ACTS = ("kill", "pause", "stop", "restart", "joins", "leaves", "ended by itself")


@click.command()
@click.option("--kills", default=50, show_default=True, help="kill -9; pauses, stops and moves come on top.")
@click.option("--seed", default=1, show_default=True)
@click.option("--gap", default=2.5, show_default=True, help="Mean seconds between two disturbances.")
@click.option("--events", default=30_000, show_default=True, help="Of the simulated fleet, spread over the whole run.")
@click.option("--faults", default=200, show_default=True, help="Injected into it.")
@click.option("--keep", type=click.Path(path_type=Path, file_okay=False), help="Keep logs, broker and store there.")
@click.option("--producers", is_flag=True, help="Kill a producer instead, and account for every event.")
def main(kills: int, seed: int, gap: float, events: int, faults: int, keep: Path | None, producers: bool) -> None:
    """Kill what can be killed, and compare."""
    if producers:
        from kvtrail.tests.producers.chaos import account_for

        sys.exit(account_for(kills, seed))
    # Its clients say every time that a broker which was killed is not there.
    for name in ("aiokafka", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    directory = keep or Path(tempfile.mkdtemp(prefix=f"kvtrail-chaos-{seed}-"))
    directory.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()

    def tell(what: str) -> None:
        click.echo(f"{time.monotonic() - started:7.1f} s  {what}", err=True)

    chaos = Chaos(directory, seed=seed, events=events, faults=faults, tell=tell)
    try:
        account = chaos.run(kills, gap)
    except BaseException as error:
        click.echo(f"not compared: {error!r}. Logs: {directory}", err=True)
        raise
    click.echo("\n".join(_told(chaos, account, seed, time.monotonic() - started)))
    if account.differences:
        text = "\n".join(map(str, account.differences))
        (directory / "differences.txt").write_text(text)
        click.echo("\n".join(line[:_SHOWN] for line in text.splitlines()), err=True)
        click.echo(f"Logs, broker, store and differences.txt: {directory}", err=True)
        sys.exit(1)
    if keep is None:
        shutil.rmtree(directory)


def _told(chaos: Chaos, account: Account, seed: int, took_s: float) -> list[str]:
    lines = [f"seed {seed}, {took_s:.0f} s"]
    for act in _ACTS:
        found = {what.removeprefix(f"{act} "): n for what, n in sorted(chaos.counts.items()) if what.startswith(act)}
        if found:
            lines.append(f"{act:16}{sum(found.values()):4}  " + ", ".join(f"{name} {n}" for name, n in found.items()))
    lines.append(f"producers: {chaos.traffic.sent_again} group(s) of records sent again")
    lines.append("compared: " + ", ".join(f"{rows} {what}" for what, rows in account.compared.items()))
    if chaos.told is not None:
        told = chaos.told
        lines.append(
            f"told: {told.notifications} notifications, {told.repeats} of them again under the same id; of "
            f"{told.incidents + told.missing} incidents that stand {told.missing} missing"
        )
    lines.append(f"differences: {len(account.differences)}")
    return lines


if __name__ == "__main__":
    main()
