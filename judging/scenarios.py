"""Scenario text as records: the history lines of a scenario file, as `tests/catalogue/FORMAT.md` defines them.

Pure: text in, events and facts out. Whoever reads the YAML hands over its parsed document.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..schemas.config import JudgingConfig
from ..schemas.dimensions import EntryKind
from ..schemas.errors import BadInput, InvalidField
from ..schemas.events import (
    Body,
    Commit,
    Create,
    Event,
    Expire,
    Hit,
    Invalidate,
    KeyOrigin,
    NodeStart,
    RequestEnd,
    Tier,
)
from ..schemas.facts import Fact
from ..schemas.homes import node_home, shared_home, shared_homes
from ..schemas.identity import Identity
from .scenario_facts import fact_body

START_US = 1_700_000_000_000_000
_STEP_US = 1_000_000
_LINE = re.compile(r"^(?P<node>[^\s/:]+)(?:/(?P<inc>[^\s:]+))?:(?P<number>\d+)\s+(?P<type>\w+)(?P<rest>.*)$")
_FIELDS = re.compile(r"\{(.*)\}")
_TIME = re.compile(r"(?:^|\s)t=(-?[\d.]+)")
_TIERS: Mapping[str, Tier] = {
    "gpu": "gpu", "cpu": "host", "host": "host", "disk": "nvme", "nvme": "nvme", "l3": "shared", "shared": "shared",
}  # fmt: skip
_BASELINE = {
    "model": "m1", "weights": "W1", "fmt": "bf16/L1/tp1", "tok": "T1", "tmpl": "chat@d1", "tools": "none",
    "corpus": "none", "epoch": "7", "adapter": "none", "mm": "none", "in": "I1", "tier": "gpu",
}  # fmt: skip
_DIGESTS = {
    "weights": "weights_digest", "tools": "tool_schema_digest", "corpus": "corpus_digest", "mm": "media_digest",
    "mm_proc": "media_preprocessing", "emb": "embedding_digest", "params": "request_params_digest",
    "guard": "guardrail_digest", "scale": "quant_scale_digest", "parent": "parent_digest", "blk": "block_digest",
    "in": "token_ids_digest",
}  # fmt: skip
_TEXTS = {
    "model": "model_id", "tok": "tokenizer_id", "epoch": "epoch", "who": "principal", "authz": "authz_revision",
    "mm_geom": "media_geometry", "akind": "adapter_kind", "from": "adapter_switch",
}  # fmt: skip
_GROUPS = {
    "tenant": ("tenant_id",),
    "iso": ("isolation_domain",),
    "tmpl": ("template_digest", "template_id"),
    "fmt": ("kv_dtype", "kv_layout", "kv_geometry"),
    "adapter": ("adapter_digest", "adapter_scale", "adapter_kind", "adapter_switch", "adapter_name"),
    "model": ("model_id", "resolved_model"),
    **{name: (dimension,) for name, dimension in (_DIGESTS | _TEXTS).items() if name != "model"},
}
_SCOPES = {
    "tenant": "tenant_id", "template": "template_id", "adapter": "adapter_name", "model": "model_id",
    "principal": "principal",
}  # fmt: skip
_REASONS = frozenset({"ttl", "capacity", "lease", "aborted", "failed", "demoted", "restart"})


def symbol(text: str) -> str:
    """The digest that a short symbol stands for; `none` is known to be none."""
    return "" if text == "none" else hashlib.sha256(text.encode()).hexdigest()


def dimensions_of(name: str) -> tuple[str, ...]:
    """The dimensions that a field of a scenario stands for."""
    return _GROUPS.get(name, (name,))


@dataclass(slots=True)
class Line:
    """One parsed line. `label` is how `at` names it."""

    node: str
    incarnation: str
    number: int
    type: str
    key: str
    tenant: str
    given: dict[str, str]
    time_us: int
    records: list[Event | Fact] = field(default_factory=list)

    @property
    def label(self) -> str:
        return label(self.node, self.incarnation, self.number)


def label(node: str, incarnation: str, number: int | str) -> str:
    return f"{node}:{number}" if incarnation == "i1" else f"{node}/{incarnation}:{number}"


def normal_label(text: str) -> str:
    """`n1/i1:3` and `n1:3` are the same event."""
    return text.replace("/i1:", ":")


@dataclass(slots=True)
class Scenario:
    """A history and the verdict it deserves. `steps`: records in arrival order, with the line they come from."""

    id: str
    title: str
    settings: JudgingConfig
    steps: list[tuple[str, Event | Fact]]
    labels: dict[str, str]
    expect: list[dict[str, Any]]
    may: list[dict[str, Any]]
    meanwhile: list[dict[str, Any]]


def parse_scenario(document: Any, name: str = "scenario") -> Scenario:
    """A scenario from its parsed YAML document. Raises `InvalidField` naming what is wrong."""
    if not isinstance(document, dict) or not isinstance(document.get("history"), str):
        raise InvalidField("is no scenario: it has no history.", field=name, remedy="See tests/catalogue/FORMAT.md.")
    try:
        return _parsed(document, name)
    except (ValueError, TypeError, KeyError) as error:
        raise InvalidField(
            f"says something that no event can hold ({type(error).__name__}).",
            field=name,
            remedy="See tests/catalogue/FORMAT.md.",
        ) from error


def _parsed(document: dict[str, Any], name: str) -> Scenario:
    steps = _records(document["history"], name)
    labels = {record.id: at for at, record in steps if isinstance(record, Event)}
    settings: dict[str, Any] = dict(document.get("settings") or {})
    thresholds = settings.pop("thresholds", None) or {}
    for threshold, setting in (("KEY_DRIFT", "drift_threshold"), ("PREFIX_PROBING", "probing_threshold")):
        if threshold in thresholds:
            settings[setting] = thresholds[threshold]
    known = {key: value for key, value in settings.items() if key in JudgingConfig.model_fields}
    return Scenario(
        id=str(document.get("id", name)),
        title=str(document.get("title", "")),
        settings=JudgingConfig(**known),
        steps=steps,
        labels=labels,
        expect=list(document.get("expect") or []),
        may=list(document.get("may") or []),
        meanwhile=list(document.get("meanwhile") or []),
    )


def _records(text: str, name: str) -> list[tuple[str, Event | Fact]]:
    lines = _lines(text, name)
    homes = _Homes(lines)
    steps: list[tuple[str, Event | Fact]] = []
    sent: dict[tuple[str, str, int], list[Event]] = {}
    started: set[str] = set()
    for line in lines:
        if line.type == "registry":
            body = fact_body(line.key, line.tenant, line.given, symbol)
            steps.append((line.label, Fact(id=line.label, effective_at_us=line.time_us, body=body, source=line.node)))
            continue
        if line.node not in started:
            started.add(line.node)
            implied = homes.implied_start(line)
            if implied is not None:
                steps.append(("", implied))
        identified = (line.node, line.incarnation, line.number)
        events = sent.get(identified)
        if events is None:
            try:
                events = sent[identified] = homes.events(line)
            except BadInput as error:
                raise error.at(f"{name}.{line.label}") from None
        steps.extend((line.label, event) for event in events)
    return steps


def _lines(text: str, name: str) -> list[Line]:
    lines: list[Line] = []
    times: dict[tuple[str, str, str], int] = {}
    now = START_US - _STEP_US
    for raw in text.splitlines():
        raw = raw.partition(" #")[0].strip()
        if not raw or raw.startswith("#"):
            continue
        match = _LINE.match(raw)
        if match is None:
            raise InvalidField(
                "is no history line.", field=f"{name}.history", remedy="Write: node:seq type key tenant {field=value}."
            )
        rest = match["rest"]
        fields = _FIELDS.search(rest)
        tail = rest.replace(fields[0], " ") if fields else rest
        given = _given(fields[1] if fields else "")
        at = _TIME.search(tail)
        now = START_US + round(float(at[1]) * 1e6) if at else now + _STEP_US
        words = _TIME.sub(" ", tail).split()
        type_ = match["type"]
        if type_ == "request_end":
            words = ["", *words[-1:]]
        key, tenant = (*words, "", "")[:2]
        tenant = "" if tenant == "-" else tenant
        line = Line(match["node"], match["inc"] or "i1", int(match["number"]), type_, key, tenant, given, now)
        # A line that repeats a number is the same event again, with the time it had.
        line.time_us = times.setdefault((line.node, line.incarnation, match["number"]), now)
        lines.append(line)
    return lines


def _given(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = part.strip().partition("=")
        if key:
            found[key.strip()] = value.strip() if equals else "true"
    return found


class _Homes:
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
        given = {**_BASELINE, **line.given}
        tier = _TIERS.get(given["tier"], "gpu")
        place, _, generation = given.get("loc", "").partition("#")
        identity = None
        if line.type in ("create", "hit") and line.tenant:
            identity = identity_of(line.tenant, given)
        elif "iso" in line.given and line.tenant:
            identity = Identity(tenant_id=line.tenant, isolation_domain=_domain(given))
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
                key="" if line.key == "*" else line.key,
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
                return _create(given)
            case "hit":
                return _hit(given)
            case "commit":
                payload = given.get("payload")
                return Commit(bytes=_int(given, "bytes"), payload_digest=symbol(payload) if payload else None)
            case "expire":
                reason = given.get("reason", "capacity")
                return Expire(reason=reason if reason in _REASONS else "capacity")  # type: ignore[arg-type]  # checked
            case "fail":
                told = " ".join([*line.given.values(), *line.given])
                return Expire(reason="aborted" if "preempt" in told or "abort" in told else "failed")
            case "invalidate":
                return _invalidate(line, op_id)
            case "node_start":
                return NodeStart(surviving_tiers=() if line is self._first[line.node] else ("nvme",))
            case "request_end":
                return RequestEnd(parts_required=_parts(given))
        raise InvalidField("is no type of event.", field="type", remedy="See tests/catalogue/FORMAT.md.")


def identity_of(tenant: str, given: Mapping[str, str]) -> Identity:
    """The identity that a line's fields (baseline included) describe."""
    values: dict[str, str | None] = {"tenant_id": tenant, "isolation_domain": _domain(given)}
    for name, dimension in _DIGESTS.items():
        if name in given:
            values[dimension] = symbol(given[name])
    for name, dimension in _TEXTS.items():
        if name in given:
            values[dimension] = "" if given[name] == "none" else given[name]
    template, at, digest = given["tmpl"].partition("@")
    values["template_id"] = "" if template == "none" else template
    values["template_digest"] = symbol(digest) if at else "" if template == "none" else None
    for dimension, value in zip(("kv_dtype", "kv_layout", "kv_geometry"), given["fmt"].split("/"), strict=False):
        values[dimension] = value
    adapter, at, rest = given["adapter"].partition("@")
    digest, star, scale = rest.partition("*")
    if adapter == "none":
        values.update(adapter_name="", adapter_digest="", adapter_scale="")
    else:
        values["adapter_name"] = adapter
        if at:
            values["adapter_digest"] = symbol(digest)
        if star:
            values["adapter_scale"] = scale
    return Identity(**values)  # type: ignore[arg-type]  # one dict for thirty fields


