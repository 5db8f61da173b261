"""Which tallies the agent's sweep closes, and which it leaves alone."""

import asyncio
from pathlib import Path

from kvtrail.producers.agent_sweep import Sweep
from kvtrail.producers.lanes import Packed
from kvtrail.producers.tally import TALLY, Tally


class Declared:
    """What a sweep declares, of a folder in which an engine has given out two numbers and told nobody."""

    def __init__(self, folder: Path) -> None:
        self.homes: dict[str, int] = {}
        folder.mkdir(parents=True)
        tally = Tally(folder / TALLY, "gpu-1", "1")
        tally.marks("n:gpu-1")
        tally.count("n:gpu-1")
        tally.count("n:gpu-1")
        tally.close()

    async def __call__(self, home: str, packed: Packed) -> None:
        self.homes[home] = packed.first


def test_an_engine_is_closed_when_it_is_no_longer_served(tmp_path: Path) -> None:
    declared = Declared(tmp_path / "n-gpu-1" / "1")
    served = {("gpu-1", "1")}
    sweep = Sweep(tmp_path, served, declared)
    asyncio.run(sweep.once())
    assert declared.homes == {} and (tmp_path / "n-gpu-1" / "1" / TALLY).exists()
    served.clear()
    asyncio.run(sweep.once())
    assert declared.homes == {"n:gpu-1": 3} and not (tmp_path / "n-gpu-1" / "1").exists()


def test_a_link_leads_the_sweep_nowhere_else(tmp_path: Path) -> None:
    declared = Declared(tmp_path / "elsewhere" / "n-gpu-1" / "1")
    tallies = tmp_path / "tallies"
    tallies.mkdir()
    (tallies / "n-gpu-1").symlink_to(tmp_path / "elsewhere" / "n-gpu-1")
    (tallies / "n-gpu-2").mkdir()
    (tallies / "n-gpu-2" / "1").symlink_to(tmp_path / "elsewhere" / "n-gpu-1" / "1")
    asyncio.run(Sweep(tallies, set(), declared).once())
    assert declared.homes == {} and (tmp_path / "elsewhere" / "n-gpu-1" / "1" / TALLY).exists()
