"""Identities as small integers: a ledger row holds a number, a comparison is memoised per pair of numbers."""

from ..schemas.identity import Identity

UNKNOWN = -1
_OBJECTS_KEPT = 65_536


class Identities:
    """Numbers identities by value. Numbers are dense and never reused, so that a snapshot can list them."""

    def __init__(self) -> None:
        self.values: list[Identity] = []
        self.tenants: list[str] = []
        self.domains: list[str] = []
        self.activated: list[bool] = []
        self._by_value: dict[tuple[tuple[str, str], ...], int] = {}
        self._by_object: dict[int, tuple[Identity, int]] = {}

    def intern(self, identity: Identity | None) -> int:
        """The identity's number, `UNKNOWN` for None. Equal identities of different classes share one."""
        if identity is None:
            return UNKNOWN
        # A decoder hands out one object per identity; the object is kept, so its id() cannot be taken by another.
        seen = self._by_object.get(id(identity))
        if seen is not None:
            return seen[1]
        number = self._number(identity)
        if len(self._by_object) >= _OBJECTS_KEPT:
            self._by_object.clear()
        self._by_object[id(identity)] = (identity, number)
        return number

    def _number(self, identity: Identity) -> int:
        value = tuple(identity.to_wire().items())
        number = self._by_value.get(value)
        if number is None:
            number = self._by_value[value] = len(self.values)
            self.values.append(identity)
            self.tenants.append(identity.tenant_id)
            self.domains.append(identity.isolation_domain or "")
            self.activated.append(identity.adapter_kind == "activated")
        return number

    def tenant(self, number: int) -> str:
        """The tenant, empty where the identity is unknown."""
        return self.tenants[number] if number >= 0 else ""

    def domain(self, number: int) -> str:
        """The isolation domain; empty for none, declared public, and unknown identities."""
        return self.domains[number] if number >= 0 else ""

    def wire(self, number: int) -> dict[str, str]:
        """The identity as an event carries it."""
        return self.values[number].to_wire() if number >= 0 else {}


def span_end(span: str) -> int | None:
    """Where a span such as `1056`, `0-1056` or `0:1056` ends, in tokens."""
    tail = span.replace(":", "-").rpartition("-")[2]
    return int(tail) if tail.isdecimal() else None