def _domain(given: Mapping[str, str]) -> str | None:
    """No barrier asked for: None; declared shareable: empty."""
    if "iso" not in given:
        return None
    return "" if given["iso"] in ("pub", "none") else symbol(given["iso"])


def _create(given: Mapping[str, str]) -> Create:
    finish = given.get("finish")
    payload = given.get("payload")
    return Create(
        tokens=_int(given, "tokens") or _int(given, "upto") or 0,
        computed_tokens=_int(given, "computed"),
        reported_tokens=_int(given, "reused_reported"),
        bytes=_int(given, "bytes"),
        payload_digest=symbol(payload) if payload else None,
        rederived_key=given.get("derive"),
        finish="" if finish == "none" else finish,
        ttl_s=_float(given, "ttl"),
        max_age_s=_float(given, "maxage"),
        lease_s=_float(given, "lease"),
        state="pending" if given.get("state") == "pending" else "committed",
        weights_version=_int(given, "version"),
    )


def _hit(given: Mapping[str, str]) -> Hit:
    payload = given.get("payload")
    tokens = _int(given, "tokens")
    loaded = _int(given, "loaded")
    return Hit(
        reused_tokens=tokens or 0,
        reported_tokens=_int(given, "reused_reported"),
        tokens_read=tokens,
        bytes_read=loaded if loaded is not None else _int(given, "bytes"),
        payload_digest=symbol(payload) if payload else None,
        age_s=_float(given, "age"),
        match_mode="semantic" if given.get("mode") == "semantic" else "exact",
        similarity=_float(given, "sim"),
        parts_required=_parts(given),
        outcome=given.get("outcome", "ok"),
        weights_version=_int(given, "version"),
    )


