"""A fleet judge's exact state as bytes, and back."""

from collections import deque
from typing import Any

import msgspec

from ..schemas.config import JudgingConfig
from ..schemas.findings import Finding
from .errors import SnapshotError
from .fleet import FleetJudge, _Pair, _Request, _Walk
from .observations import PartServed, RequestClosed

VERSION = 1
_findings = msgspec.msgpack.Decoder(list[Finding])
_parts = msgspec.msgpack.Decoder(dict[str, PartServed])
_closed = msgspec.msgpack.Decoder(RequestClosed | None)
_encode = msgspec.msgpack.encode


def dump_fleet(judge: FleetJudge) -> dict[str, Any]:
    """A copy of the state, for `encode_fleet`, perhaps in another thread while the judge goes on."""
    return {
        "v": VERSION,
        "keys": [(signature, dict(keys)) for signature, keys in judge._keys.items()],
        "pairs": [(pair, one.same, one.different, one.first_us, one.evidence) for pair, one in judge._pairs.items()],
        "requests": [
            (name, one.at_us, one.over, sorted(one.required), dict(one.parts), one.closed)
            for name, one in judge._requests.items()
        ],
        "walks": [
            (pair, list(one.entries), list(one.names), list(one.steps), one.last, one.deepest)
            for pair, one in judge._walks.items()
        ],
        "standing": list(judge.revisions.standing.values()),
        "numbers": list(judge.revisions.numbers.items()),
    }  # fmt: skip


def encode_fleet(dumped: dict[str, Any]) -> bytes:
    """What `dump_fleet` gave, as bytes."""
    return _encode(
        {
            **dumped,
            "requests": [
                (name, at_us, over, required, _encode(parts), _encode(closed))
                for name, at_us, over, required, parts, closed in dumped["requests"]
            ],
            "standing": _encode(dumped["standing"]),
        }
    )


def load_fleet(raw: bytes, settings: JudgingConfig, deployment: str) -> FleetJudge:
    """A judge that continues with the same future findings. Raises `SnapshotError` for what is no snapshot."""
    judge = FleetJudge(settings, deployment)
    try:
        state = msgspec.msgpack.decode(raw)
        if state["v"] != VERSION:
            raise SnapshotError("is of another version.", field="snapshot.v", remedy="Rebuild the state from the log.")
        judge._keys = {signature: dict(keys) for signature, keys in state["keys"]}
        for (one, other), same, different, first_us, evidence in state["pairs"]:
            pair = judge._pairs[one, other] = _Pair()
            pair.same, pair.different, pair.first_us, pair.evidence = same, different, first_us, tuple(evidence)
        for name, at_us, over, required, parts, closed in state["requests"]:
            request = judge._requests[name] = _Request()
            request.at_us, request.over, request.required = at_us, over, set(required)
            request.parts, request.closed = _parts.decode(parts), _closed.decode(closed)
        for (tenant, principal, victim), entries, names, steps, last, deepest in state["walks"]:
            walk = judge._walks[tenant, principal, victim] = _Walk()
            walk.entries, walk.names = dict.fromkeys(entries), dict.fromkeys(names)
            walk.steps = deque((time_us, event_id) for time_us, event_id in steps)
            walk.last, walk.deepest = last, deepest
        judge.revisions.standing = {finding.id: finding for finding in _findings.decode(state["standing"])}
        judge.revisions.numbers = dict(state.get("numbers", ()))
    except (msgspec.DecodeError, msgspec.ValidationError, KeyError, TypeError, ValueError) as error:
        raise SnapshotError("is damaged.", field="snapshot", remedy="Rebuild the state from the log.") from error
    return judge
