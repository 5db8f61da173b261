"""Which event belongs to which request: a bounded window over one partition of `kvtrail.context`. Pure.

A context and an event are joined where the broker appended them no further apart than the window, in either order,
while nothing in the window contradicts the context. So what a window knows follows from its own records: one that is
read again from `low` knows the same, and may at most join once more what had been joined.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from ..schemas.context import DIMENSIONS_KNOWN, RequestContext, resolution
from ..schemas.events import Event


class Kept(NamedTuple):
    """A record that may still matter."""

    offset: int
    append_us: int
    record: RequestContext | Event


Said = tuple[str | None, ...]


@dataclass(slots=True)
class Request:
    """What the window holds of one request: how many contexts say what, and the events that wait, oldest first."""

    said: dict[Said, int] = field(default_factory=dict)
    waiting: deque[Event] = field(default_factory=deque)
    context: RequestContext | None = None

    @property
    def torn(self) -> bool:
        """Whether contexts contradict each other."""
        return len(self.said) > 1


class Window:
    """One partition's window. `low`: the offset of the oldest record that may still matter.

    `joined`: resolutions made; `torn`: contexts that contradicted another one of their request; `expired`: events that
    were given up without an identity.
    """

    def __init__(self, window_us: int, limit: int) -> None:
        self.low = 0
        self.joined = self.torn = self.expired = 0
        self._window_us, self._limit = window_us, limit
        self._kept: deque[Kept] = deque()
        self._requests: dict[str, Request] = {}

    @property
    def kept(self) -> int:
        """Contexts and events that are kept; an event that was joined is kept no longer than it is in the way."""
        return len(self._kept)

    def take(self, offset: int, append_us: int, record: RequestContext | Event | None) -> Iterator[Event]:
        """One record (None: a refused one); yields the resolutions it makes possible."""
        self._forget(append_us)
        self.low = self._kept[0].offset if self._kept else offset
        if record is None:
            return
        request = self._requests.setdefault(record.request_id, Request())
        if isinstance(record, RequestContext):
            self._kept.append(Kept(offset, append_us, record))
            yield from self._told(request, record)
        elif request.torn:
            self.expired += 1
        elif request.said and request.context is not None:
            self.joined += 1
            yield resolution(record, request.context)
        else:
            self._kept.append(Kept(offset, append_us, record))
            request.waiting.append(record)

    def _told(self, request: Request, context: RequestContext) -> Iterator[Event]:
        said = _said(context)
        request.said[said] = request.said.get(said, 0) + 1
        if request.torn:
            # Somebody uses another's request id, or an id twice: what comes now may be of either.
            self.torn += 1
        request.context = context  # the newest leaves the window last
        while request.waiting:  # only a first context finds any
            self.joined += 1
            yield resolution(request.waiting.popleft(), context)

    def _forget(self, append_us: int) -> None:
        kept = self._kept
        while kept and (append_us - kept[0].append_us > self._window_us or len(kept) >= self._limit):
            record = kept.popleft().record
            request = self._requests.get(record.request_id)
            if request is None:
                continue  # an event that was joined, and its contexts are gone
            if isinstance(record, RequestContext):
                said = _said(record)
                request.said[said] -= 1
                if not request.said[said]:
                    del request.said[said]
            elif request.waiting and request.waiting[0] is record:
                request.waiting.popleft()
                self.expired += 1
            if not request.said and not request.waiting:
                del self._requests[record.request_id]


def _said(context: RequestContext) -> Said:
    return tuple(getattr(context, name) for name in DIMENSIONS_KNOWN)
