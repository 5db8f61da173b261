"""What the store does, and that its events say exactly that."""

import errno
import os
from collections.abc import Iterable
from pathlib import Path

import pytest
from kvtrail.cache_node.entry_file import SealedHeader
from kvtrail.cache_node.entry_store import EntryStore
from kvtrail.cache_node.errors import StoreInUse
from kvtrail.cache_node.file_engine import BufferedEngine
from kvtrail.schemas.errors import InvalidField
from kvtrail.schemas.events import Create, Expire, Hit, Invalidate, NodeStart

from .rig import Rig, files, identity, same, tensors

ENTRY_BYTES = 4096 + 8192 + 4096 + 4096


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path / "nvme")


def put(store: EntryStore, key: str, tenant: str = "northwind", ttl_s: float | None = 300.0) -> bool:
    return store.put(
        key, tensors(key), identity(tenant), tokens=12, ttl_s=ttl_s, key_origin="asserted", request_id="r1"
    )


def test_a_hit_serves_the_creators_tensors_and_reports_the_requester(rig: Rig) -> None:
    with rig.open() as store:
        assert put(store, "k")
        rig.clock.advance(2)
        entry = store.get("k", identity("contoso"), key_origin="asserted", request_id="r2")
        assert same(entry, "k")
    start, create, hit = rig.drain()
    assert isinstance(start.body, NodeStart)
    assert isinstance(create.body, Create)
    assert isinstance(hit.body, Hit)
    assert (create.identity, hit.identity) == (identity("northwind"), identity("contoso"))
    assert (create.request_id, hit.request_id) == ("r1", "r2")
    assert (create.body.tokens, create.body.ttl_s, create.body.bytes) == (12, 300.0, ENTRY_BYTES)
    assert (hit.body.reused_tokens, hit.body.bytes_read, hit.body.age_s) == (12, ENTRY_BYTES, 2.0)
    assert hit.body.payload_digest == create.body.payload_digest is not None
    assert {(event.store, event.tier, event.key_origin) for event in (create, hit)} == {("kv", "nvme", "asserted")}


def test_a_miss_publishes_nothing(rig: Rig) -> None:
    with rig.open() as store:
        assert store.get("k", identity()) is None
        assert store.stats().misses == 1
    assert rig.types() == ["node_start"]


def test_the_first_start_says_that_nothing_survived_the_next_that_nvme_did(rig: Rig) -> None:
    for _ in range(2):
        rig.open().close()
    tiers = [event.body.surviving_tiers for event in rig.drain() if isinstance(event.body, NodeStart)]
    assert tiers == [(), ("nvme",)]


def test_entries_survive_a_restart(rig: Rig) -> None:
    with rig.open() as store:
        put(store, "k")
    with rig.open() as store:
        assert same(store.get("k", identity()), "k")
        assert store.stats().used_bytes == ENTRY_BYTES
    assert rig.types() == ["node_start", "create k", "node_start", "hit k"]


def test_a_ttl_ends_an_entry_at_the_lookup(rig: Rig) -> None:
    with rig.open() as store:
        put(store, "k", ttl_s=10)
        rig.clock.advance(9.99)
        assert store.get("k", identity()) is not None
        rig.clock.advance(0.01)
        assert store.get("k", identity()) is None
    last = rig.drain()[-1]
    assert last.body == Expire(reason="ttl")
    assert last.key == "k"
    assert files(rig.directory, "entries") == []


def test_a_sweep_ends_what_nobody_looks_up(rig: Rig) -> None:
    with rig.open() as store:
        put(store, "a", ttl_s=10)
        put(store, "b", ttl_s=20)
        put(store, "c", ttl_s=None)
        rig.clock.advance(15)
        assert store.sweep() == 1
        rig.clock.advance(10_000)
        assert store.sweep() == 1
    assert rig.types()[-2:] == ["expire a", "expire b"]


def test_a_ttl_goes_on_over_a_restart(rig: Rig) -> None:
    with rig.open() as store:
        put(store, "a", ttl_s=10)
        put(store, "b", ttl_s=100)
    rig.clock.advance(50)
    with rig.open() as store:
        assert store.stats().entries == 1
        rig.clock.advance(49)
        assert store.get("b", identity()) is not None
        rig.clock.advance(1)
        assert store.get("b", identity()) is None
    assert rig.types()[-4:] == ["node_start", "expire a", "hit b", "expire b"]


def test_a_jump_of_the_wall_clock_ends_nothing_and_makes_nobody_younger(rig: Rig) -> None:
    with rig.open() as store:
        put(store, "a", ttl_s=10)
        rig.clock.wall += 3600 * 10**9
        assert store.get("a", identity()) is not None
    rig.clock.wall -= 2 * 3600 * 10**9
    with rig.open() as store:
        rig.clock.advance(9)
        assert store.get("a", identity()) is not None
        rig.clock.advance(1)
        assert store.get("a", identity()) is None


