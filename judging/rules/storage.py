"""Storage: what was read is not what was written under this key."""

from ...schemas.digests import digest_prefix
from ...schemas.dimensions import TENSORS, Severity
from ..doubt import surely_before
from ..interning import span_end
from ..ledger.home import Held
from ..ledger.rows import Row
from ..verdicts import HitCase, Verdict


def stale_handle(case: HitCase) -> Verdict | None:
    """The place that the hit read has a newer owner than the instance it meant."""
    owner = _newer_owner(case)
    if owner is None:
        return None
    identities = case.context.identities
    foreign = identities.tenant(owner.identity) != case.requester or (
        identities.domain(owner.identity) != identities.domain(case.identity)
    )
    known = owner.identity >= 0 and case.identity >= 0
    return Verdict(
        cause="STALE_HANDLE",
        severity=Severity.CRITICAL if known and foreign else Severity.HIGH,
        title="read through a handle whose place has a newer owner",
        differing=case.differing(),
        evidence=(owner.event_id,),
    )


def _newer_owner(case: HitCase) -> Row | None:
    event, row = case.event, case.row
    place = event.place or (row.rare.place if row is not None else "")
    if not place:
        return None
    scope = row.scope if row is not None else case.scope
    owners = case.home.places.before(scope, place, case.order, case.order)
    if case.doubt:
        owners = [
            owner for owner in owners if owner is row or surely_before(owner, event, case.order, case.context.skew_us)
        ]
    last = owners[-1] if owners else None
    if last is None:
        return None
    if row is None:
        # Only the generation can say that the handle is older than what lies there.
        older = event.generation is not None and last.rare.generation > event.generation
        return last if older else None
    if last is not row:
        return last if last.order > row.order else None
    older = bool(event.place) and event.generation is not None and row.rare.generation > event.generation
    return row if older else None


def payload(case: HitCase) -> Verdict | None:
    """Bytes, tokens or digest as read differ from what was stored."""
    row, hit = case.row, case.hit
    if row is None:
        return None
    stored = row.payload_as_stored
    read_digest = hit.payload_digest
    if read_digest and stored and read_digest != stored and digest_prefix(stored) == digest_prefix(read_digest):
        return _wrong_payload(case, read_digest)
    if hit.outcome == "partial":
        return None
    size, read = row.bytes_as_stored, hit.bytes_read
    tokens = hit.tokens_read
    if read is not None and size >= 0 and read != size:
        # Half of the tokens from half of the bytes is a partial read, which is nobody's fault.
        if tokens and read < size and read * row.tokens >= size * tokens:
            return None
        return _short("bytes", read, size)
    if tokens is not None and row.tokens and tokens != row.tokens:
        return _short("tokens", tokens, row.tokens)
    return None


def _short(what: str, read: int, stored: int) -> Verdict:
    return Verdict(
        cause="PAYLOAD_MISMATCH",
        severity=Severity.HIGH,
        title=f"read {read} {what} of an entry of {stored}",
        reason="short load" if read < stored else "too much was read",
    )


def _wrong_payload(case: HitCase, digest: str) -> Verdict:
    identities = case.context.identities
    row = case.row
    for owner in case.home.payloads.owners(digest, case.home.addresses, case.order):
        if owner is row or owner.identity < 0 or case.identity < 0:
            continue
        if identities.tenant(owner.identity) != case.requester or (
            identities.domain(owner.identity) != identities.domain(case.identity)
        ):
            return Verdict(
                cause="PAYLOAD_MISMATCH",
                severity=Severity.CRITICAL,
                title="the bytes that were read are another tenant's entry",
                differing=case.differing(),
                evidence=(owner.event_id,),
            )
    return Verdict(
        cause="PAYLOAD_MISMATCH",
        severity=Severity.HIGH,
        title="the bytes that were read are not the bytes that were stored",
        differing=case.differing(),
    )


def component(case: HitCase) -> Verdict | None:
    """One part of a multi-part entry is foreign, or covers other tokens than the rest."""
    event, row = case.event, case.row
    if row is None or event.kind not in TENSORS:
        return None
    comparison = case.comparison
    beside = [one for one in case.siblings if one.clean]
    if beside and (comparison.content or comparison.domain):
        foreign = comparison.tenant or comparison.domain
        return Verdict(
            cause="COMPONENT_MISMATCH",
            severity=Severity.CRITICAL if foreign else Severity.HIGH,
            title=f"part {event.part} is another entry's than the parts beside it",
            dimension=comparison.differing[0],
            differing=comparison.differing,
            evidence=tuple(one.event.id for one in beside),
        )
    covers, asked = span_end(row.rare.span), span_end(event.span)
    if asked is None or comparison.content or comparison.domain:
        return None
    # A recurrent state stands at one position; KV can be used up to any position that it covers.
    if covers is not None and covers != asked and (event.kind == "state" or (event.part and asked > covers)):
        return _spans(case, f"part {event.part or event.kind} covers {covers} tokens and was used for {asked}")
    for one in beside:
        other = span_end(one.event.span)
        if other is not None and other != asked and _blamed(case, one):
            return _spans(case, f"part {event.part} was used for {asked} tokens, part {one.event.part} for {other}")
    return None


def _blamed(case: HitCase, other: Held) -> bool:
    """Of two parts that cover different tokens one is named: the state, which cannot be cut, else the later hit."""
    if (case.event.kind == "state") != (other.event.kind == "state"):
        return case.event.kind == "state"
    return case.order > other.order


def _spans(case: HitCase, title: str) -> Verdict:
    return Verdict(cause="COMPONENT_MISMATCH", severity=Severity.HIGH, title=title, differing=case.comparison.differing)
