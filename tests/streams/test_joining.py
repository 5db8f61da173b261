"""The window: who is joined to whom, what is forgotten, and that a window read again joins the same."""

from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st
from kvtrail.schemas.context import RequestContext, resolution
from kvtrail.schemas.events import Event, Hit
from kvtrail.streams.joining import Window
from kvtrail.streams.resolutions import runs_of

SECOND = 1_000_000
Step = tuple[int, RequestContext | Event | None]
"""When the broker appended what."""


def event(seq: int, request_id: str, home: str = "n:gpu-1") -> Event:
    return Event(
        node="gpu-1", incarnation="i", home=home, seq=seq, time_us=seq, body=Hit(), request_id=request_id
    )  # fmt: skip


def context(request_id: str, tenant_id: str = "contoso") -> RequestContext:
    return RequestContext(request_id=request_id, tenant_id=tenant_id, at_us=0)


def take(window: Window, steps: Iterable[Step], first: int = 0) -> list[tuple[int, Event]]:
    """(offset at which it became possible, resolution)"""
    found = []
    for offset, (at, record) in enumerate(steps, first):
        found += [(offset, made) for made in window.take(offset, at, record)]
    return found


def test_a_context_may_come_before_or_after_and_serves_every_event_of_its_request() -> None:
    window = Window(10 * SECOND, 100)
    steps: list[Step] = [
        (0, event(1, "a")),
        (1, event(2, "a")),
        (2, event(3, "b")),
        (3, context("a")),
        (4, event(4, "a")),
    ]
    assert take(window, steps) == [
        (3, resolution(event(1, "a"), context("a"))),
        (3, resolution(event(2, "a"), context("a"))),
        (4, resolution(event(4, "a"), context("a"))),
    ]
    assert (window.joined, window.kept, window.low) == (3, 4, 0)


def test_two_contexts_that_contradict_each_other_resolve_nothing_more() -> None:
    window = Window(10 * SECOND, 100)
    same: list[Step] = [(0, context("a")), (0, context("a")), (0, event(1, "a"))]
    assert len(take(window, same)) == 1
    torn: list[Step] = [(0, context("a", "northwind")), (0, event(2, "a")), (0, context("a")), (0, event(3, "a"))]
    assert take(window, torn, 3) == []
    assert (window.torn, window.expired) == (2, 2)
    # Once only one of them is in the window, it counts.
    assert len(take(window, [(20 * SECOND, context("a")), (20 * SECOND, event(4, "a"))], 7)) == 1


def test_what_is_older_than_the_window_is_forgotten() -> None:
    window = Window(10 * SECOND, 100)
    steps: list[Step] = [(0, event(1, "a")), (5 * SECOND, context("b")), (11 * SECOND, None)]
    assert take(window, steps) == []
    assert (window.expired, window.low, window.kept) == (1, 1, 1)
    assert take(window, [(12 * SECOND, context("a")), (16 * SECOND, event(2, "b"))], 3) == []
    assert window.low == 3


def test_no_more_than_the_limit_is_kept_the_newest_of_it() -> None:
    window = Window(10 * SECOND, 50)
    take(window, [(0, event(n, f"r{n}")) for n in range(1, 1001)])
    assert window.kept == 50 and window.expired == 950
    assert len(take(window, [(0, context(f"r{n}")) for n in range(1, 1001)], 1000)) <= 50
    # One request alone is bounded too.
    take(window, [(0, event(n, "same")) for n in range(1, 1001)], 2000)
    assert window.kept <= 50


RECORDS = st.one_of(
    st.builds(context, st.sampled_from("abc"), st.sampled_from(["contoso", "northwind"])),
    st.builds(event, st.integers(1, 9), st.sampled_from("abc")),
    st.none(),
)
STEPS = st.lists(st.tuples(st.integers(0, 5), RECORDS), max_size=40)


@settings(max_examples=300)
@given(STEPS, st.data())
def test_a_window_read_again_from_low_joins_the_same(gaps: list[Step], data: st.DataObject) -> None:
    """A crash loses no join, and adds none: at most one that had been sent before is sent again."""
    steps: list[Step] = []
    for gap, record in gaps:
        steps.append(((steps[-1][0] if steps else 0) + gap * SECOND, record))
    undisturbed = take(Window(8 * SECOND, 1000), steps)
    stop = data.draw(st.integers(0, len(steps)))
    first = Window(8 * SECOND, 1000)
    before = take(first, steps[:stop])
    again = Window(8 * SECOND, 1000)
    after = [made for made in take(again, steps[first.low :], first.low) if made[0] >= stop]
    wanted = [made for made in undisturbed if made[0] >= stop]
    assert [made for made in after if made in wanted] == wanted
    assert {made.id for _, made in after if (_, made) not in wanted} <= {made.id for _, made in before}


def test_runs_are_contiguous_bounded_and_hold_each_once() -> None:
    made = [resolution(event(n, "a"), context("a")) for n in (5, 1, 2, 2, 3, 7, *range(100, 300))]
    made += [resolution(event(4, "a", home="s:pool:1"), context("a"))]
    runs = [[one.seq for one in run] for run in runs_of(made)]
    assert runs == [[1, 2, 3], [5], [7], [*range(100, 228)], [*range(228, 300)], [4]]
    assert list(runs_of([])) == []
