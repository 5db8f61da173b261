"""What one target is still to be told, in order. Pure.

Made of the same entries, in whatever state it begins, it comes to the same: what is known already changes nothing.
"""

from msgspec import Struct
from msgspec.structs import replace

from ..schemas.notifications import Attempt, Notification

SETTLED_KEPT = 10_000


class Waiting(Struct):
    """A notification and how often it was tried. `recalled`: an earlier life had it, and may have tried it too."""

    notification: Notification
    attempts: int = 0
    recalled: bool = False

    @property
    def untouched(self) -> bool:
        """Whether the target cannot have taken it."""
        return not self.attempts and not self.recalled


class TargetQueue:
    """Notifications for one target. What nobody needs to be told any more is left out: growth that a newer one tells,
    and an incident that was over before it was first told."""

    def __init__(self) -> None:
        self.waiting: list[Waiting] = []
        self.settled: dict[str, tuple[int, int]] = {}
        """Incident -> the newest notification that was delivered or given up."""

    def put(self, notification: Notification) -> list[Notification]:
        """Add one; those that it makes superfluous, itself among them perhaps."""
        cause_id = notification.cause_id
        if self._knows(notification):
            return []
        untried = [one for one in self.waiting if one.notification.cause_id == cause_id and one.untouched]
        dropped = [one for one in untried if one.notification.kind == "grown"]
        opened = next((one for one in untried if one.notification.kind == "opened"), None)
        if notification.kind == "resolved" and opened is not None:
            # Not the end of an earlier episode, whose beginning may have been told.
            dropped = [one for one in untried if one.notification.episode == notification.episode]
        elif not (notification.kind == "grown" and opened is not None):
            self.waiting.append(Waiting(notification))
        else:  # whoever was never told that it opened is told with today's numbers
            dropped = [*dropped, opened]
            self.waiting.insert(self.waiting.index(opened), Waiting(_as_opened(notification)))
        gone = {id(one) for one in dropped}
        self.waiting = [one for one in self.waiting if id(one) not in gone]
        superfluous = [one.notification for one in dropped]
        return [*superfluous, notification] if notification.kind == "resolved" and opened is not None else superfluous

    def recall(self, notification: Notification) -> None:
        """Add one that an earlier life decided. Nothing becomes superfluous by that: what did was written down, and
        anything else may have been on its way when that life ended."""
        if not self._knows(notification):
            self.waiting.append(Waiting(notification, recalled=True))

    def _knows(self, notification: Notification) -> bool:
        cause_id = notification.cause_id
        # One that waits may have taken the place of earlier ones: they are told with it.
        newest = [one.notification.order for one in self.waiting if one.notification.cause_id == cause_id]
        return notification.order <= max([self.settled.get(cause_id, (0, 0)), *newest])

    def note(self, attempt: Attempt) -> None:
        """What became of one."""
        at = attempt.episode, attempt.revision
        found = next((one for one in self.waiting if one.notification.id == attempt.id), None)
        if attempt.status == "failed":
            if found is not None:
                found.attempts = max(found.attempts, attempt.attempt)
            return
        if found is not None:
            self.waiting.remove(found)
            if attempt.status == "superseded" and found.notification.kind == "opened":
                self._open(attempt.cause_id)
        self.settled[attempt.cause_id] = max(at, self.settled.pop(attempt.cause_id, (0, 0)))
        while len(self.settled) > SETTLED_KEPT:
            del self.settled[next(iter(self.settled))]

    def _open(self, cause_id: str) -> None:
        """Growth that took the place of an opening is told as one."""
        after = next((one for one in self.waiting if one.notification.cause_id == cause_id), None)
        if after is not None and after.notification.kind == "grown":
            after.notification = _as_opened(after.notification)

    def waits_for(self, cause_id: str) -> bool:
        """Whether this target is still to be told something of the incident."""
        return any(one.notification.cause_id == cause_id for one in self.waiting)


def _as_opened(notification: Notification) -> Notification:
    return replace(notification, kind="opened", previous_severity=None)
