"""What a fleet's sources can reveal: dimension by dimension, and rule by rule.

Unknown is not equal: a rule whose dimension nobody sends finds nothing, which is not the same as nothing being wrong.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from ..schemas.events import Check, Commit, Create, Event, Hit, RequestEnd, Resolve
from ..schemas.facts import Fact
from ..schemas.identity import DIMENSIONS
from .rules import RULES
from .rules.needs import NEEDS, TELLS, Need
from .sources import who_knows

VISIBLE, PARTLY, BY_NAME, IDLE, INVISIBLE = "visible", "partly", "by name only", "nothing to find", "invisible"
WHOLE = 0.999
"""A share at or above this is all of them."""


class Told(Struct, kw_only=True):
    """What was seen. `compared` hits met a known creator; `both`: of those, how many knew a dimension on both sides,
    None where only `known_hits` and `known_creates` were counted, each for its own side."""

    tells: dict[str, int]
    known_hits: dict[str, int]
    known_creates: dict[str, int]
    compared: int = 0
    both: dict[str, int] | None = None

    def share(self, dimension: str) -> float:
        """The share of hits for which a dimension is known on both sides; at most that where sides were counted
        apart."""
        if not self.known_hits.get(dimension) or not self.known_creates.get(dimension):
            return 0.0  # a name that yields to its digest is compared without being sent
        if self.both is not None and self.compared and dimension in self.both:
            return self.both[dimension] / self.compared
        hits, creates = self.tells.get("hit", 0), self.tells.get("create", 0)
        if not hits or not creates:
            return 0.0
        return min(self.known_hits.get(dimension, 0) / hits, self.known_creates.get(dimension, 0) / creates, 1.0)


class DimensionSight(Struct, frozen=True, kw_only=True):
    """One dimension: the share of hits for which it is known on both sides, and by each side."""

    dimension: str
    title: str
    share: float
    hits: float
    creates: float


class RuleSight(Struct, frozen=True, kw_only=True):
    """One rule: visible, partly, by name only, nothing to find or invisible; what is missing, and what to add."""

    rule: str
    family: str
    status: str
    missing: tuple[str, ...] = ()
    add: tuple[str, ...] = ()


class Sight(Struct, frozen=True, kw_only=True):
    """The whole. `sentences`: what to add, the most revealing first."""

    hits: int
    creates: int
    exact: bool
    dimensions: tuple[DimensionSight, ...]
    rules: tuple[RuleSight, ...]
    summary: str
    sentences: tuple[str, ...]

    @property
    def invisible(self) -> tuple[str, ...]:
        """Rules that cannot speak."""
        return tuple(one.rule for one in self.rules if one.status == INVISIBLE)


class Tally:
    """Counts what events and facts tell, one by one."""

    def __init__(self) -> None:
        self.told = Told(tells={}, known_hits={}, known_creates={})
        self._creators: set[str] = set()

    def fact(self, fact: Fact) -> None:
        """Count one fact."""
        self._add(f"f:{fact.body.__struct_config__.tag}")

    def event(self, event: Event) -> None:
        """Count one event."""
        self._add(event.type)
        body = event.body
        if isinstance(body, Create | Hit):
            self._add(f"k:{event.kind}")
            known = self.told.known_creates if isinstance(body, Create) else self.told.known_hits
            for name in event.identity.to_wire() if event.identity is not None else ():
                known[name] = known.get(name, 0) + 1
            self._add("parts", bool(event.part))
            self._add("client_keys", event.key_origin == "client")
            self._add("reported", body.reported_tokens is not None)
            self._add("version", body.weights_version is not None)
        if isinstance(body, Resolve) and event.identity is not None:
            for name in event.identity.to_wire():
                self.told.known_hits[name] = self.told.known_hits.get(name, 0) + 1
        if isinstance(body, Create | Commit):
            self._add("created_payload", body.bytes is not None or body.payload_digest is not None)
        if isinstance(body, Create):
            self._create(event, body)
        if isinstance(body, Hit):
            self._add("read_place", bool(event.place))
            read = (body.payload_digest, body.bytes_read, body.tokens_read)
            self._add("read_payload", any(one is not None for one in read))
            self._add("request", bool(event.request_id))
            self._add("semantic", body.match_mode == "semantic")
        if isinstance(body, Check):
            self._add(body.check)
        if isinstance(body, Hit | RequestEnd):
            self._add("parts_required", bool(body.parts_required))

    def _create(self, event: Event, body: Create) -> None:
        self._add("created_place", bool(event.place))
        self._add("max_age", body.max_age_s is not None)
        self._add("ttl", body.ttl_s is not None)
        self._add("finish", body.finish is not None)
        self._add("pending", body.state == "pending")
        self._add("rederived", body.rederived_key is not None)
        if event.node not in self._creators and len(self._creators) < 2:
            self._creators.add(event.node)
            self._add("nodes", len(self._creators) == 2)

    def _add(self, name: str, is_so: bool = True) -> None:
        if is_so:
            self.told.tells[name] = self.told.tells.get(name, 0) + 1


def look(told: Told) -> Sight:
    """What these sources can reveal, and what to add so that they reveal more."""
    hits, creates = told.tells.get("hit", 0), told.tells.get("create", 0)
    dimensions = tuple(
        DimensionSight(
            dimension=name,
            title=declared.title,
            share=told.share(name),
            hits=min(1.0, told.known_hits.get(name, 0) / hits) if hits else 0.0,
            creates=min(1.0, told.known_creates.get(name, 0) / creates) if creates else 0.0,
        )
        for name, declared in DIMENSIONS.items()
    )
    rules = tuple(_rule(rule, told) for rule in RULES)
    counts = {status: sum(one.status == status for one in rules) for status in (INVISIBLE, PARTLY, BY_NAME, IDLE)}
    summary = f"{counts[INVISIBLE]} of {len(rules)} kinds of failure are invisible"
    for status, words in (
        (PARTLY, "visible in part"),
        (BY_NAME, "seen by name only"),
        (IDLE, "with nothing to find here"),
    ):
        summary += f", {counts[status]} {words}" if counts[status] else ""
    return Sight(
        hits=hits,
        creates=creates,
        exact=told.both is not None,
        dimensions=dimensions,
        rules=rules,
        summary=f"{summary}.",
        sentences=tuple(_sentences(rules)),
    )


def _rule(rule: str, told: Told) -> RuleSight:
    missing: list[Need] = []
    weak: list[Need] = []
    names: list[Need] = []
    creates_only = ("hit",) not in NEEDS[rule]
    for need in NEEDS[rule]:
        optional, names_of = need[0].startswith("?"), tuple(one.removeprefix("?") for one in need)
        share = max(_share(one, told, creates_only) for one in names_of)
        if not share and optional:
            return _sight(rule, IDLE, [names_of])
        if not share:
            missing.append(names_of)
        elif (named := _only_named(names_of, told)) is not None:
            names.append(named)
        elif share < WHOLE and all(one.startswith("d:") for one in names_of):
            weak.append(names_of)
    if missing:
        return _sight(rule, INVISIBLE, missing)
    if names:
        return _sight(rule, BY_NAME, names)
    return _sight(rule, PARTLY, weak) if weak else _sight(rule, VISIBLE, [])


def _share(need: str, told: Told, creates_only: bool) -> float:
    if need.startswith("d:") and creates_only:
        return told.known_creates.get(need[2:], 0) / max(1, told.tells.get("create", 0))
    if need.startswith("d:"):
        return told.share(need[2:])
    return 1.0 if told.tells.get(need) else 0.0


def _only_named(need: Need, told: Told) -> Need | None:
    """The digests of which only the names are known; None when a digest or a plain value is."""
    known = [one[2:] for one in need if one.startswith("d:") and told.share(one[2:])]
    digests = tuple(f"d:{DIMENSIONS[name].yields_to}" for name in known if DIMENSIONS[name].yields_to)
    if not known or len(digests) < len(known):
        return None
    return tuple(dict.fromkeys(digests))


def _sight(rule: str, status: str, missing: Iterable[Need]) -> RuleSight:
    missing = list(missing)
    return RuleSight(
        rule=rule,
        family=RULES[rule].family,
        status=status,
        missing=tuple(" or ".join(map(say, need[:2])) for need in missing),
        add=tuple(dict.fromkeys(need[0] for need in missing)),
    )


def say(need: str) -> str:
    """A need as people say it: `template digest`, `expiries`, `policy facts`."""
    if need.startswith("d:"):
        return DIMENSIONS[need[2:]].title
    if need.startswith("f:"):
        return f"{need[2:]} facts"
    if need.startswith("k:"):
        return f"{need[2:]} entries"
    return TELLS[need]


def _sentences(rules: Iterable[RuleSight]) -> list[str]:
    """`your gateway sends no template digest: 1 rule is invisible (TEMPLATE_MISMATCH)`, the most revealing first."""
    groups: dict[tuple[str, str], list[str]] = {}
    for one in rules:
        if one.status in (INVISIBLE, BY_NAME, PARTLY):
            for need in one.add:
                groups.setdefault((one.status, need), []).append(one.rule)
    order = {INVISIBLE: 0, BY_NAME: 1, PARTLY: 2}
    found = sorted(groups.items(), key=lambda item: (order[item[0][0]], -len(item[1]), item[0]))
    return [_sentence(status, need, names) for (status, need), names in found]


def _sentence(status: str, need: str, names: list[str]) -> str:
    who = who_knows(need)
    what = say(need)
    rules = f"{', '.join(names)} {'is' if len(names) == 1 else 'are'}"
    if status == BY_NAME:
        return f"{who} sends only a name, no {what}: {rules} seen only when the name changes too."
    if status == PARTLY:
        return f"{who} sends {what} for some only: {rules} seen in part."
    return f"{who} sends no {what}: {rules} invisible."


def counted(tells: Mapping[str, int], known: Iterable[tuple[str, int, int]], resolved: Mapping[str, int]) -> Told:
    """From counts over a store: per dimension the hits and creates that know it, and the resolutions that add it."""
    told = Told(tells=dict(tells), known_hits=dict(resolved), known_creates={})
    for name, hits, creates in known:
        told.known_hits[name] = hits + resolved.get(name, 0)
        told.known_creates[name] = creates
    return told
