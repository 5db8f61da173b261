"""Fleet rules: what no single home can see. Folds observations, in any order, into findings about pairs.

Bounded: what is oldest is forgotten first.
"""

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any, TypeVar

from ..schemas.config import JudgingConfig
from ..schemas.dimensions import Severity
from ..schemas.findings import Finding, Party, finding_id
from .findings import Findings
from .interning import Identities
from .observations import Keyed, Observation, PartServed, Reached, RequestClosed
from .revisions import Revisions

_K = TypeVar("_K")
SIGNATURES_KEPT = 100_000
REQUESTS_KEPT = 10_000
PAIRS_KEPT = 200_000
WALKS_KEPT = 20_000
WINDOW_US = 3600 * 1_000_000
"""Probing is counted over one hour."""


class FleetJudge:
    """Key drift between nodes, missing parts of a request, prefix probing."""

    def __init__(self, settings: JudgingConfig, deployment: str) -> None:
        self.settings = settings
        self.findings = Findings(deployment, Identities())
        self.revisions = Revisions()
        self._keys: dict[str, dict[str, str]] = {}
        self._pairs: dict[tuple[str, str], _Pair] = {}
        self._requests: dict[str, _Request] = {}
        self._walks: dict[tuple[str, str, str], _Walk] = {}

    def take(self, observation: Observation, at_us: int = 0) -> list[Finding]:
        """Fold one observation, made of a record that was appended at `at_us`. New finding revisions."""
        match observation:
            case Keyed():
                self._keyed(observation)
            case PartServed() | RequestClosed():
                self._request(observation, at_us)
            case Reached():
                self._reached(observation)
        return self.revisions.drain()

    def _keyed(self, seen: Keyed) -> None:
        keys = self._keys.setdefault(seen.signature, {})
        if keys.get(seen.node) == seen.key:
            return
        keys[seen.node] = seen.key
        for node, key in keys.items():
            if node != seen.node:
                one, two = sorted((node, seen.node))
                pair = self._pairs.setdefault((one, two), _Pair())
                pair.count(seen, same=key == seen.key)
                self._drift(one, two, pair)
        _bound(self._keys, SIGNATURES_KEPT)
        _bound(self._pairs, PAIRS_KEPT)

    def _drift(self, one: str, two: str, pair: "_Pair") -> None:
        subject = f"drift:{one}/{two}"
        if pair.different < self.settings.drift_threshold or pair.different <= pair.same:
            self.revisions.put(finding_id(subject), None, "the nodes agree more often than not")
            return
        finding = self.findings.about(
            subject,
            "KEY_DRIFT",
            Severity.LOW,
            f"{one} and {two} give the same content different keys",
            time_us=pair.first_us,
            evidence=pair.evidence,
        )
        self.revisions.put(finding.id, finding, "more of the same")

    def _request(self, seen: PartServed | RequestClosed, at_us: int) -> None:
        request = self._requests.setdefault(seen.request_id, _Request())
        request.at_us = max(request.at_us, at_us)
        request.required.update(seen.required)
        if isinstance(seen, PartServed):
            request.parts.setdefault(seen.part, seen)
        else:
            request.closed = seen
        if request.closed is not None or request.over:
            self._missing(seen.request_id, request)
        _bound(self._requests, REQUESTS_KEPT)

    def over(self, before_us: int) -> list[Finding]:
        """Requests that named what they need and were last heard of before then are over, told or not."""
        for request_id, request in self._requests.items():
            if request.closed is None and request.required and request.at_us < before_us and not request.over:
                request.over = True
                self._missing(request_id, request)
        return self.revisions.drain()

    def finish(self) -> list[Finding]:
        """The history has ended: requests that named what they need and never ended are over."""
        for request_id, request in self._requests.items():
            if request.closed is None and request.required:
                self._missing(request_id, request)
        return self.revisions.drain()

    def _missing(self, request_id: str, request: "_Request") -> None:
        subject = f"request:{request_id}"
        missing = sorted(request.required.difference(request.parts))
        if not missing or not request.parts:
            self.revisions.put(finding_id(subject), None, "the missing part was served")
            return
        last = max(request.parts.values(), key=lambda part: (part.time_us, part.event_id))
        closing = request.closed.event_id if request.closed is not None else ""
        parts = sorted(part.event_id for part in request.parts.values())
        finding = self.findings.about(
            subject,
            "COMPONENT_MISSING",
            Severity.HIGH,
            f"{', '.join(sorted(request.parts))} was reused without {', '.join(missing)}",
            time_us=last.time_us,
            evidence=(closing, *parts),
            requester=Party(tenant_id=last.tenant_id, request_id=request_id),
        )
        self.revisions.put(finding.id, finding, "another part was served")

    def _reached(self, seen: Reached) -> None:
        pair = (seen.tenant_id, seen.principal, seen.victim_id)
        walk = self._walks.setdefault(pair, _Walk())
        _bound(self._walks, WALKS_KEPT)
        if not walk.step(seen) or len(walk.steps) < self.settings.probing_threshold:
            return
        subject = f"probing:{seen.tenant_id}/{seen.principal}/{seen.victim_id}"
        if finding_id(subject) in self.revisions:
            return
        who = seen.principal or seen.tenant_id
        finding = self.findings.about(
            subject,
            "PREFIX_PROBING",
            Severity.MEDIUM,
            f"{who} walks along prefixes of {seen.victim_id}",
            time_us=seen.time_us,
            evidence=tuple(event_id for _, event_id in islice(walk.steps, 16)),
            requester=Party(tenant_id=seen.tenant_id),
        )
        self.revisions.put(finding.id, finding)


