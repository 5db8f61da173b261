"""Kill a producer hundreds of times and account for every event: `python -m kvtrail.tests.producers.chaos`.

Each life publishes from three threads over a dozen lanes into a spool and a file that is away half of the time, and is
killed at a random moment. Afterwards a last one comes to its end, and what arrived and what is declared missing are
compared with what had been accepted. Exit status 1 when they differ.
"""

import random
import sys
import tempfile
from pathlib import Path

import click

from .reading import decode
from .test_kills import account, live


@click.command()
@click.option("--kills", default=200, show_default=True)
@click.option("--seed", default=1, show_default=True)
@click.option("--longest", default=0.6, show_default=True, help="Seconds of the longest life.")
def main(kills: int, seed: int, longest: float) -> None:
    """Print the account."""
    sys.exit(account_for(kills, seed, longest))


def account_for(kills: int, seed: int, longest: float = 0.6) -> int:
    """Print the account; the exit status."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        away = folder / "away"
        lives = []
        for number in range(kills):
            away.touch() if chance.random() < 0.5 else away.unlink(missing_ok=True)
            lives.append(live(folder, number, calls=10_000_000, after_s=chance.uniform(0.0, longest)))
        away.unlink(missing_ok=True)
        lives.append(live(folder, kills, calls=100, after_s=None))
        try:
            found = account(decode((folder / "history.jsonl").read_bytes().splitlines()), lives)
        except AssertionError as error:
            click.echo(f"the account does not add up: {error}", err=True)
            return 1
        left = len(list((folder / "spool").glob("*/*")))
    click.echo(
        f"{kills} kills: accepted {found.accepted}, received {found.received}, declared missing {found.missing}, "
        f"lost {found.lost}, out of order 0, folders left {left}"
    )
    return 1 if found.lost or left else 0


if __name__ == "__main__":
    main()
