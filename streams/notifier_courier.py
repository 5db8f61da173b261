"""Brings notifications to one target: in order, until they are taken, without anybody waiting for it."""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

import aiohttp

from ..schemas.notifications import Attempt, Entry, Notification
from .metrics import Registry
from .notifier_queue import TargetQueue, Waiting
from .notifier_targets import Answer, Target

FIRST_PAUSE_S = 1.0
_RESENT_AT_ONCE = 100

_log = logging.getLogger("kvtrail.streams.notifier")

Record = Callable[[Entry], object]
"""Writes an entry to `kvtrail.notifications`, soon; whoever delivers does not wait for it."""


class Courier:
    """One target's queue and the task that empties it. `standing` are the incidents that are open."""

    def __init__(
        self,
        target: Target,
        record: Record,
        standing: Callable[[], Iterable[Notification]],
        *,
        retry_cap_s: float,
        metrics: Registry,
        session: Callable[[], aiohttp.ClientSession],
    ) -> None:
        self.target, self.queue = target, TargetQueue()
        self.problem = ""
        """Why the newest attempt failed; empty where it did not."""
        self._record, self._standing, self._session = record, standing, session
        self._retry_cap_s, self._metrics = retry_cap_s, metrics
        self._bell = asyncio.Event()
        self._not_before = 0.0
        self._resend_at = time.monotonic()

    def put(self, notification: Notification) -> None:
        """Tell this one too."""
        for dropped in self.queue.put(notification):
            self._settle(Waiting(dropped), "superseded", Answer(0, "not needed any more"), 0)
        self._bell.set()

    async def run(self) -> None:
        """Deliver, for ever."""
        while True:
            self._bell.clear()
            await self._say_again()
            if self.queue.waiting and time.monotonic() >= self._not_before:
                await self._attempt(self.queue.waiting[0])
                continue
            due = [self._not_before] if self.queue.waiting else []
            if self.target.resend_s:
                due.append(self._resend_at)
            with suppress(TimeoutError):
                async with asyncio.timeout(max(min(due) - time.monotonic(), 0.001) if due else None):
                    await self._bell.wait()

    async def _attempt(self, waiting: Waiting) -> None:
        """Try the oldest."""
        started = time.monotonic()
        waiting.attempts += 1  # before the attempt: what is on its way is not superfluous any more
        answer = await self.target.send(self._session(), waiting.notification)
        took_ms = round((time.monotonic() - started) * 1000)
        if answer.delivered:
            self.problem = ""
            self._settle(waiting, "delivered", answer, took_ms)
            return
        self.problem = f"{answer.code or 'no answer'} {answer.detail}".strip()
        _log.warning(
            "not delivered: %s", self.problem,
            extra={"target": self.target.name, "notification": waiting.notification.id, "attempt": waiting.attempts},
        )  # fmt: skip
        if answer.hopeless:
            self._settle(waiting, "gave_up", answer, took_ms)
            return
        self._settle(waiting, "failed", answer, took_ms)
        self._not_before = time.monotonic() + self._pause_s(waiting.attempts, answer)

    def _pause_s(self, attempts: int, answer: Answer) -> float:
        """Longer from attempt to attempt, never the same for all who wait, never shorter than asked for."""
        most = min(self._retry_cap_s, FIRST_PAUSE_S * 2 ** min(attempts - 1, 20))
        return max(answer.wait_s, random.uniform(most / 2, most))  # spreads load, guards nothing

    def _settle(self, waiting: Waiting, status: str, answer: Answer, took_ms: int) -> None:
        one = waiting.notification
        attempt = Attempt(
            id=one.id, target=self.target.name, attempt=waiting.attempts, at_us=time.time_ns() // 1000,
            status=status,  # type: ignore[arg-type]  # the callers name one of its values
            cause_id=one.cause_id, episode=one.episode, revision=one.revision, code=answer.code, took_ms=took_ms,
            detail=answer.detail,
        )  # fmt: skip
        self.queue.note(attempt)
        self._metrics.add("kvtrail_notify_attempts_total", target=self.target.name, status=status)
        self._record(attempt)

    async def _say_again(self) -> None:
        """What stands, in time before it would end by itself."""
        due_s = self.target.resend_s
        if not due_s or time.monotonic() < self._resend_at:
            return
        self._resend_at = time.monotonic() + due_s
        standing = [one for one in self._standing() if not self.queue.waits_for(one.cause_id)]
        for start in range(0, len(standing), _RESENT_AT_ONCE):
            answer = await self.target.resend(self._session(), standing[start : start + _RESENT_AT_ONCE])
            status = "resent" if answer.delivered else "failed"
            self._metrics.add("kvtrail_notify_attempts_total", target=self.target.name, status=status)
            self.problem = "" if answer.delivered else f"{answer.code or 'no answer'} {answer.detail}".strip()
            if not answer.delivered:
                _log.warning("what stands was not taken: %s", self.problem, extra={"target": self.target.name})
                # Sooner than usual: it must not end by itself.
                self._resend_at = time.monotonic() + min(due_s, max(due_s / 4, answer.wait_s))
                return
