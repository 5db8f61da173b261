"""Watches the store for findings, from the side, and notes when each could first be asked for."""

import threading
import time
from dataclasses import dataclass

from ...schemas.config import ClickHouseConfig
from ...schemas.errors import StoreUnavailable
from ...schemas.findings import Finding
from ...store import queries
from ...store.client import connect
from .account import requester

POLL_S = 0.03


@dataclass(frozen=True, slots=True)
class Seen:
    """The latest revision of a finding, and the seconds from its event to the first time a query returned it."""

    finding: Finding
    seconds: float


class Watch:
    """A thread that asks the store for findings about events since its start."""

    def __init__(self, config: ClickHouseConfig) -> None:
        self._config = config
        self._since_us = time.time_ns() // 1000
        self._seen: dict[str, Seen] = {}
        self._news = threading.Condition()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvtrail-watch", daemon=True)
        self._thread.start()

    def wait_for(self, request_id: str, deadline_s: float) -> Seen | None:
        """The finding about this request as soon as it can be queried; None when it cannot by the deadline."""
        with self._news:
            self._news.wait_for(lambda: self._about(request_id) is not None, deadline_s)
            return self._about(request_id)

    def findings(self) -> list[Finding]:
        """The latest revision of every finding, asked for now."""
        with connect(self._config) as client:
            return queries.FINDINGS_CURRENT.run(client, status="", since_us=self._since_us)

    def stop(self) -> None:
        """Ends the thread."""
        self._over.set()
        self._thread.join()

    def _about(self, request_id: str) -> Seen | None:
        return next((seen for seen in self._seen.values() if requester(seen.finding) == request_id), None)

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                with connect(self._config) as client:
                    while not self._over.wait(POLL_S):
                        self._note(queries.FINDINGS_CURRENT.run(client, status="", since_us=self._since_us))
            except StoreUnavailable:
                self._over.wait(POLL_S)

    def _note(self, findings: list[Finding]) -> None:
        now_us = time.time_ns() // 1000
        with self._news:
            for finding in findings:
                known = self._seen.get(finding.id)
                seconds = known.seconds if known is not None else (now_us - finding.event_time_us) / 1e6
                self._seen[finding.id] = Seen(finding, seconds)
            self._news.notify_all()
