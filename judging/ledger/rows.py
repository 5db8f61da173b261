"""Rows of the ledger: one instance of an entry each, and the marks that change it."""

from typing import NamedTuple

from .lanes import Lane

MEMORY = ("gpu", "host")


class Scope(NamedTuple):
    """The part of an address that many entries share. `place` of a row is unique inside it, its key too."""

    store: str
    tier: str
    rank: int
    copy: str


class Mark:
    """A commit or an end: what it says, and what it says about which instance it means."""

    __slots__ = (
        "bytes",
        "domain",
        "event_id",
        "generation",
        "order",
        "payload",
        "place",
        "reason",
        "time_us",
        "version",
    )

    def __init__(self, order: int, time_us: int, reason: str, event_id: str) -> None:
        self.order, self.time_us, self.reason, self.event_id = order, time_us, reason, event_id
        self.place, self.generation, self.version = "", -1, ""
        self.domain: str | None = None
        """The isolation domain it names; None where it names none."""
        self.bytes, self.payload = -1, ""


class Rare:
    """What few entries have. -1 and the empty string stand for unknown."""

    __slots__ = (
        "commit", "finish", "generation", "max_age_us", "part", "pending", "place", "served", "served_for_good", "span",
        "version", "weights_version",
    )  # fmt: skip

    def __init__(self) -> None:
        self.place, self.generation, self.part, self.span, self.version = "", -1, "", "", ""
        self.max_age_us = -1
        self.weights_version: int | None = None
        self.finish: str | None = None
        self.pending = False
        self.commit: Mark | None = None
        self.served: set[int] = set()
        self.served_for_good = False


NOTHING_RARE = Rare()


class Row:
    """One life of an entry at one address, from its create on. `end` is the mark that ended it, None while it lives;
    what a restart or a scoped invalidation ended is decided at the hit, never by a scan."""

    __slots__ = (
        "bytes", "end", "identity", "key", "kind", "lane", "order", "origin", "payload", "rare", "request_id", "scope",
        "time_us", "tokens",
    )  # fmt: skip

    def __init__(
        self, order: int, lane: Lane, time_us: int, identity: int, scope: Scope, key: str, kind: str, origin: str
    ) -> None:
        self.order, self.lane, self.time_us, self.identity = order, lane, time_us, identity
        self.scope, self.key, self.kind, self.origin = scope, key, kind, origin
        self.tokens, self.bytes, self.payload, self.request_id = 0, -1, "", ""
        self.end: Mark | None = None
        self.rare: Rare = NOTHING_RARE

    @property
    def event_id(self) -> str:
        """The id of its create."""
        return self.lane.event_id(self.order)

    @property
    def payload_as_stored(self) -> str:
        commit = self.rare.commit
        return commit.payload if commit is not None and commit.payload else self.payload

    @property
    def bytes_as_stored(self) -> int:
        commit = self.rare.commit
        return commit.bytes if commit is not None and commit.bytes >= 0 else self.bytes
