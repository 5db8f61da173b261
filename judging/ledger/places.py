"""Physical slots and stored bytes of a home: who owned which, in order."""

from bisect import insort
from operator import attrgetter

from .addresses import Addresses
from .rows import Digest, Row, Scope, pack_key

OWNERS_KEPT = 4
Place = tuple[Scope, str]


class Places:
    """Physical slots of a home and who owned them, in order."""

    def __init__(self) -> None:
        self.owners: dict[Place, list[Row]] = {}

    def own(self, row: Row, *, keep: bool) -> None:
        place = row.scope, row.rare.place
        owners = self.owners.get(place)
        if owners is None:
            self.owners[place] = [row]
            return
        if owners[-1].order < row.order:
            owners.append(row)
        else:
            insort(owners, row, key=attrgetter("order"))
        if not keep and len(owners) > OWNERS_KEPT:
            del owners[:-OWNERS_KEPT]

    def sweep(self, addresses: Addresses, before_us: int) -> None:
        """Drop the places whose last owner ended before `before_us`, and of the others what came before such an one."""
        for place, owners in list(self.owners.items()):
            ends = [addresses.end_of(owner, 1 << 256) for owner in owners]
            over = [end is not None and end.time_us < before_us for end in ends]
            if all(over):
                del self.owners[place]
            elif any(over):
                self.owners[place] = [owner for owner, done in zip(owners, over, strict=True) if not done]

    def before(self, scope: Scope, place: str, order: int, now: int) -> list[Row]:
        """Owners of a place that were created before `order`, oldest first, of those known at `now`."""
        known = [row for row in self.owners.get((scope, place), ()) if row.order < now]
        return [row for row in known[-OWNERS_KEPT:] if row.order < order]


class Payloads:
    """Who stored which bytes. Built when the first wrong payload is read, since until then nobody asks."""

    def __init__(self) -> None:
        self._rows: dict[Digest, Row | list[Row]] | None = None

    @property
    def built(self) -> bool:
        return self._rows is not None

    def add(self, row: Row) -> None:
        if self._rows is None:
            return
        payload = row.packed_payload
        found = self._rows.get(payload)
        if isinstance(found, list):
            found.append(row)
        elif payload:
            self._rows[payload] = row if found is None else [found, row]

    def owners(self, payload: str, addresses: Addresses, order: int) -> list[Row]:
        """Instances known at `order` whose stored bytes are these, oldest first."""
        if self._rows is None:
            self._rows = {}
            for row in addresses:
                self.add(row)
        rows = self._rows.get(pack_key(payload), [])
        found = (rows,) if isinstance(rows, Row) else rows
        known = [row for row in found if row in addresses.known(row.scope, row.key, order)]
        return sorted(known, key=attrgetter("order"))
