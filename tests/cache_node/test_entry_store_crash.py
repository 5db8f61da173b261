"""A process that dies at any point of a write leaves the old entry or the new one, whole, and nothing else."""

import subprocess
import sys
from pathlib import Path

import pytest

from .crash_child import VERSIONS
from .rig import Rig, files, identity, same

POINTS = 70


@pytest.fixture(scope="module")
def crashes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One directory for each point at which a process was killed."""
    root = tmp_path_factory.mktemp("crashes")
    subprocess.run([sys.executable, "-m", "kvtrail.tests.cache_node.crash_child", root, "1", str(POINTS)], check=True)
    return root


def test_killed_at_every_point_of_a_write(crashes: Path) -> None:
    torn = ended = 0
    for point in range(1, POINTS):
        folder = crashes / str(point)
        done = (folder / "done").read_text().split()
        ended += "end" in done
        rig = Rig(folder / "nvme")
        with rig.open() as store:
            torn += store.stats().torn
            assert store.stats().refused == 0
            assert files(rig.directory, "tmp") == []
            # What `put` returned for is there; of what it was busy with, all or nothing.
            current = len(done) if "end" not in done else len(VERSIONS)
            allowed = VERSIONS[max(0, current - 1) : current + 1]
            entry = store.get("k", identity())
            if current:
                assert any(same(entry, version) for version in allowed)
            else:
                assert entry is None or same(entry, VERSIONS[0])
            for version in VERSIONS[:current]:
                assert same(store.get(f"k-{version}", identity()), version)
            for version in VERSIONS[current:]:
                extra = store.get(f"k-{version}", identity())
                assert extra is None or same(extra, version)
    # The points were real ones: some left a torn file, and the last ones lie behind the end.
    assert torn > 20
    assert 0 < ended < POINTS // 2
