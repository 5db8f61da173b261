"""What home rules hand on to fleet rules: small, re-keyed by what a fleet rule compares."""

from msgspec import Struct


class Keyed(Struct, tag="keyed", frozen=True):
    """A node filed content under a key that it derived. `signature` covers everything the key may depend on."""

    event_id: str
    time_us: int
    node: str
    store: str
    signature: str
    key: str

    @property
    def topic_key(self) -> str:
        return self.signature


class PartServed(Struct, tag="part", frozen=True):
    """A request was served one part of a multi-part entry."""

    event_id: str
    time_us: int
    request_id: str
    tenant_id: str
    part: str
    required: tuple[str, ...] = ()

    @property
    def topic_key(self) -> str:
        return self.request_id


class RequestClosed(Struct, tag="closed", frozen=True):
    """A request is over and names the parts it needed."""

    event_id: str
    time_us: int
    request_id: str
    required: tuple[str, ...]

    @property
    def topic_key(self) -> str:
        return self.request_id


class Reached(Struct, tag="reached", frozen=True):
    """A requester was served identical content that another tenant had created without declaring it shareable."""

    event_id: str
    time_us: int
    request_id: str
    tenant_id: str
    principal: str
    victim_id: str
    entry: str
    names: tuple[str, ...] = ()
    """What a child entry may call this one: its key, its digests."""
    parent: str = ""
    depth: int = 0
    """Tokens that it covers, 0 where that is unknown."""

    @property
    def topic_key(self) -> str:
        return f"{self.tenant_id}\n{self.principal}\n{self.victim_id}"


Observation = Keyed | PartServed | RequestClosed | Reached
