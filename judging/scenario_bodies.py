"""The fields of a history line as the body of an event."""

from collections.abc import Mapping

from ..schemas.errors import InvalidField
from ..schemas.events import Check, Create, Hit, Invalidate
from .rules.checks import CHECK_RULES
from .scenario_identity import DIGESTS, TEXTS, domain_of, symbol
from .scenario_lines import Line

_SCOPES = {
    "tenant": "tenant_id", "template": "template_id", "adapter": "adapter_name", "model": "model_id",
    "principal": "principal",
}  # fmt: skip


def create_of(given: Mapping[str, str]) -> Create:
    """What a create line says."""
    finish = given.get("finish")
    payload = given.get("payload")
    return Create(
        tokens=whole_number(given, "tokens") or whole_number(given, "upto") or 0,
        computed_tokens=whole_number(given, "computed"),
        reported_tokens=whole_number(given, "reused_reported"),
        bytes=whole_number(given, "bytes"),
        payload_digest=symbol(payload) if payload else None,
        rederived_key=given.get("derive"),
        finish="" if finish == "none" else finish,
        ttl_s=number(given, "ttl"),
        max_age_s=number(given, "maxage"),
        lease_s=number(given, "lease"),
        state="pending" if given.get("state") == "pending" else "committed",
        weights_version=whole_number(given, "version"),
    )


def hit_of(given: Mapping[str, str]) -> Hit:
    """What a hit line says."""
    payload = given.get("payload")
    tokens = whole_number(given, "tokens")
    loaded = whole_number(given, "loaded")
    return Hit(
        reused_tokens=tokens or 0,
        reported_tokens=whole_number(given, "reused_reported"),
        tokens_read=tokens,
        bytes_read=loaded if loaded is not None else whole_number(given, "bytes"),
        payload_digest=symbol(payload) if payload else None,
        age_s=number(given, "age"),
        match_mode="semantic" if given.get("mode") == "semantic" else "exact",
        similarity=number(given, "sim"),
        parts_required=parts_of(given),
        outcome=given.get("outcome", "ok"),
        weights_version=whole_number(given, "version"),
    )


def check_of(given: Mapping[str, str]) -> Check:
    """What a check line says. Raises `InvalidField` for a kind or a result that does not exist."""
    kind, result = given.get("check", ""), given.get("result", "fail")
    if kind not in CHECK_RULES or result not in ("pass", "fail", "inconclusive"):
        raise InvalidField("is no check or no result.", field="check", remedy="See tests/catalogue/FORMAT.md.")
    return Check(
        check=kind,  # type: ignore[arg-type]  # checked above
        result=result,  # type: ignore[arg-type]  # checked above
        expected=given.get("expected", ""),
        observed=given.get("observed", ""),
    )


def invalidate_of(line: Line, op_id: str) -> Invalidate:
    """What an invalidate line says; its scope comes from the line's own fields."""
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
    for name, dimension in DIGESTS.items():
        if name in given:
            where[dimension] = symbol(given[name])
    for name, dimension in TEXTS.items():
        if name in given:
            where[dimension] = given[name]
    if "iso" in given:
        where["isolation_domain"] = domain_of(given) or ""
    if line.key not in ("*", ""):
        return Invalidate(scope="entry", cause=given.get("cause", ""), outcome=outcome)  # type: ignore[arg-type]  # checked
    return Invalidate(
        scope="store" if scope in ("store", "tier") else "node",
        where=where,
        cause=given.get("cause", given.get("reason", "")),
        op_id=op_id,
        outcome=outcome,  # type: ignore[arg-type]  # checked above
    )


def parts_of(given: Mapping[str, str]) -> tuple[str, ...]:
    """Names joined by `+`."""
    return tuple(part for part in given.get("parts_required", "").split("+") if part)


def whole_number(given: Mapping[str, str], name: str) -> int | None:
    """The field as a whole number, None where it is not given."""
    return int(float(given[name])) if name in given else None


def number(given: Mapping[str, str], name: str) -> float | None:
    """The field as a number, None where it is not given."""
    return float(given[name]) if name in given else None
