"""Identity: what was served is not what was asked for, or not for whom it was made."""

from ...schemas.dimensions import TENSORS, Severity
from ...schemas.facts import AdapterFact, AliasFact, CorpusFact, Fact, PolicyFact, TemplateFact, WeightsFact
from ...schemas.identity import DIMENSIONS, Identity
from ..comparison import DERIVED
from ..interning import span_bounds
from ..verdicts import HitCase, Verdict, uncovered

CROSS_TENANT = "CROSS_TENANT_REUSE"
_OF_WEIGHTS = frozenset({"weights_digest", "resolved_model", "model_id"})


def identity(case: HitCase) -> Verdict | None:
    """A content dimension differs, a barrier was crossed, or policy forbids the sharing."""
    comparison = case.comparison
    row = case.row
    if row is None or not comparison.differing:
        return None
    fuzzy = case.hit.match_mode == "semantic"
    other = comparison.tenant or comparison.domain
    forbidden = _forbidden(case) if comparison.tenant else None
    # A fuzzy match is another content by definition: then who may see it is all that is left.
    scope = fuzzy and not _declared_public(case) and (comparison.tenant or comparison.principal)
    if not (comparison.content or comparison.domain or forbidden or scope):
        return None
    foreign = other and (bool(comparison.content) or (fuzzy and not _declared_public(case)))
    dimension = _dimension(case, fuzzy=fuzzy, other=other)
    verdict = _Cause(case, dimension).verdict() if dimension in comparison.content else None
    if verdict is not None and not foreign:
        return verdict
    severity = Severity.CRITICAL if foreign else _severity(case, dimension)
    facts: tuple[str, ...] = (forbidden,) if forbidden and not comparison.content else ()
    return Verdict(
        cause=verdict.cause if verdict is not None else DIMENSIONS[dimension].cause,
        severity=severity,
        title=verdict.title if verdict is not None else _title(case, dimension, fuzzy=fuzzy, policy=bool(facts)),
        dimension=dimension,
        differing=case.differing(dimension),
        facts=verdict.facts if verdict is not None else facts,
    )


def _dimension(case: HitCase, *, fuzzy: bool, other: bool) -> str:
    """The dimension that names the cause."""
    comparison = case.comparison
    whose = "tenant_id" if comparison.tenant else "isolation_domain"
    asserted = case.row is not None and case.row.origin == "asserted"
    if other and (fuzzy or asserted or not comparison.content):
        return whose
    return comparison.content[0] if comparison.content else "principal"


def _severity(case: HitCase, dimension: str) -> Severity:
    """The base of the cause, raised by what else differs and is not merely derived from it."""
    comparison = case.comparison
    severity = DIMENSIONS[dimension].severity
    names = [name for name in comparison.content if name not in DERIVED]
    if comparison.principal and comparison.content:
        names.append("principal")
    for name in names:
        severity = severity.raised_to(DIMENSIONS[name].severity)
    return severity


def _title(case: HitCase, dimension: str, *, fuzzy: bool, policy: bool) -> str:
    if policy:
        return "policy forbids this sharing: the entry is its tenant's own"
    if fuzzy and dimension in ("tenant_id", "principal"):
        return f"a fuzzy match crossed {DIMENSIONS[dimension].title}s"
    return uncovered(case.differing(dimension))


def _declared_public(case: HitCase) -> bool:
    """The creator declared the entry shareable, which is more than not having asked for a barrier."""
    row = case.row
    return (
        row is not None
        and row.identity >= 0
        and case.context.identities.get(row.identity).isolation_domain == ""
        and not case.comparison.domain
    )


def _forbidden(case: HitCase) -> str | None:
    """The policy fact by which the creator's entries may not be served to this requester, or None."""
    facts, row = case.context.facts, case.row
    assert row is not None
    policy = facts.policy(case.context.identities.tenant(row.identity), case.append_us, case.event.time_us)
    if policy is None or policy[0].sharing == "fleet":
        return None
    if policy[0].sharing == "group":
        theirs = facts.policy(case.requester, case.append_us, case.event.time_us)
        if theirs is not None and theirs[0].sharing == "group" and theirs[0].group == policy[0].group:
            return None
    return policy[1]


