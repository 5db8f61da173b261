"""History lines as events: a node's numbers become lanes of homes."""

import re
from collections.abc import Iterable, Mapping

from ..schemas.dimensions import EntryKind
from ..schemas.errors import InvalidField
from ..schemas.events import Body, Commit, Event, Expire, KeyOrigin, NodeStart, RequestEnd, Tier
from ..schemas.homes import node_home, shared_home, shared_homes
from ..schemas.identity import Identity
from .scenario_bodies import check_of, create_of, hit_of, invalidate_of, parts_of, whole_number
from .scenario_identity import BASELINE, domain_of, identity_of, symbol
from .scenario_lines import Line

_TIERS: Mapping[str, Tier] = {
    "gpu": "gpu", "cpu": "host", "host": "host", "disk": "nvme", "nvme": "nvme", "l3": "shared", "shared": "shared",
}  # fmt: skip
_REASONS = frozenset({"ttl", "capacity", "lease", "aborted", "failed", "demoted", "restart"})


class Homes:
    """Turns a node's numbers into lanes of homes and lines into events."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self._owners: dict[str, str] = {}
        lines = [line for line in lines if line.type != "registry"]
        for line in lines:
            place = line.given.get("loc", "").partition("#")[0]
            if place and line.type == "create":
                self._owners.setdefault(place, line.node)
        self._oldest: dict[str, str] = {}
        first: dict[tuple[str, str], Line] = {}
        for line in lines:
            known = first.get((line.node, line.incarnation))
            if known is None or line.number < known.number:
                first[line.node, line.incarnation] = line
            oldest = self._oldest.get(line.node)
            if oldest is None or _natural(line.incarnation) < _natural(oldest):
                self._oldest[line.node] = line.incarnation
        self._implied = {node for node, oldest in self._oldest.items() if first[node, oldest].type != "node_start"}
        self._first = {node: first[node, oldest] for node, oldest in self._oldest.items()}
        self._seqs = self._number(lines)

    def _number(self, lines: list[Line]) -> dict[tuple[str, str, int, str], int]:
        """(node, incarnation, number, home) -> seq in that lane. A missing number belongs to what follows it."""
        homes: dict[tuple[str, str], dict[int, list[str]]] = {}
        for line in lines:
            homes.setdefault((line.node, line.incarnation), {}).setdefault(line.number, self.homes(line))
        seqs: dict[tuple[str, str, int, str], int] = {}
        for (node, incarnation), numbers in homes.items():
            last: dict[str, int] = {}
            if node in self._implied and self._oldest[node] == incarnation:
                last[node_home(node)] = 1
            expected = min(numbers)
            for number in sorted(numbers):
                missing, expected = number - expected, number + 1
                for index, home in enumerate(numbers[number]):
                    last[home] = seqs[node, incarnation, number, home] = (
                        last.get(home, 0) + 1 + (missing if index == 0 else 0)
                    )
        return seqs

    def implied_start(self, line: Line) -> Event | None:
        """Each node's history is complete from its first line on: it starts with nothing."""
        if line.node not in self._implied:
            return None
        return Event(
            node=line.node,
            incarnation=self._oldest[line.node],
            home=node_home(line.node),
            seq=1,
            time_us=line.time_us,
            body=NodeStart(),
        )

    def homes(self, line: Line) -> list[str]:
        shared = _TIERS.get(line.given.get("tier", "gpu"), "gpu") == "shared"
        scope = line.given.get("scope", "")
        if line.type == "invalidate" and line.key in ("*", ""):
            if shared or (scope == "store" and "tier" not in line.given):
                return list(shared_homes("l3"))
            return [node_home(line.node), *(shared_homes("l3") if scope == "fleet" else ())]
        if line.type in ("node_start", "request_end"):
            return [node_home(line.node)]
        if shared:
            return [shared_home("l3", line.key)]
        place = line.given.get("loc", "").partition("#")[0]
        return [node_home(self._owners.get(place, line.node))]

    def events(self, line: Line) -> list[Event]:
        given = {**BASELINE, **line.given}
        tier = _TIERS.get(given["tier"], "gpu")
        place, _, generation = given.get("loc", "").partition("#")
        identity = None
        if line.type in ("create", "hit", "check") and line.tenant:
            identity = identity_of(line.tenant, given)
        elif "iso" in line.given and line.tenant:
            identity = Identity(tenant_id=line.tenant, isolation_domain=domain_of(given))
        homes = self.homes(line)
        digits = re.sub(r"\D", "", generation)
        body = self._body(line, given, f"{line.label}" if len(homes) > 1 else "")
        return [
            Event(
                node=line.node,
                incarnation=line.incarnation,
                home=home,
                seq=self._seqs[line.node, line.incarnation, line.number, home],
                time_us=line.time_us,
                body=body,
                store="l3" if home.startswith("s:") else tier,
                tier="shared" if home.startswith("s:") else tier,
                rank=int(given.get("rank", "0")),
                copy=given.get("copy", ""),
                key="" if line.key in ("*", "-") else line.key,
                key_origin=_origin(given.get("keysrc", "derived")),
                kind=_kind(given.get("kind", "kv")),
                part=given.get("part", ""),
                span=given.get("span", given.get("upto", "")),
                entry_version=given.get("ver", ""),
                place=place,
                generation=int(digits) if digits else None,
                request_id=given.get("req", ""),
                identity=identity,
            )
            for home in homes
        ]

    def _body(self, line: Line, given: Mapping[str, str], op_id: str) -> Body:
        match line.type:
            case "create":
                return create_of(given)
            case "hit":
                return hit_of(given)
            case "commit":
                payload = given.get("payload")
                return Commit(bytes=whole_number(given, "bytes"), payload_digest=symbol(payload) if payload else None)
            case "expire":
                reason = given.get("reason", "capacity")
                return Expire(reason=reason if reason in _REASONS else "capacity")  # type: ignore[arg-type]  # checked
            case "fail":
                told = " ".join([*line.given.values(), *line.given])
                return Expire(reason="aborted" if "preempt" in told or "abort" in told else "failed")
            case "invalidate":
                return invalidate_of(line, op_id)
            case "node_start":
                return NodeStart(surviving_tiers=() if line is self._first[line.node] else ("nvme",))
            case "check":
                return check_of(given)
            case "request_end":
                return RequestEnd(parts_required=parts_of(given))
        raise InvalidField("is no type of event.", field="type", remedy="See tests/catalogue/FORMAT.md.")


def _origin(text: str) -> KeyOrigin:
    return "derived" if text == "derived" else "client" if text == "client" else "asserted"


def _kind(text: str) -> EntryKind:
    return "state" if text == "state" else "media" if text == "media" else "response" if text == "response" else "kv"


def _natural(incarnation: str) -> tuple[int, str]:
    digits = re.sub(r"\D", "", incarnation)
    return int(digits) if digits else 0, incarnation
