"""What names a home: the engine's side of the agent decides without the schemas, and as they do."""

from typing import Any

import pytest
from kvtrail.producers.placing import Homeless, homes_at
from kvtrail.schemas.errors import BadInput
from kvtrail.schemas.events import LONGEST_TEXT
from kvtrail.schemas.homes import node_home, shared_home, shared_homes
from kvtrail.schemas.reserved import HEARTBEAT_NODE, PREFIX
from kvtrail.schemas.wire import check_lane


@pytest.mark.parametrize("node", ["gpu-1", HEARTBEAT_NODE])
@pytest.mark.parametrize("owner", ["gpu-2", f"{PREFIX}x", PREFIX, "o" * (LONGEST_TEXT - 2), "o" * (LONGEST_TEXT - 1)])
def test_an_owner_is_taken_if_readers_take_its_home(node: str, owner: str) -> None:
    try:
        check_lane(node, "i1", node_home(owner), 1)
    except BadInput:
        with pytest.raises(Homeless, match="owner"):
            homes_at(False, False, "k", "kv", owner, node, 8)
    else:
        assert homes_at(False, False, "k", "kv", owner, node, 8) == (node_home(owner),)


@pytest.mark.parametrize(
    ("key", "store", "field"),
    [
        (None, "pool", "key"),
        (b"k", "pool", "key"),
        ("\ud800", "pool", "key"),
        ("k", 7, "store"),
        ("k", "\ud800", "store"),
        ("k", "s" * LONGEST_TEXT, "store"),
    ],
)
def test_a_shared_place_that_is_none_is_named(key: Any, store: Any, field: str) -> None:
    with pytest.raises(Homeless, match=field):
        homes_at(True, False, key, store, "", "gpu-1", 8)


def test_whole_stores_and_entries() -> None:
    assert homes_at(True, True, "", "pool", "", "gpu-1", 8) == shared_homes("pool", 8)
    assert homes_at(True, False, "schlüssel", "pool", "", "gpu-1", 8) == (shared_home("pool", "schlüssel", 8),)
