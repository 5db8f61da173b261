"""When refusing records stops being right: a worker that refuses nearly everything is itself the likely fault. Pure.

A bad record becomes a dead letter and its neighbours proceed. A bad deployment (a decoder that cannot read what the
fleet sends, a table without a column) would turn a whole topic into dead letters in minutes; so each partition has
limits, in a row and by share, and the worker that reaches one stops before it goes on.
"""

from collections import deque
from collections.abc import Iterable

from ..schemas.envelope import Batch
from ..schemas.errors import KvtrailError

WINDOW = 1000
"""Records over which the share is taken; until so many were seen, only the limit in a row holds."""


class TooManyRefused(KvtrailError):
    """A partition's records are being refused one after the other. A person has to look before it goes on."""

    code = "too_many_refused"


def refused(batch: Batch) -> bool:
    """Whether a record counts: nothing in it could be read, or at least half of its events were refused. A single bad
    event beside good ones is what dead letters are for, however often a producer sends it."""
    return bool(batch.rejects) and len(batch.rejects) >= len(batch.events)


class RefusalLimit:
    """The limits of one partition. `in_a_row` 0 and `share` 1 mean no limit."""

    def __init__(self, where: str, section: str, *, in_a_row: int, share: float) -> None:
        self._where = where
        self._section = section
        self._in_a_row = in_a_row
        self._share = share
        self._row = 0
        self._window: deque[bool] = deque(maxlen=WINDOW)
        self._refused = 0

    def recall(self, earlier: Iterable[bool]) -> None:
        """What happened to the records just before the first one, oldest first: a restart forgives nothing."""
        for was_refused in earlier:
            self._note(was_refused)

    def take(self, was_refused: bool) -> None:
        """Count one record, before anything is done about it. Raises `TooManyRefused`."""
        self._note(was_refused)
        if not was_refused:
            return
        if self._in_a_row and self._row >= self._in_a_row:
            raise self._stop(f"{self._row} records in a row were refused", "refused_in_a_row", "0")
        if len(self._window) == WINDOW and self._refused > self._share * WINDOW:
            raise self._stop(f"{self._refused} of the last {WINDOW} records were refused", "refused_share", "1")

    def _note(self, was_refused: bool) -> None:
        if len(self._window) == WINDOW:
            self._refused -= self._window[0]
        self._window.append(was_refused)
        self._refused += was_refused
        self._row = self._row + 1 if was_refused else 0

    def _stop(self, what: str, setting: str, off: str) -> TooManyRefused:
        return TooManyRefused(
            f"{what}; nothing more is taken from this partition.",
            field=self._where,
            remedy="Look at them (`kvtrail dead-letter list`), and roll back the worker or the producer that was "
            f"deployed last. To let them all through as dead letters, set {self._section}.{setting} to {off}.",
        )
