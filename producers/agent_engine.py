"""An engine as its agent sees it: its calls become the records that publishing here would have made."""

import json
from collections.abc import Callable
from typing import Any

import msgspec

from ..schemas.config import PublisherConfig
from ..schemas.errors import BadInput
from ..schemas.events import Check, LookupCount
from ..schemas.identity import Identity
from .agent_wire import rows
from .buffer import Item
from .calls import LifecycleCalls
from .lanes import Lane, Packed, Packer, heartbeat, homes_of
from .placing import CACHE_CALLS, Homeless

_OTHER_CALLS = frozenset({"node_start", "lookups", "check", "request_end"})
_CALLS = CACHE_CALLS | _OTHER_CALLS
_COUNTED = {"create": "tokens", "hit": "reused_tokens"}
_KEPT = 8192


class Translator(LifecycleCalls):
    """Makes items of an engine's calls. `field` is what the last call was refused for, or empty."""

    def __init__(self) -> None:
        self.item: Item | None = None
        self.field = ""
        self._time_ns = 0
        self._buffer = self  # type: ignore[assignment]  # where calls that cannot be made are counted: here
        self._put = self._keep
        self._clock = lambda: self._time_ns

    def refuse(self, field: str) -> None:
        """The call has arguments that no event can hold."""
        self.field = field

    lose = refuse

    def translate(self, call: tuple[Any, ...], t0_us: int, identities: list[Identity | str]) -> Item | str:
        """One call as it came over the wire, as an item, or the field for which it is refused."""
        try:
            dt, name, key, who, store, tier, owner, request_id, tokens, others = call
            fields = dict(others or {})
            if request_id != "":
                fields["request_id"] = request_id
            if name in _COUNTED:
                fields[_COUNTED[name]] = tokens
            self._time_ns, self.item, self.field = (t0_us + dt) * 1000, None, ""
            identity = None if who < 0 else identities[who]
            if name not in _CALLS:
                return "call"
            if isinstance(identity, str):
                return f"{name}.{identity}"
            if name == "node_start":
                self.node_start(**fields)
            elif name == "lookups":
                self.lookups(msgspec.convert(fields["counts"], list[LookupCount]), store=store, tier=tier)
            else:
                getattr(self, name)(key=key, identity=identity, store=store, tier=tier, owner=owner, **fields)
        except Exception:  # whatever came over the wire
            return "call"
        if self.item is None or self.field:
            return self.field or "call"
        return self.item

    def _keep(self, item: Item) -> None:
        self.item = item


class Identities:
    """Identities as engines send them, one object for equal ones."""

    def __init__(self) -> None:
        self._kept: dict[bytes, Identity | str] = {}

    def of(self, dimensions: Any) -> Identity | str:
        """The identity, or the field for which it is refused."""
        packed = json.dumps(dimensions, sort_keys=True).encode()
        found = self._kept.get(packed)
        if found is None:
            try:
                found = Identity.from_wire(dimensions)
            except BadInput as error:
                found = f"identity.{error.field}" if error.field else "identity"
            except Exception:
                found = "identity"
            if len(self._kept) >= _KEPT:
                self._kept.clear()
            self._kept[packed] = found
        return found


class Engine:
    """Packs the runs of one engine. What happened to an entry and is refused leaves its number out, a gap; any other
    event that is refused keeps its number, as a heartbeat that says so."""

    def __init__(
        self, node: str, incarnation: str, config: PublisherConfig, identity: Callable[[Any], Identity | str]
    ) -> None:
        self._node = node
        self._slots = config.slots
        self._identity = identity
        self._translator = Translator()
        self._packer = Packer(node, incarnation, config, self._refuse, self._stand_in)
        self._refused: dict[str, int] = {}
        self._home = ""
        self._field = ""

    def pack(self, home: str, run: dict[str, Any]) -> tuple[list[Packed], dict[str, int]]:
        """The records of a run, whose first number it names, and the fields for which some of it is refused, and how
        often. Raises what a run that is none makes it raise."""
        if not home.startswith(("n:", "s:")):
            raise ValueError
        self._home, self._refused = home, {}
        identities = [self._identity(dimensions) for dimensions in run["ids"]]
        lane = Lane(home)
        lane.given, t0 = int(run["first"]) - 1, int(run["t0"])
        for call in rows(run["times"], run["columns"]):
            found = self._translator.translate(call, t0, identities)
            if isinstance(found, str) or not self._is_at_home(found):
                self._refuse(found if isinstance(found, str) else f"{call[1]}.home", "")
                is_other = isinstance(call[1], str) and call[1] in _OTHER_CALLS
                lane.pending.append(self._heartbeat(t0 * 1000) if is_other else 1)
            else:
                lane.pending.append(found)
        records = []
        while (packed := self._packer.pack(lane)) is not None:
            records.append(packed)
        return records, self._refused

    def _is_at_home(self, item: Item) -> bool:
        if isinstance(item[1], Check) and item[1].check == "heartbeat":
            return True  # of any lane
        try:
            return self._home in homes_of(item, self._node, self._slots)
        except Homeless:
            return False

    def _refuse(self, field: str, message: str) -> None:
        self._refused[field] = self._refused.get(field, 0) + 1
        self._field = field

    def _stand_in(self, item: Item) -> Item:
        return self._heartbeat(item[0])

    def _heartbeat(self, time_ns: int) -> Item:
        return heartbeat(time_ns, self._home, f"refused: {self._field}")
