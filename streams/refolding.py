"""What compares several homes, over history that is judged again: observations of one partition after the other, folded
in the order of the whole fleet's log.

They wait in files, since the last partition's first may be the next to be folded. The fold is the fleet worker's own.
"""

import tempfile
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heapreplace
from typing import IO

from ..judging.fleet import FleetJudge
from ..schemas.config import Config
from ..schemas.findings import Finding
from .fleet_state import FleetState
from .observing import Observations, Observed, pack, unpack

CAUSES = frozenset({"KEY_DRIFT", "PREFIX_PROBING", "COMPONENT_MISSING"})
"""What a fleet worker finds."""
OF_ALL_HISTORY = frozenset({"KEY_DRIFT", "PREFIX_PROBING"})
"""Of these, what counts from the first record on: a part of history gives other numbers."""
_ALL = 1 << 62
_LENGTH = 4


class Refold:
    """A context manager: the files are gone afterwards."""

    def __init__(self, config: Config) -> None:
        self._state = FleetState(FleetJudge(config.judging, config.deployment), config.fleet.request_s)
        self._files: dict[int, IO[bytes]] = {}

    def __enter__(self) -> "Refold":
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()

    def keep(self, partition: int, observed: Sequence[Observed]) -> None:
        """What a partition's judge has observed, in the order of its records."""
        if observed and partition not in self._files:
            self._files[partition] = tempfile.TemporaryFile()  # noqa: SIM115  # closed at the end of the whole
        for record in pack(partition, observed):
            self._files[partition].write(len(record).to_bytes(_LENGTH) + record)

    def findings(self, until_us: int) -> Iterator[Finding]:
        """New revisions, in order; the log's time goes on to `until_us`, which says what request is over."""
        waiting = [one for one in map(_next, map(_records, self._files.values())) if one is not None]
        heapify(waiting)
        while waiting:
            _, partition, at, record, following = waiting[0]
            self._state.take(partition, at, record)
            after = _next(following, at + 1)
            if after is None:
                heappop(waiting)
            else:
                heapreplace(waiting, after)
            yield from self._state.fold(waiting[0][0] - 1 if waiting else _ALL, _ALL, closing=False)
            self._state.resume  # noqa: B018  # lets go of what it would read again after a restart
        yield from self._state.fold(until_us, _ALL, closing=True)


_Waiting = tuple[int, int, int, Observations, Iterator[Observations]]
"""From when on the first record of a file is, its partition, its number, itself, and what follows it."""


def _records(file: IO[bytes]) -> Iterator[Observations]:
    file.seek(0)
    while length := file.read(_LENGTH):
        yield unpack(file.read(int.from_bytes(length)))


def _next(records: Iterator[Observations], number: int = 0) -> _Waiting | None:
    record = next(records, None)
    return None if record is None else (record.observed[0].append_us, record.partition, number, record, records)