def test_capacity_evicts_the_least_recently_used(rig: Rig) -> None:
    with rig.open(capacity_bytes=3 * ENTRY_BYTES) as store:
        for key in "abc":
            put(store, key)
        store.get("a", identity())
        put(store, "d")
        assert store.get("b", identity()) is None
        assert store.get("a", identity()) is not None
        assert store.stats().used_bytes == 3 * ENTRY_BYTES
    events = rig.drain()
    # The room is made before the new entry exists: its create comes behind the victim's expire.
    assert [f"{e.type} {e.key}" for e in events][-4:-1] == ["hit a", "expire b", "create d"]
    assert next(e.body for e in events if e.type == "expire") == Expire(reason="capacity")


def test_an_entry_larger_than_the_store_evicts_nobody(rig: Rig) -> None:
    with rig.open(capacity_bytes=2 * ENTRY_BYTES) as store:
        put(store, "a")
        assert not store.put("b", tensors("b", (3 * ENTRY_BYTES,)), identity(), tokens=1)
        assert store.stats().not_stored == 1
        assert store.get("a", identity()) is not None
    assert rig.types() == ["node_start", "create a", "hit a"]


def test_a_smaller_capacity_at_the_next_start_evicts_the_oldest(rig: Rig) -> None:
    with rig.open() as store:
        for index, key in enumerate("abc"):
            put(store, key)
            os.utime(store._directory.path(key), (index, index))
    with rig.open(capacity_bytes=2 * ENTRY_BYTES) as store:
        assert store.get("a", identity()) is None
        assert store.get("b", identity()) is not None
    assert rig.types()[-3:] == ["node_start", "expire a", "hit b"]


def test_invalidate_by_key(rig: Rig) -> None:
    with rig.open() as store:
        put(store, "k")
        assert store.invalidate("k", cause="policy changed", op_id="op-1")
        assert not store.invalidate("k")
        assert store.get("k", identity()) is None
    body = rig.drain()[-1].body
    assert body == Invalidate(scope="entry", cause="policy changed", op_id="op-1")
    assert files(rig.directory, "entries") == []


def test_invalidate_by_dimension(rig: Rig) -> None:
    with rig.open() as store:
        put(store, "a", "northwind")
        put(store, "b", "contoso")
        assert store.invalidate_where({"tenant_id": "contoso"}, op_id="op-2") == 1
        assert store.get("a", identity()) is not None
        assert store.get("b", identity()) is None
        with pytest.raises(InvalidField, match=r"where\.tenant"):
            store.invalidate_where({"tenant": "contoso"})
        assert store.invalidate_where({}) == 1
    bodies = [event.body for event in rig.drain() if event.type == "invalidate"]
    assert bodies[0] == Invalidate(scope="node", where={"tenant_id": "contoso"}, op_id="op-2")