class _Pair:
    __slots__ = ("different", "evidence", "first_us", "same")

    def __init__(self) -> None:
        self.same = self.different = self.first_us = 0
        self.evidence: tuple[str, ...] = ()

    def count(self, seen: Keyed, *, same: bool) -> None:
        if same:
            self.same += 1
            return
        self.different += 1
        if not self.evidence:
            self.first_us = seen.time_us
        if len(self.evidence) < 8:
            self.evidence = (*self.evidence, seen.event_id)


class _Request:
    __slots__ = ("at_us", "closed", "over", "parts", "required")

    def __init__(self) -> None:
        self.at_us = 0
        self.over = False
        self.required: set[str] = set()
        self.parts: dict[str, PartServed] = {}
        self.closed: RequestClosed | None = None


class _Walk:
    """Requests that each went further than this pair had been: along a chain of parents, or deeper than before.

    Tenants that share many unrelated prompts reach many entries and go nowhere.
    """

    __slots__ = ("deepest", "entries", "last", "names", "steps")

    def __init__(self) -> None:
        self.entries: dict[str, None] = {}
        self.names: dict[str, None] = {}
        """What a child of the last step's entries may call its parent."""
        self.steps: deque[tuple[int, str]] = deque()
        self.last = ""
        self.deepest = 0

    def step(self, seen: Reached) -> bool:
        """Count an observation. True when it is a step: another request, reaching further."""
        if seen.entry in self.entries:
            return False
        further = self._further(seen)
        self.entries[seen.entry] = None
        self.deepest = max(self.deepest, seen.depth)
        _bound(self.entries, 4096)
        request = seen.request_id or seen.event_id
        names = dict.fromkeys(name for name in seen.names if name and name != seen.parent)
        if request == self.last:
            self.names.update(names)
        if not further or request == self.last:
            return False
        self.last, self.names = request, names
        self.steps.append((seen.time_us, seen.event_id))
        while self.steps and self.steps[0][0] < seen.time_us - WINDOW_US:
            self.steps.popleft()
        return True

    def _further(self, seen: Reached) -> bool:
        if not self.entries or seen.parent in self.names:
            return True
        return seen.depth > self.deepest if seen.depth else not seen.parent


def _bound(table: dict[_K, Any], most: int) -> None:
    for key in _oldest(table, len(table) - most):
        del table[key]


def _oldest(table: dict[_K, Any], count: int) -> Iterator[_K]:
    return iter(list(islice(table, max(count, 0))))
