"""Rows of the ledger: one instance of an entry each, and the marks that change it."""

from typing import NamedTuple

from msgspec import Struct

from ..interning import Packed
from .lanes import Lane

Digest = bytes | str

MEMORY = ("gpu", "host")
FINISHED = frozenset(
    {"stop", "eos", "end_turn", "stop_sequence", "tool_calls", "tool_use", "function_call", "complete", "completed"}
)
"""Reasons after which a generation is whole."""


class Scope(NamedTuple):
    """The part of an address that many entries share. `place` of a row is unique inside it, its key too."""

    store: str
    tier: str
    rank: int
    copy: str


class Profile(NamedTuple):
    """What many rows have in common, one object for all of them."""

    scope: Scope
    kind: str
    origin: str


class Mark:
    """A commit or an end: what it says, and what it says about which instance it means."""

    __slots__ = (
        "bytes",
        "domain",
        "generation",
        "lane",
        "order",
        "payload",
        "place",
        "reason",
        "time_us",
        "told_by",
        "version",
    )

    def __init__(self, order: int, time_us: int, reason: str, lane: Lane | None, told_by: str = "") -> None:
        self.order, self.time_us, self.reason, self.lane, self.told_by = order, time_us, reason, lane, told_by
        self.place, self.generation, self.version = "", -1, ""
        self.domain: str | None = None
        """The isolation domain it names; None where it names none."""
        self.bytes, self.payload = -1, ""

    @property
    def event_id(self) -> str:
        """The event that says so, or that implies it."""
        return self.told_by or (self.lane.event_id(self.order) if self.lane is not None else "")

    @property
    def node(self) -> str:
        return self.lane.node if self.lane is not None else self.told_by.partition("/")[0]


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
        self.served: frozenset[int] = frozenset()
        """Orders of the hits that an unfinished response was served to and that may still be matched otherwise."""
        self.served_for_good = False

    @property
    def unfinished(self) -> bool:
        """The creator's generation did not end as it should."""
        return self.finish is not None and self.finish not in FINISHED

    @property
    def readable(self) -> bool:
        """It was never pending, or has been committed."""
        return not self.pending or self.commit is not None


NOTHING_RARE = Rare()


class Row(Struct, gc=False, eq=False, kw_only=True):
    """One life of an entry at one address, from its create on.

    `end` is the mark that ended it, None while it lives; what a restart or a scoped invalidation ended is decided at
    the hit, never by a scan. -1 and the empty string stand for unknown. Not tracked by the garbage collector: rows
    form no cycles, and a million of them would be walked for nothing.
    """

    order: int
    lane: Lane
    time_us: int
    identity: int
    mask: int
    own: Packed
    principal: str | None
    key: Digest
    profile: Profile
    tokens: int = 0
    bytes: int = -1
    packed: Digest = ""
    request_id: str = ""
    end: Mark | None = None
    rare: Rare = NOTHING_RARE

    @property
    def scope(self) -> Scope:
        return self.profile.scope

    @property
    def kind(self) -> str:
        return self.profile.kind

    @property
    def origin(self) -> str:
        """Where its key comes from."""
        return self.profile.origin

    @property
    def key_text(self) -> str:
        """The store key, as events spell it."""
        return self.key if isinstance(self.key, str) else self.key.hex()

    @property
    def event_id(self) -> str:
        """The id of its create."""
        return self.lane.event_id(self.order)

    @property
    def payload(self) -> str:
        """Digest of the bytes as the create told it, empty where it did not."""
        return self.packed if isinstance(self.packed, str) else self.packed.hex()

    @property
    def payload_as_stored(self) -> str:
        commit = self.rare.commit
        return commit.payload if commit is not None and commit.payload else self.payload

    @property
    def bytes_as_stored(self) -> int:
        commit = self.rare.commit
        return commit.bytes if commit is not None and commit.bytes >= 0 else self.bytes


def pack_digest(digest: str) -> Digest:
    """A plain SHA-256 in half the memory; any other digest as it is."""
    return bytes.fromhex(digest) if len(digest) == 64 and ":" not in digest else digest


def pack_key(key: str) -> Digest:
    """A store key that is a plain SHA-256 in half the memory; any other key as it is."""
    if len(key) != 64:
        return key
    try:
        packed = bytes.fromhex(key)
    except ValueError:
        return key
    return packed if packed.hex() == key else key