def test_an_invalidation_whose_file_stays_says_partial(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with rig.open() as store:
        put(store, "k")
        monkeypatch.setattr(Path, "unlink", refuse)
        store.invalidate("k")
        assert store.get("k", identity()) is None
    body = rig.drain()[-1].body
    assert isinstance(body, Invalidate)
    assert body.outcome == "partial"


def test_a_replaced_entry_is_served_in_its_new_form(rig: Rig) -> None:
    with rig.open() as store:
        put(store, "k")
        store.put("k", tensors("other"), identity("contoso"), tokens=3)
        assert same(store.get("k", identity()), "other")
        assert store.stats().entries == 1
    assert rig.types() == ["node_start", "create k", "create k", "hit k"]


class Meanwhile(BufferedEngine):
    """Lets something happen between reading an entry and serving it."""

    def __init__(self) -> None:
        self.then: list[object] = []

    def read(self, path: Path) -> tuple[SealedHeader, memoryview]:
        result = super().read(path)
        while self.then:
            action = self.then.pop()
            assert callable(action)
            action()
        return result


def test_an_entry_that_is_invalidated_while_it_is_read_is_not_served(rig: Rig) -> None:
    engine = Meanwhile()
    with rig.open(engine=engine) as store:
        put(store, "k")
        engine.then = [lambda: store.invalidate("k")]
        assert store.get("k", identity()) is None
    assert rig.types() == ["node_start", "create k", "invalidate k"]


def test_an_entry_that_is_replaced_while_it_is_read_is_read_again(rig: Rig) -> None:
    engine = Meanwhile()
    with rig.open(engine=engine) as store:
        put(store, "k")
        engine.then = [lambda: store.put("k", tensors("other"), identity(), tokens=3)]
        assert same(store.get("k", identity()), "other")
    assert rig.types() == ["node_start", "create k", "create k", "hit k"]


@pytest.mark.parametrize("offset", [8, 2000, 4096, 9000, -1])
def test_a_changed_file_is_refused_and_the_lookup_is_a_miss(rig: Rig, offset: int) -> None:
    with rig.open() as store:
        put(store, "k")
        path = store._directory.path("k")
        raw = bytearray(path.read_bytes())
        raw[offset] ^= 0xFF
        path.write_bytes(raw)
        assert store.get("k", identity()) is None
        assert store.get("k", identity()) is None
        assert store.stats().refused == 1
        assert put(store, "k")
        assert same(store.get("k", identity()), "k")
    assert rig.types() == ["node_start", "create k", "expire k", "create k", "hit k"]
    assert next(e.body for e in rig.events if e.type == "expire") == Expire(reason="failed")
    assert len(files(rig.directory, "refused")) == 1


def test_without_verification_the_payload_is_trusted_and_its_digest_not_claimed(rig: Rig) -> None:
    with rig.open(verify=False) as store:
        put(store, "k")
        path = store._directory.path("k")
        raw = bytearray(path.read_bytes())
        raw[-1] ^= 0xFF
        path.write_bytes(raw)
        assert store.get("k", identity()) is not None
    body = rig.drain()[-1].body
    assert isinstance(body, Hit)
    assert body.payload_digest is None


def test_a_file_under_another_keys_name_is_never_served(rig: Rig) -> None:
    with rig.open() as store:
        put(store, "a")
        put(store, "b")
        store._directory.path("a").rename(store._directory.path("b"))
        assert store.get("b", identity()) is None
    with rig.open() as store:
        put(store, "a")
        other = store._directory.path("c")
        other.parent.mkdir(exist_ok=True)
        store._directory.path("a").rename(other)
    with rig.open() as store:
        assert store.get("c", identity()) is None
        assert store.stats().refused == 1


def test_a_file_that_somebody_deleted_is_a_miss(rig: Rig) -> None:
    with rig.open() as store:
        put(store, "k")
        store._directory.path("k").unlink()
        assert store.get("k", identity()) is None
    assert rig.types() == ["node_start", "create k", "expire k"]


def test_a_start_removes_torn_files_refuses_bad_ones_and_leaves_foreign_ones(rig: Rig) -> None:
    with rig.open() as store:
        for key in "abc":
            put(store, key)
        bad, cut = store._directory.path("a"), store._directory.path("b")
    bad.write_bytes(bytes(20_000))
    with cut.open("r+b") as stream:
        stream.truncate(9000)
    (rig.directory / "tmp" / "17.kv").write_bytes(b"half")
    foreign = bad.parent / "README"
    foreign.write_text("not ours")
    with rig.open() as store:
        stats = store.stats()
        assert (stats.entries, stats.torn, stats.refused) == (1, 1, 2)
        assert store.get("a", identity()) is None
        assert store.get("b", identity()) is None
        assert same(store.get("c", identity()), "c")
    assert foreign.read_text() == "not ours"
    assert files(rig.directory, "tmp") == []
    assert len(files(rig.directory, "refused")) == 2


def test_refused_files_do_not_pile_up(rig: Rig) -> None:
    for start in range(3):
        with rig.open() as store:
            for index in range(10):
                put(store, f"{start}-{index}")
        for path in files(rig.directory, "entries"):
            path.write_bytes(b"broken")
    rig.open().close()
    assert len(files(rig.directory, "refused")) == 16


def test_a_second_process_does_not_get_the_directory(rig: Rig) -> None:
    with rig.open() as store:
        put(store, "k")
        with pytest.raises(StoreInUse, match="directory"):
            Rig(rig.directory).open()
    with rig.open() as store:
        assert store.get("k", identity()) is not None


def test_a_closed_store_serves_and_stores_nothing(rig: Rig) -> None:
    store = rig.open()
    put(store, "k")
    store.close()
    store.close()
    assert store.get("k", identity()) is None
    assert not put(store, "k2")
    assert not store.invalidate("k")
    assert store.sweep() == 0


class Failing(BufferedEngine):
    """A device that fails after the first piece."""

    def __init__(self, code: int) -> None:
        self.code = code

    def write(self, path: Path, header: bytes, payload: Iterable[memoryview]) -> None:
        path.write_bytes(bytes(next(iter(payload))))
        raise OSError(self.code, os.strerror(self.code))


@pytest.mark.parametrize(("code", "full"), [(errno.ENOSPC, 1), (errno.EDQUOT, 1), (errno.EIO, 0), (errno.EROFS, 0)])
def test_a_device_that_fails_leaves_nothing_behind(rig: Rig, code: int, full: int) -> None:
    with rig.open(engine=Failing(code)) as store:
        assert not put(store, "k")
        assert store.get("k", identity()) is None
        assert (store.stats().not_stored, store.stats().full, store.stats().used_bytes) == (1, full, 0)
    assert rig.types() == ["node_start"]
    assert files(rig.directory, "tmp") == files(rig.directory, "entries") == []


def test_room_set_aside_for_a_failed_write_is_given_back(rig: Rig) -> None:
    engine = Failing(errno.EIO)
    with rig.open(engine=engine, capacity_bytes=ENTRY_BYTES) as store:
        for _ in range(3):
            assert not put(store, "k")
        store._engine = BufferedEngine()
        assert put(store, "k")
