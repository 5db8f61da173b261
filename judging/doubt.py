"""The benefit of the doubt: what two nodes did within the skew of their clocks has no order.

The log orders what reached it, which is not what happened: a record waits in its node, and another overtakes it. So a
hit is guilty only if it is guilty of every instance that may have lived at its address when it happened. What one node
did has an order: its lanes are numbered.
"""

from collections.abc import Iterator

from ..schemas.events import Event
from .ledger.addresses import REPLACED
from .ledger.home import Held, Home
from .ledger.rows import Dated, Mark, Row, precedes


def may_have_lived(home: Home, held: Held, skew_us: int) -> Iterator[Row]:
    """Instances at a hit's address of which nobody can say that they had not begun, or were over, when it happened."""
    rows, moment = home.at(held.event), Moment(held)
    if not _in_doubt(home, rows, moment, skew_us):
        return
    for row in rows:
        if not precedes(moment, row, skew_us) and not _was_over(home, row, rows, moment, skew_us):
            yield row


def order_for(held: Held, row: Row, skew_us: int) -> int:
    """An order for the hit at which the row had begun and, if that may be, had been committed."""
    order = max(held.order, row.order + 1)
    commit = row.rare.commit
    if commit is not None and not precedes(Moment(held), commit, skew_us):
        order = max(order, commit.order + 1)
    return order


def surely_before(owner: Row, event: Event, order: int, skew_us: int) -> bool:
    """Whether an instance had been created before a hit at `order`, beyond doubt."""
    if owner.lane.node == event.node:
        return owner.order < order
    return event.time_us - owner.time_us > skew_us


def ended_before(row: Row, newer: Row, skew_us: int) -> bool:
    """Whether an instance may have ended before a newer one was made, although its end was told later."""
    end = row.end
    if end is None or end.reason == REPLACED or end.node == newer.lane.node:
        return False
    return end.time_us <= newer.time_us + skew_us


class Moment:
    """When and where a hit happened, comparable to creates and marks."""

    __slots__ = ("node", "order", "time_us")

    def __init__(self, held: Held) -> None:
        self.node, self.order, self.time_us = held.event.node, held.order, held.event.time_us


def _in_doubt(home: Home, rows: list[Row], moment: Moment, skew_us: int) -> bool:
    """Whether something at an address has no order with the moment, or an end none with what it may have ended."""
    marks: list[Mark] = []
    for row in rows:
        found = (row.rare.commit, row.end, home.addresses.barrier_of(row))
        marks += [mark for mark in found if mark is not None]
    changes: list[Dated] = [*rows, *marks]
    if any(_unordered(change, moment, skew_us) or _overtaken(change, moment, skew_us) for change in changes):
        return True
    return any(_unordered(mark, row, skew_us) for mark in marks for row in rows)


def _unordered(one: Dated, two: Dated, skew_us: int) -> bool:
    return one.node != two.node and abs(one.time_us - two.time_us) <= skew_us


def _overtaken(change: Dated, moment: Moment, skew_us: int) -> bool:
    """Whether the log has a change after the moment that was surely before it: its record was long on its way."""
    return change.order > moment.order and precedes(change, moment, skew_us)


def _was_over(home: Home, row: Row, rows: list[Row], moment: Moment, skew_us: int) -> bool:
    """Whether it had been replaced, swept away or ended before the moment, beyond doubt."""
    addresses, others = home.addresses, [other for other in rows if other is not row]
    for other in others:
        between = precedes(row, other, skew_us) and precedes(other, moment, skew_us)
        if between and other.rare.readable and addresses.slot(other) == addresses.slot(row):
            return True
    barrier = addresses.barrier_of(row)
    if barrier is not None and precedes(barrier, moment, skew_us):
        return True
    end = row.end
    if end is None or end.reason == REPLACED or not precedes(end, moment, skew_us):
        return False
    # Its end may be another's, made about then: until that has one too, neither has surely ended.
    return all(
        precedes(end, other, skew_us)
        or precedes(other, row, skew_us)
        or not addresses.means(end, other)
        or _ended_too(other, moment, skew_us)
        for other in others
    )


def _ended_too(row: Row, moment: Moment, skew_us: int) -> bool:
    return row.end is not None and row.end.reason != REPLACED and precedes(row.end, moment, skew_us)
