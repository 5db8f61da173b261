"""A real full disk: a small tmpfs, where this test may mount one."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from kvtrail.cache_node.entry_store import EntryStore

from .rig import MIB, Rig, files, identity, same, tensors

SIZE = (MIB,)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs needs root")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("this machine does not let us mount a tmpfs")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def test_a_full_disk_stores_nothing_and_everything_else_goes_on(small_disk: Path) -> None:
    rig = Rig(small_disk / "nvme")

    def put(store: EntryStore, key: str) -> bool:
        return store.put(key, tensors(key, SIZE), identity(), tokens=1)

    with rig.open(capacity_bytes=1 << 40) as store:
        stored = [key for key in "abcdef" if put(store, key)]
        assert stored == ["a", "b", "c"]
        assert (store.stats().not_stored, store.stats().full) == (3, 3)
        assert files(rig.directory, "tmp") == []
        for key in stored:
            assert same(store.get(key, identity()), key, SIZE)
        assert store.get("d", identity()) is None
        store.invalidate("a")
        assert put(store, "d")
        assert same(store.get("d", identity()), "d", SIZE)
    with rig.open(capacity_bytes=1 << 40) as store:
        assert store.stats().entries == 3
        assert store.stats().refused == 0
    assert sum(event.type == "create" for event in rig.drain()) == 4
