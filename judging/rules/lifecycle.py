"""Life cycle: served before it could be read, after it had ended, or beyond its age."""

from ...schemas.dimensions import Severity
from ...schemas.epochs import epoch_in
from ...schemas.facts import EpochFact, InvalidationFact
from ..ledger.addresses import REPLACED
from ..orders import about, before_bump, later_bumps
from ..verdicts import HitCase, Verdict

_EXPIRED = frozenset({"ttl", "capacity", "lease", "demoted", "restart", REPLACED})


def uncommitted(case: HitCase) -> Verdict | None:
    """Hit while pending, or after it was aborted: there was nothing to read yet."""
    row = case.row
    if row is None:
        return None
    aborted = case.end is not None and case.end.reason == "aborted"
    if not aborted:
        commit = row.rare.commit
        readable = not row.rare.pending or (commit is not None and commit.order < case.order)
        if readable or (case.end is not None and case.end.reason == "failed"):
            return None
        if row.request_id and row.request_id == case.event.request_id:
            return None  # the request that fills it may use it
    evidence = (case.end.event_id,) if case.end is not None else ()
    severity = Severity.HIGH
    if row.rare.place:
        before = [
            owner
            for owner in case.home.places.before(row.scope, row.rare.place, row.order, case.order)
            if owner is not row
        ]
        identities = case.context.identities
        if before and identities.tenant(before[-1].identity) != case.requester:
            severity, evidence = Severity.CRITICAL, (*evidence, before[-1].event_id)
    return Verdict(
        cause="HIT_UNCOMMITTED",
        severity=severity,
        title="served an entry whose write was aborted" if aborted else "served an entry before it was committed",
        differing=case.differing(),
        evidence=evidence,
    )


def failed(case: HitCase) -> Verdict | None:
    """Hit on an entry whose write failed."""
    return _ended(case, frozenset({"failed"}), "HIT_FAILED_ENTRY", "served an entry whose write had failed")


def invalidated(case: HitCase) -> Verdict | None:
    """Hit on an entry that an invalidation covers: an event at its home, or an order to the whole fleet."""
    found = _ended(case, frozenset({"invalidated"}), "HIT_AFTER_INVALIDATE", "served after it had been invalidated")
    return found or _ordered(case)


def expired(case: HitCase) -> Verdict | None:
    """Hit on an entry that had expired, been evicted, or whose node had restarted."""
    end = case.end
    if end is None or end.reason not in _EXPIRED:
        return None
    return _ended(case, _EXPIRED, "HIT_AFTER_EXPIRE", f"served after it had ended ({end.reason})")


def age(case: HitCase) -> Verdict | None:
    """Older than its declared maximum, by the reader's word or by the clocks."""
    row, hit, event = case.row, case.hit, case.event
    if row is None or row.rare.max_age_us < 0:
        return None
    elapsed = event.time_us - row.time_us
    if row.lane.node != event.node:
        elapsed -= case.context.skew_us
    oldest = max(elapsed, round(hit.age_s * 1e6) if hit.age_s is not None else 0)
    if oldest <= row.rare.max_age_us:
        return None
    return Verdict(
        cause="AGE_EXCEEDED",
        severity=Severity.MEDIUM,
        title=f"{oldest / 1e6:g} s old, of at most {row.rare.max_age_us / 1e6:g} s",
        differing=case.differing(),
    )


def _ended(case: HitCase, reasons: frozenset[str], cause: str, title: str) -> Verdict | None:
    if case.row is None or case.end is None or case.end.reason not in reasons:
        return None
    return Verdict(
        cause=cause,
        severity=Severity.MEDIUM if case.end.reason == "ttl" else Severity.HIGH,
        title=title,
        differing=case.differing(),
        evidence=(case.end.event_id,),
    )


def _ordered(case: HitCase) -> Verdict | None:
    """Epoch bumps and fleet-wide invalidations, by the clocks: inside the skew nothing can be said."""
    row, event, context = case.row, case.event, case.context
    if row is None or row.identity < 0:
        return None
    for append_us, fact in context.facts.orders_between(row.time_us, event.time_us):
        body = fact.body
        if append_us > case.append_us:
            continue
        assert isinstance(body, EpochFact | InvalidationFact)
        if not about(body.where, row, case.home.barriers, context.identities, context.facts, case.append_us):
            continue
        created = context.identities.get(row.identity)
        settled = event.time_us > fact.effective_at_us + context.skew_us
        if isinstance(body, InvalidationFact):
            if settled and row.time_us + context.skew_us < fact.effective_at_us:
                return Verdict(
                    cause="HIT_AFTER_INVALIDATE",
                    severity=Severity.HIGH,
                    title="served after the fleet had been told to invalidate it",
                    differing=case.differing(),
                    facts=(fact.id,),
                )
            continue
        if created.epoch is None or not before_bump(created.epoch, body):
            continue
        if epoch_in(created.epoch, body.where) in later_bumps(context.facts, fact, body, case.append_us):
            continue
        asked = context.identities.get(case.identity).epoch if case.identity >= 0 else None
        if settled or (asked is not None and not before_bump(asked, body)):
            return Verdict(
                cause="STALE_EPOCH",
                severity=Severity.HIGH,
                title="served across a bumped epoch",
                dimension="epoch",
                differing=("epoch", *case.differing()),
                facts=(fact.id,),
            )
    return None
