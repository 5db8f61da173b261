"""What the log is told: each kind of trouble once, from the sender's thread only, since a handler may block."""

import logging
from collections.abc import Iterable, Mapping

log = logging.getLogger("kvtrail.producers")


class Teller:
    """Remembers what it has said. Never says a value."""

    def __init__(self) -> None:
        self._told: set[str] = set()
        self._down = False

    def refused(self, field: str, message: str = "") -> None:
        """A call could not be made an event."""
        if field not in self._told:
            self._told.add(field)
            log.warning("refused: %s %s (said once; stats().refused counts)", field, message)

    def counts(self, dropped: Mapping[str, int], refused: Iterable[str]) -> None:
        """Drops and refusals that were only counted so far."""
        for reason, count in dropped.items():
            if f"dropped {reason}" not in self._told:
                self._told.add(f"dropped {reason}")
                log.warning("dropped %d events, reason %s (said once; stats().dropped counts)", count, reason)
        for field in refused:
            self.refused(field)

    def rejected(self, error: Exception) -> None:
        """A record will never be taken."""
        if "rejected" not in self._told:
            self._told.add("rejected")
            log.error("a record was dropped: %s (said once; stats().dropped counts)", error)

    def down(self, error: Exception) -> None:
        """An attempt failed: said once an outage."""
        if not self._down:
            self._down = True
            log.warning("not delivered, will go on trying: %s", error)

    def up(self, waiting: int) -> bool:
        """A record was acknowledged; True when that ends an outage."""
        if not self._down:
            return False
        self._down = False
        log.warning("delivering again, %d events are waiting", waiting)
        return True
