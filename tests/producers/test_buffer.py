"""The buffer alone, step by step: where losses stand, and what wakes the sender."""

import asyncio
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from kvtrail.producers.buffer import NOTHING, PLAIN, Buffer, Item, Loss
from kvtrail.producers.lanes import homes_of
from kvtrail.producers.memory import MemoryTransport
from kvtrail.producers.publisher import LifecyclePublisher
from kvtrail.producers.sender_loop import Loop
from kvtrail.schemas.events import Expire


def item(key: str, owner: str = "") -> Item:
    return (1, Expire(reason="ttl"), key, None, "kv", "gpu", owner, "", PLAIN, NOTHING)


def buffer(limit: int, rung: list[int] | None = None) -> Buffer:
    bells: list[int] = [] if rung is None else rung
    return Buffer(limit, lambda one: homes_of(one, "n1", 8), lambda: bells.append(1), "n:n1")


def test_losses_stand_behind_what_was_accepted_before_them() -> None:
    full = buffer(2)
    full.put(item("a"))
    full.put(item("b"))
    full.put(item("lost"))
    full.put(item("lost", owner="n2"))
    full.put(item("lost"))
    taken = full.take() + full.take()
    full.staged = 0  # the sender is done with them
    full.put(item("c"))  # the loss in front of it takes the other place
    full.put(item("lost"))
    taken += full.take() + full.take() + full.take()
    assert [thing[2] if isinstance(thing, tuple) else thing.homes for thing in taken] == [
        "a", "b", {"n:n1": 2, "n:n2": 1}, "c", {"n:n1": 1},
    ]  # fmt: skip
    assert full.take() == []
    assert full.books() == ({"full": 4}, {})


def test_a_loss_that_was_taken_out_grows_no_more() -> None:
    full = buffer(1)
    full.staged = 1  # the sender holds one event
    full.put(item("lost"))
    (first,) = full.take()
    full.put(item("lost"))
    (second,) = full.take()
    assert isinstance(first, Loss) and isinstance(second, Loss)
    assert first.homes == second.homes == {"n:n1": 1}


def test_losses_and_markers_are_not_events() -> None:
    full = buffer(1)
    full.put(item("a"))
    full.put(item("lost"))
    full.mark(object())
    assert full.waiting() == 1


def test_a_finaliser_that_publishes_inside_a_call_does_not_hang() -> None:
    full = buffer(1)
    full.put(item("a"))

    class Dying:
        def __del__(self) -> None:
            full.put(item("lost"))

    with full._lock:  # as in the middle of a call that drops an event
        Dying()
    assert full.books() == ({"full": 1}, {})


def test_the_sender_is_woken_once_an_alarm() -> None:
    rung: list[int] = []
    quiet = buffer(100, rung)
    quiet.put(item("a"))
    assert rung == []
    quiet.alarm = 3
    for key in "bcdef":
        quiet.put(item(key))
    assert rung == [1]


def test_a_bell_that_cannot_be_rung_is_rung_at_the_next_call_and_costs_no_event() -> None:
    rung: list[int] = []

    def ring() -> None:
        rung.append(1)
        raise MemoryError

    broken = Buffer(100, lambda one: homes_of(one, "n1", 8), ring, "n:n1")
    broken.alarm = 1
    broken.put(item("a"))
    broken.put(item("b"))
    broken.lose("hit.key")
    broken.mark(object())
    assert len(rung) == 4 and broken.waiting() == 2


class Handled(deque[Any]):
    """A queue at whose end a signal handler comes in, and raises."""

    def append(self, thing: Any) -> None:
        super().append(thing)
        if type(thing) is tuple:
            raise TimeoutError


@pytest.mark.parametrize("name", ["create", "hit"])
def test_a_signal_handler_that_raises_in_a_call_does_not_make_it_count_twice(name: str) -> None:
    with LifecyclePublisher("n1", MemoryTransport()) as publisher:
        own = buffer(100)
        own.queue = Handled()
        its, publisher._buffer, publisher._put = publisher._buffer, own, own.put
        getattr(publisher, name)("k", None, store="kv", tier="gpu")
        assert own.waiting() == 1 and own.refused == {f"{name}.arguments": 1}
        publisher._buffer = its


def test_names_resolve_while_the_interpreter_exits() -> None:
    # Then every executor refuses work, as this one does.
    async def resolve() -> object:
        executor = ThreadPoolExecutor(1)
        executor.shutdown()
        asyncio.get_running_loop().set_default_executor(executor)
        return await asyncio.get_running_loop().getaddrinfo("localhost", 80)

    with asyncio.Runner(loop_factory=Loop) as runner:
        assert runner.run(resolve())
