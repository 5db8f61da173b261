"""Long histories for people: what matters stays, runs of ordinary hits become one line."""

from collections.abc import Sequence

from msgspec import Struct

from ..schemas.events import Hit
from .history import Row


class Fold(Struct, frozen=True, kw_only=True):
    """A run of ordinary events, hits as far as possible, not shown one by one."""

    events: int
    tenants: tuple[str, ...]


def fold_rows(rows: Sequence[Row], most: int) -> list[Row | Fold]:
    """`rows` in at most about `most` lines; asked-for rows, findings and everything but hits is kept longest."""
    if len(rows) <= most:
        return list(rows)
    keep = {0, len(rows) - 1}
    few_asked = sum(row.asked for row in rows) <= most // 2
    order = (_asked_for, _found, _asked, _not_a_hit, _any) if few_asked else (_asked_for, _found, _not_a_hit, _any)
    for wanted in order:
        for index, row in enumerate(rows):
            if len(keep) >= most:
                break
            if wanted(row):
                keep.add(index)
    shown: list[Row | Fold] = []
    run: list[Row] = []
    for index, row in enumerate(rows):
        if index not in keep:
            run.append(row)
            continue
        if run:
            shown.append(_fold(run))
            run = []
        shown.append(row)
    return shown


def _fold(run: Sequence[Row]) -> Fold:
    tenants = dict.fromkeys(row.event.identity.tenant_id for row in run if row.event.identity is not None)
    return Fold(events=len(run), tenants=tuple(tenants))


def _asked_for(row: Row) -> bool:
    return row.asked and row.finding is not None


def _asked(row: Row) -> bool:
    return row.asked


def _found(row: Row) -> bool:
    return row.finding is not None


def _not_a_hit(row: Row) -> bool:
    return not isinstance(row.event.body, Hit)


def _any(row: Row) -> bool:
    return True
