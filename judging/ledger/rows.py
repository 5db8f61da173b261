"""Rows of the ledger: one instance of an entry each, and the marks that change it."""

from copy import copy
from typing import NamedTuple, Protocol

from msgspec import Struct

from ..interning import Carrier, Packed, own_size
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
    """What many rows have in common, one object for all of them. `payload`: bytes of `Row.data` that are the digest of
    the payload."""

    scope: Scope
    kind: str
    origin: str
    payload: int


class Dated(Protocol):
    """Something that a node did: where it stands in the order of its home, and when it was by the node's clock."""

    @property
    def order(self) -> int: ...

    @property
    def time_us(self) -> int: ...

    @property
    def node(self) -> str: ...


def precedes(one: Dated, two: Dated, skew_us: int) -> bool:
    """Whether one was before the other, beyond doubt: a node knows the order of what it does, between nodes the clocks
    must be further apart than they may be wrong."""
    if one.node == two.node:
        return one.order < two.order
    return two.time_us - one.time_us > skew_us


class Mark(Struct, gc=False, eq=False):
    """A commit or an end: what it says, and what it says about which instance it means. Never changed once it is part
    of a ledger."""

    order: int
    time_us: int
    reason: str
    lane: Lane | None
    told_by: str = ""
    place: str = ""
    generation: int = -1
    version: str = ""
    domain: str | None = None
    """The isolation domain it names; None where it names none."""
    bytes: int = -1
    payload: str = ""

    @property
    def event_id(self) -> str:
        """The event that says so, or that implies it."""
        return self.told_by or (self.lane.event_id(self.order) if self.lane is not None else "")

    @property
    def node(self) -> str:
        return self.lane.node if self.lane is not None else self.told_by.partition("/")[0]


class Rare(Struct, gc=False, eq=False):
    """What few entries have. -1 and the empty string stand for unknown."""

    place: str = ""
    generation: int = -1
    part: str = ""
    span: str = ""
    version: str = ""
    max_age_us: int = -1
    weights_version: int | None = None
    finish: str | None = None
    pending: bool = False
    commit: Mark | None = None
    served: frozenset[int] = frozenset()
    """Orders of the hits that an unfinished response was served to and that may still be matched otherwise."""
    served_for_good: bool = False
    own: tuple[str, ...] = ()
    """Own digests of which one is no plain SHA-256."""
    payload: str = ""
    """Digest of the bytes where it is no plain SHA-256."""

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
    the hit, never by a scan. -1 and the empty string stand for unknown. `data` is what has no other place, end to end:
    own digests, the digest of the payload, the request id. Not tracked by the garbage collector: rows form no cycles,
    and a million of them would be walked for nothing.
    """

    order: int
    lane: Lane
    time_us: int
    identity: int
    mask: int
    principal: str | None
    key: Digest
    profile: Profile
    data: bytes
    tokens: int
    size: int
    rare: Rare
    end: Mark | None = None

    @property
    def node(self) -> str:
        """Who created it."""
        return self.lane.node

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
    def own(self) -> Packed:
        return self.rare.own or self.data[: own_size(self.mask)]

    def owns(self, who: Carrier) -> bool:
        """Whether the own digests are the same, known and equal."""
        own = who.own
        return self.mask == who.mask and (self.data.startswith(own) if isinstance(own, bytes) else self.rare.own == own)

    def resolve(self, who: Carrier) -> None:
        """The identity of its creator has become known."""
        rest = self.data[own_size(self.mask) :]
        own = who.own
        if isinstance(own, bytes):
            self.data = own + rest
        else:
            self.rare = copy(self.rare)
            self.rare.own, self.data = own, rest
        self.identity, self.mask, self.principal = who.identity, who.mask, who.principal

    @property
    def request_id(self) -> str:
        return self.data[own_size(self.mask) + self.profile.payload :].decode()

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
        if not self.profile.payload:
            return self.rare.payload
        start = own_size(self.mask)
        return self.data[start : start + self.profile.payload].hex()

    @property
    def payload_as_stored(self) -> str:
        commit = self.rare.commit
        return commit.payload if commit is not None and commit.payload else self.payload

    @property
    def packed_payload(self) -> Digest:
        """The digest of the bytes as stored, as `pack_key` packs it."""
        if self.profile.payload and self.rare.commit is None:
            start = own_size(self.mask)
            return self.data[start : start + self.profile.payload]
        return pack_key(self.payload_as_stored)

    @property
    def bytes_as_stored(self) -> int:
        commit = self.rare.commit
        return commit.bytes if commit is not None and commit.bytes >= 0 else self.size


def pack_key(key: str) -> Digest:
    """A store key that is a plain SHA-256 in half the memory; any other key as it is."""
    if len(key) != 64:
        return key
    try:
        packed = bytes.fromhex(key)
    except ValueError:
        return key
    return packed if packed.hex() == key else key
