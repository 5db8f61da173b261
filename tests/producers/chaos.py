"""Kill producers hundreds of times and account for every event: `python -m kvtrail.tests.producers.chaos`.

In the process: each life publishes from three threads over a dozen lanes into a spool and a file that is away half of
the time, and is killed at a random moment. Through an agent: the engine, the agent, or both are killed. Afterwards a
last one comes to its end, and what arrived and what is declared missing are compared with what had been accepted. Exit
status 1 when they differ.
"""

import random
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from .agent_chaos import Processes, turmoil
from .reading import decode
from .test_kills import Life, account, live

TRANSPORTS = ("process", "agent")
LAST_LIVES = 20


@click.command()
@click.option("--kills", default=200, show_default=True, help="Of each transport.")
@click.option("--seed", default=1, show_default=True)
@click.option("--longest", default=0.6, show_default=True, help="Seconds of the longest life.")
@click.option("--transport", type=click.Choice(TRANSPORTS), help="One of them only.")
def main(kills: int, seed: int, longest: float, transport: str | None) -> None:
    """Print the account."""
    sys.exit(account_for(kills, seed, longest, [transport] if transport else TRANSPORTS))


def account_for(kills: int, seed: int, longest: float = 0.6, transports: Sequence[str] = TRANSPORTS) -> int:
    """Print the account; the exit status."""
    return max(_account(transport, kills, random.Random(seed), longest) for transport in transports)


def _account(transport: str, kills: int, chance: random.Random, longest: float) -> int:
    folder = Path(tempfile.mkdtemp(prefix=f"kvtrail-chaos-{transport}-"))
    run = _in_process if transport == "process" else _through_agent
    lives, what, left = run(folder, kills, chance, longest)
    try:
        found = account(decode((folder / "history.jsonl").read_bytes().splitlines()), lives)
    except AssertionError as error:
        click.echo(f"{what}, folders left {left}: the account does not add up: {error}; kept: {folder}", err=True)
        return 1
    shutil.rmtree(folder)
    click.echo(
        f"{what}: accepted {found.accepted}, received {found.received}, declared missing {found.missing}, "
        f"lost {found.lost}, out of order 0, folders left {left}"
    )
    return 1 if found.lost or left else 0


def _in_process(folder: Path, kills: int, chance: random.Random, longest: float) -> tuple[list[Life], str, int]:
    away, lives = folder / "away", []
    for number in range(kills):
        away.touch() if chance.random() < 0.5 else away.unlink(missing_ok=True)
        lives.append(live(folder, number, calls=10_000_000, after_s=chance.uniform(0.0, longest)))
    away.unlink(missing_ok=True)
    for number in range(kills, kills + LAST_LIVES):  # each sends for fifty seconds at most when it closes
        lives.append(live(folder, number, calls=100, after_s=None))
        if not list((folder / "spool").glob("*/*")):
            break
    return lives, f"in process, {kills} kills", len(list((folder / "spool").glob("*/*")))


def _through_agent(folder: Path, kills: int, chance: random.Random, longest: float) -> tuple[list[Life], str, int]:
    processes = Processes(folder)
    away = folder / "away"

    def shut(now: bool) -> None:
        away.touch() if now else away.unlink(missing_ok=True)

    try:
        killed = turmoil(processes, kills, chance, longest, away=shut)
    finally:
        processes.close()
    what = f"agent, {killed['engine']} kills of the engine and {killed['agent']} of the agent"
    return processes.lives, what, len(processes.left())


if __name__ == "__main__":
    main()