class _Cause:
    """What facts know about the dimension that differs: a better name for the cause, evidence, a severity."""

    def __init__(self, case: HitCase, dimension: str) -> None:
        self.case, self.dimension = case, dimension
        row = case.row
        assert row is not None
        self.row = row
        self.created: Identity = case.context.identities.get(row.identity)
        self.asked: Identity = case.context.identities.get(case.identity)

    def verdict(self) -> Verdict:
        if DIMENSIONS[self.dimension].cause == "WEIGHTS_MISMATCH":
            return self._allowed() or self._alias() or self._plain(self._fact(WeightsFact, self.asked.model_id))
        if self.dimension == "corpus_digest":
            return self._corpus()
        if self.dimension == "template_digest":
            return self._plain(self._fact(TemplateFact, self.asked.template_id))
        if DIMENSIONS[self.dimension].cause == "ADAPTER_MISMATCH":
            return self._plain(self._fact(AdapterFact, self.asked.adapter_name))
        return self._plain(None)

    def _fact(self, kind: type, name: str | None) -> Fact | None:
        case = self.case
        return case.context.facts.current(kind, name, case.append_us, case.event.time_us) if name else None

    def _plain(self, fact: Fact | None) -> Verdict:
        differing = self.case.differing(self.dimension)
        return Verdict(
            cause=DIMENSIONS[self.dimension].cause,
            severity=_severity(self.case, self.dimension),
            title=uncovered(differing),
            dimension=self.dimension,
            differing=differing,
            facts=(fact.id,) if fact is not None else (),
        )

    def _alias(self) -> Verdict | None:
        if self.created.model_id != self.asked.model_id:
            return None
        fact = self._fact(AliasFact, self.asked.model_id)
        if fact is None:
            return None
        differing = self.case.differing(self.dimension)
        return Verdict(
            cause="ALIAS_MOVED",
            severity=_severity(self.case, self.dimension),
            title="the alias moved to other weights and the entry stayed",
            dimension=self.dimension,
            differing=differing,
            facts=(fact.id,),
        )

    def _allowed(self) -> Verdict | None:
        """A lag in weights versions that the tenant's policy accepts, with nothing else wrong."""
        case, comparison = self.case, self.case.comparison
        made, wanted = self.row.rare.weights_version, case.hit.weights_version
        if comparison.scope or made is None or wanted is None or not _OF_WEIGHTS.issuperset(comparison.content):
            return None
        fact = self._fact(PolicyFact, self.asked.tenant_id)
        if fact is None or not isinstance(fact.body, PolicyFact) or fact.body.max_lag_versions is None:
            return None
        lag = wanted - made
        if not 0 <= lag <= fact.body.max_lag_versions:
            return None
        return Verdict(
            cause="ALLOWED_STALENESS",
            severity=Severity.INFO,
            title=f"{lag} weights version(s) old, which policy accepts",
            dimension=self.dimension,
            differing=case.differing(self.dimension),
            facts=(fact.id,),
        )

    def _corpus(self) -> Verdict:
        """Removed content that is still served is worse than content that is merely out of date."""
        case, facts = self.case, self.case.context.facts
        corpus = facts.corpus_of(self.asked.corpus_digest or "")
        past = facts.history(CorpusFact, corpus, case.append_us, case.event.time_us) if corpus is not None else []
        since: list[tuple[str, CorpusFact]] = []
        for fact in past:
            if not isinstance(fact.body, CorpusFact):
                continue
            since.append((fact.id, fact.body))
            if fact.body.corpus_digest == self.created.corpus_digest:
                since = []
        asked = [i for i, (_, body) in enumerate(since) if body.corpus_digest == self.asked.corpus_digest]
        since = since[: asked[-1] + 1] if asked else []
        plain = self._plain(None)
        if not since:
            return plain
        removed = any(body.change == "delete" for _, body in since)
        return Verdict(
            cause=plain.cause,
            severity=plain.severity.raised_to(Severity.HIGH) if removed else plain.severity,
            title="content removed from the corpus is still served" if removed else plain.title,
            dimension=plain.dimension,
            differing=plain.differing,
            facts=tuple(fact_id for fact_id, _ in since),
        )


def position(case: HitCase) -> Verdict | None:
    """Tensors of one span were used for tokens outside it: position is part of what they mean."""
    row, event = case.row, case.event
    if row is None or event.kind not in TENSORS:
        return None
    stored, asked = span_bounds(row.rare.span), span_bounds(event.span)
    if stored is None or asked is None or (stored[0] <= asked[0] and asked[1] <= stored[1]):
        return None
    foreign = case.comparison.tenant or case.comparison.domain
    return Verdict(
        cause="KEY_COLLISION",
        severity=Severity.CRITICAL if foreign else Severity.HIGH,
        title=f"tokens {stored[0]}-{stored[1]} were used for {asked[0]}-{asked[1]}",
        differing=case.differing(),
    )