def _invalidate(line: Line, op_id: str) -> Invalidate:
    given = dict(line.given)
    scope, outcome = given.pop("scope", ""), given.pop("outcome", "done")
    if outcome not in ("done", "refused", "partial"):
        outcome = "done" if outcome == "ok" else "refused"
    where: dict[str, str] = {}
    kind, colon, value = scope.partition(":")
    if colon and kind in _SCOPES:
        where[_SCOPES[kind]] = value
    if line.tenant:
        where["tenant_id"] = line.tenant
    if "tmpl" in given:
        template, at, digest = given["tmpl"].partition("@")
        where |= {"template_digest": symbol(digest)} if at else {"template_id": template}
    if "adapter" in given:
        name, at, rest = given["adapter"].partition("@")
        where |= {"adapter_digest": symbol(rest.partition("*")[0])} if at else {"adapter_name": name}
    for name, dimension in _DIGESTS.items():
        if name in given:
            where[dimension] = symbol(given[name])
    for name, dimension in _TEXTS.items():
        if name in given:
            where[dimension] = given[name]
    if "iso" in given:
        where["isolation_domain"] = _domain(given) or ""
    if line.key not in ("*", ""):
        return Invalidate(scope="entry", cause=given.get("cause", ""), outcome=outcome)  # type: ignore[arg-type]  # checked
    return Invalidate(
        scope="store" if scope in ("store", "tier") else "node",
        where=where,
        cause=given.get("cause", given.get("reason", "")),
        op_id=op_id,
        outcome=outcome,  # type: ignore[arg-type]  # checked above
    )


def _parts(given: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(part for part in given.get("parts_required", "").split("+") if part)


def _int(given: Mapping[str, str], name: str) -> int | None:
    return int(float(given[name])) if name in given else None


def _float(given: Mapping[str, str], name: str) -> float | None:
    return float(given[name]) if name in given else None


def _origin(text: str) -> KeyOrigin:
    return "derived" if text == "derived" else "client" if text == "client" else "asserted"


def _kind(text: str) -> EntryKind:
    return "state" if text == "state" else "media" if text == "media" else "response" if text == "response" else "kv"


def _natural(incarnation: str) -> tuple[int, str]:
    digits = re.sub(r"\D", "", incarnation)
    return int(digits) if digits else 0, incarnation
