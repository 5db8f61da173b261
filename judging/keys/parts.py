"""What a key expression consists of."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Part:
    """One variable of the key. `name`: what it is called; `source`: as written. `bits`: what is left of it after
    truncation, None for all. `cut`: characters left of a value that is no digest. `through`: functions whose inside
    is not known. `client`: it comes from what the requester sent."""

    name: str
    source: str
    hashed: str = ""
    bits: int | None = None
    cut: int | None = None
    through: tuple[str, ...] = ()
    optional: bool = False
    client: bool = False
    dimension: str = ""
    keyword: str = ""


@dataclass(slots=True)
class Expression:
    """The parts of a key in their order; `glued`: neighbours with nothing between them; `separated`: with text but
    no tag; `notes`: (problem, what it is about) found on the way; `bits`: what is left of the whole;
    `hashes`: functions that make digests."""

    parts: list[Part] = field(default_factory=list)
    glued: list[tuple[str, str]] = field(default_factory=list)
    separated: list[tuple[str, str]] = field(default_factory=list)
    notes: list[tuple[str, str]] = field(default_factory=list)
    bits: int | None = None
    hashes: list[str] = field(default_factory=list)
    complete: bool = False
    """It is a `PrefixKey`'s fingerprint."""


@dataclass(frozen=True, slots=True)
class Around:
    """What stands around the node that is read."""

    hashed: str = ""
    bits: int | None = None
    cut: int | None = None
    through: tuple[str, ...] = ()
    optional: bool = False
    dimension: str = ""
    keyword: str = ""
    whole: bool = False
    """No other part stands beside it: what happens to it happens to the whole key."""
