"""What a notifier must not forget: as bytes, and back.

Saved now and then on `kvtrail.state`; what was decided and delivered since is on `kvtrail.notifications` and is taken
over from there. So a lost or stale snapshot costs time, never a second page.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from ..judging.errors import SnapshotError
from ..schemas.notifications import Decided, Entry, Notification
from .heartbeat_watch import HeartbeatWatch
from .notifier_policy import Pager
from .notifier_queue import TargetQueue, Waiting

VERSION = 1
_waiting = msgspec.json.Decoder(list[Waiting])


class State(Struct, kw_only=True):
    """The notifier's whole state. `offsets`: of the findings topic, the next record by partition; `journal`: of the
    notifications topic; `queues`: by target, also of targets that are configured no more."""

    pager: Pager
    watch: HeartbeatWatch
    queues: dict[str, TargetQueue] = {}
    offsets: dict[int, int] = {}
    journal: int = 0

    def dump(self) -> dict[str, Any]:
        """A copy that may be encoded in another thread."""
        return {
            "v": VERSION, "pager": self.pager.dump(), "beats": list(self.watch.last.items()),
            "offsets": list(self.offsets.items()), "journal": self.journal,
            "queues": {
                name: [msgspec.json.encode(queue.waiting), list(queue.settled.items())]
                for name, queue in self.queues.items()
            },
        }  # fmt: skip

    def load(self, raw: bytes) -> None:
        """Continue from what `dump` gave, encoded. Raises `SnapshotError`."""
        try:
            state = msgspec.msgpack.decode(raw, strict=False)
            if state["v"] != VERSION:
                raise SnapshotError("is of another version.", field="snapshot.v", remedy="It is built anew.")
            self.pager.load(state["pager"])
            self.watch.last.update({partition: at for partition, at in state["beats"] if partition in self.watch.last})
            self.offsets, self.journal = dict(state["offsets"]), state["journal"]
            for name, (waiting, settled) in state["queues"].items():
                queue = self.queues.setdefault(name, TargetQueue())
                queue.waiting = _waiting.decode(waiting)
                for one in queue.waiting:
                    one.recalled = True
                queue.settled = {cause_id: (episode, revision) for cause_id, (episode, revision) in settled}
        except (msgspec.DecodeError, msgspec.ValidationError, KeyError, TypeError, ValueError) as error:
            raise SnapshotError("is damaged.", field="snapshot", remedy="It is built anew.") from error

    def replay(self, entries: Iterable[Entry]) -> None:
        """Take over what was decided and delivered since."""
        for entry in entries:
            if isinstance(entry, Decided):
                self.pager.know(entry.notification)
                for name in entry.targets:
                    self.queues.setdefault(name, TargetQueue()).recall(entry.notification)
            else:
                self.queues.setdefault(entry.target, TargetQueue()).note(entry)

    def standing(self) -> list[Notification]:
        """What was told and still holds."""
        return [told for told in self.pager.told.values() if told.is_open]


def encode(dumped: Mapping[str, Any]) -> bytes:
    """What `State.dump` gave, as bytes."""
    return msgspec.msgpack.encode(dumped)
