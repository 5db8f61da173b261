"""A trial: one held event against the ledger as it stood when the event happened."""

import hashlib
from collections.abc import Iterable

import msgspec

from ..schemas.dimensions import Severity
from ..schemas.events import Check, Create, Event, Hit
from ..schemas.findings import Finding, finding_id
from .checking import judged
from .comparison import Comparison
from .doubt import ended_before, may_have_lived, order_for
from .findings import Findings
from .interning import CONTENT_MASK, NOBODY, Who, span_end, unpack_own
from .ledger.addresses import REPLACED
from .ledger.home import Held, Home
from .ledger.rows import Mark, Row
from .observations import Keyed, Observation, PartServed, Reached
from .revisions import Revisions
from .rules import CREATE_RULES, HIT_RULES
from .verdicts import SERVED, Context, CreateCase, HitCase, Verdict


def readable(row: Row, order: int) -> bool:
    """Whether the row was never pending, or had been committed by `order`."""
    commit = row.rare.commit
    return not row.rare.pending or (commit is not None and commit.order < order)


class Trial:
    """Matches, applies the rules and puts the result among the revisions."""

    def __init__(
        self, context: Context, findings: Findings, revisions: Revisions, observations: list[Observation] | None
    ) -> None:
        self.context, self.findings, self.revisions = context, findings, revisions
        self.observations = observations

    def judge(self, home: Home, held: Held, reason: str) -> None:
        """Judge an event, for the first time (no reason) or again."""
        body = held.event.body
        if held.gone and held not in home.recent:
            return  # for want of room; it keeps its verdict
        if isinstance(body, Hit):
            finding = self._hit(home, held, body)
        elif isinstance(body, Create):
            finding = self._create(home, held, body)
        elif isinstance(body, Check):
            finding = self._check(home, held, body)
        else:
            return
        if finding is not None:
            held.told = True
        if held.told:
            self.revisions.put(finding_id(held.event.id), finding, reason)

    def may_change(self, home: Home, held: Held) -> bool:
        """Whether something that is missing, or that another request part may show, can change the verdict."""
        event = held.event
        is_part = bool(event.part and isinstance(event.body, Hit) and event.request_id in home.requests)
        return is_part or self.may_change_alone(home, held)

    def may_change_alone(self, home: Home, held: Held) -> bool:
        """Whether something that is missing can change the verdict."""
        event = held.event
        if isinstance(event.body, Check):
            return held.unmatched or bool(event.key and home.gapped)
        if home.gapped or held.unmatched or held.disputed:
            return True
        return held.identity < 0 and bool(event.request_id)

    def settle(self, home: Home, final: Iterable[Held]) -> None:
        """These verdicts are final, unless what is not held may still show otherwise."""
        for held in final:
            body = held.event.body
            if isinstance(body, Hit):
                self._served_for_good(home, held)
            elif isinstance(body, Create) and body.finish is not None and self._may_be_restated(home, held):
                continue
            if held.told and held not in home.recent:
                self.revisions.settle(finding_id(held.event.id))

    def remember(self, home: Home, held: Held) -> None:
        """A hit of a node that does not own the home was found to be right. The one that it takes the place of is
        final, unless it is held."""
        recent = home.recent
        if len(recent) == recent.maxlen:
            oldest = recent.popleft()
            if oldest.told and not home.is_held(oldest.order, oldest.address):
                self.settle(home, (oldest,))
        recent.append(held)

    def _hit(self, home: Home, held: Held, hit: Hit) -> Finding | None:
        event = held.event
        held.unmatched = held.disputed = False
        if hit.outcome not in SERVED:
            return None
        case, verdict = self._read(home, held, hit, *self._match(home, held), held.order)
        if verdict is not None:
            case, verdict = self._kindest(home, held, hit, case, verdict)
        row = case.row
        # An entry whose creator is still to be resolved has nobody to be compared with either.
        held.unmatched = row is None or (row.identity < 0 and bool(row.request_id))
        held.disputed = verdict is not None and home.has_others(event.node)
        self._served(home, held, row)
        if not held.seen:
            held.seen = True
            case.comparison.hits += 1
        held.clean = (
            row is not None and held.identity >= 0 and not case.comparison.content and not case.comparison.domain
        )
        if self.observations is not None:
            self._observe_hit(case)
        if verdict is None:
            return None
        complete = not home.missing(event.tier, held.order)
        return self.findings.about_event(event, verdict, held.who, row, complete=complete, reused=hit.reused_tokens)

    def _kindest(
        self, home: Home, held: Held, hit: Hit, case: HitCase, verdict: Verdict
    ) -> tuple[HitCase, Verdict | None]:
        """The hit on whichever instance leaves it innocent, of those that may have lived when it happened. Where none
        does, one whose bytes are those that were read is more likely than one whose bytes are not."""
        skew_us = self.context.skew_us
        for row in self._eligible(list(may_have_lived(home, held, skew_us)), held):
            other, answer = self._read(home, held, hit, row, None, order_for(held, row, skew_us), doubt=True)
            if answer is None:
                return other, None
            if verdict.cause == "PAYLOAD_MISMATCH" != answer.cause:
                case, verdict = other, answer
        return case, verdict

    def _read(
        self, home: Home, held: Held, hit: Hit, row: Row | None, end: Mark | None, order: int, *, doubt: bool = False
    ) -> tuple[HitCase, Verdict | None]:
        """What is to be said of the hit, had it been on this instance. `doubt`: nothing counts that other nodes may
        have done after it."""
        context, event = self.context, held.event
        creator = NOBODY if row is None else row
        until = span_end(event.span)
        if until is None and row is not None:
            until = span_end(row.rare.span) or row.tokens or None
        comparison = context.comparator.compare(creator, held.who, event.kind, hit.match_mode, until)
        case = HitCase(
            event=event,
            hit=hit,
            order=order,
            append_us=held.append_us,
            who=held.who,
            home=home,
            row=row,
            end=end,
            comparison=comparison,
            # What an incarnation left unsaid until the next had begun may be about what was forgotten since.
            blind=not home.complete(event.tier, order) or held.tail,
            siblings=self._siblings(home, held),
            doubt=doubt,
            context=context,
        )
        for rule in HIT_RULES:
            verdict = rule(case)
            if verdict is not None:
                return case, verdict
        return case, None

    def _observe_hit(self, case: HitCase) -> None:
        assert self.observations is not None
        event, row, comparison = case.event, case.row, case.comparison
        if event.part and event.request_id:
            self.observations.append(
                PartServed(
                    event.id, event.time_us, event.request_id, case.requester, event.part, case.hit.parts_required
                )
            )
        if row is not None:
            self.observe_reached(event, row, case.who, comparison)

    def observe_reached(self, event: Event, row: Row, who: Who, comparison: Comparison) -> None:
        """Hand on what probing is made of: content of another tenant that was not declared shareable."""
        assert self.observations is not None
        if row.identity < 0 or who.identity < 0 or not comparison.tenant:
            return
        identities = self.context.identities
        # Declared shareable is meant to be reached, and what differs is a finding of its own.
        if identities.declared_public(row.identity) or comparison.content or comparison.domain:
            return
        own = unpack_own(row.mask, row.own)
        self.observations.append(
            Reached(
                event.id,
                event.time_us,
                event.request_id,
                identities.tenant(who.identity),
                who.principal or "",
                identities.tenant(row.identity),
                row.event_id,
                (row.key_text, hashlib.sha256(row.key_text.encode()).hexdigest(), *own.values()),
                own.get("parent_digest", ""),
                span_end(row.rare.span) or row.tokens,
            )
        )

    def observe_create(self, event: Event, who: Who) -> None:
        """Hand on what key drift compares: the key, and everything that it may depend on."""
        assert self.observations is not None
        if who.identity < 0 or event.key_origin != "derived" or not who.mask & CONTENT_MASK:
            return
        packed = who.own if isinstance(who.own, bytes) else "\n".join(who.own).encode()
        about = (
            f"{event.store}/{event.tier}/{event.kind}/{event.part}/{event.rank}/{event.span}/{event.entry_version}"
            f"/{who.principal}"
        )
        whole = self.context.identities.digest(who.identity) + who.mask.to_bytes(2, "big") + packed + about.encode()
        signature = hashlib.sha256(whole).hexdigest()[:32]
        self.observations.append(Keyed(event.id, event.time_us, event.node, event.store, signature, event.key))

    def concerned(self, home: Home, held: Held) -> list[Held]:
        """The other parts of a request of which this one, which is right, may show that they are not: where one is
        right so far, only by covering other tokens."""
        until = span_end(held.event.span)
        return [one for one in self._siblings(home, held) if not one.clean or span_end(one.event.span) != until]

    def _siblings(self, home: Home, held: Held) -> list[Held]:
        event = held.event
        if not event.part or not event.request_id:
            return []
        return [one for one in home.requests.get(event.request_id, ()) if one.event.part != event.part]

    def _eligible(self, rows: list[Row], held: Held) -> list[Row]:
        """Of several instances those that the event can mean by what it says."""
        context, event = self.context, held.event
        if rows and context.facts.partitioned(event.store, held.append_us, event.time_us):
            domain = context.identities.domain(held.identity)
            rows = [row for row in rows if context.identities.domain(row.identity) == domain]
        if event.entry_version:
            rows = [row for row in rows if row.rare.version == event.entry_version] or rows
        if event.place:
            rows = [row for row in rows if self._meant(row, event)] or rows
        return rows

    def _match(self, home: Home, held: Held) -> tuple[Row | None, Mark | None]:
        """The live instance at the address, else the one that ended there last within the horizon."""
        context, event, order = self.context, held.event, held.order
        rows = self._eligible(home.candidates(event, order, context.skew_us), held)
        live: list[Row] = []
        ended: list[tuple[int, Row, Mark]] = []
        for row in rows:
            end = home.addresses.end_of(row, order)
            if end is not None and self._contradicted(end, event):
                end = None
            if end is None:
                end = self._told_later(home, row, held, order)
            if end is None:
                live.append(row)
            else:
                ended.append((end.order, row, end))
        domain = context.identities.domain(held.identity)
        if live:
            live = [row for row in live if readable(row, order)] or live
            own = [row for row in live if context.identities.domain(row.identity) == domain]
            return max(own or live, key=lambda row: row.order), None
        if not ended:
            return None, None
        own_ended = [one for one in ended if context.identities.domain(one[1].identity) == domain]
        _, row, end = max(own_ended or ended, key=lambda item: (item[0], item[1].order))
        return (row, end) if event.time_us - end.time_us <= context.horizon_us else (None, None)

    @staticmethod
    def _meant(row: Row, event: Event) -> bool:
        return row.rare.place == event.place and (event.generation is None or row.rare.generation == event.generation)

    def _contradicted(self, end: Mark, event: Event) -> bool:
        """The end comes before the hit in the home's order, but the clocks of the two nodes deny it."""
        return end.time_us > event.time_us + self.context.skew_us and end.node != event.node

    def _told_later(self, home: Home, row: Row, held: Held, order: int) -> Mark | None:
        """What ended the row by another node's word that came after the hit, though the clocks put it before."""
        event, skew_us = held.event, self.context.skew_us
        end = row.end if row.end is not None and row.end.reason != REPLACED else None
        foreign = end is not None and end.order > order and end.node != event.node
        if end is not None and foreign and end.time_us + skew_us < event.time_us:
            return end
        return home.barriers.told_later(row, order, event, skew_us, self.context.identities)

    def _served(self, home: Home, held: Held, row: Row | None) -> None:
        """An unfinished response that is served is worse than one that is stored; the hit may match another later."""
        for other in home.addresses.rows(*held.address):
            if other is not row and held.order in other.rare.served:
                other.rare.served -= {held.order}
                self._restate(other, "the hit was matched to another instance")
        if row is not None and row.rare.unfinished and not row.rare.served_for_good:
            row.rare.served |= {held.order}
            self._restate(row, "it was served")

    def _restate(self, row: Row, reason: str) -> None:
        known = self.revisions.standing.get(finding_id(row.event_id))
        if known is None or known.cause != "INCOMPLETE_ENTRY" or known.severity is Severity.LOW:
            return
        served = row.rare.served_for_good or bool(row.rare.served)
        severity = Severity.HIGH if served else Severity.MEDIUM
        self.revisions.put(known.id, msgspec.structs.replace(known, severity=severity), reason)

    def _served_for_good(self, home: Home, held: Held) -> None:
        for row in home.addresses.rows(*held.address):
            if held.order in row.rare.served:
                row.rare.served = frozenset()
                row.rare.served_for_good = True
                if not home.is_held(row.order, held.address):
                    self.revisions.settle(finding_id(row.event_id))

    def _may_be_restated(self, home: Home, held: Held) -> bool:
        """Whether a hit can still raise what was found about a create, or lower it by being matched elsewhere."""
        known = self.revisions.standing.get(finding_id(held.event.id)) if held.told else None
        if known is None or known.cause != "INCOMPLETE_ENTRY" or known.severity is Severity.LOW:
            return False
        rows = home.addresses.rows(*held.address)
        return not any(row.order == held.order and row.rare.served_for_good for row in rows)

    def _check(self, home: Home, held: Held, check: Check) -> Finding:
        row = self._match(home, held)[0] if held.event.key else None
        held.unmatched = bool(held.event.key) and (row is None or (row.identity < 0 and bool(row.request_id)))
        return judged(self, home, held, check, row)

    def _create(self, home: Home, held: Held, create: Create) -> Finding | None:
        rows = home.addresses.rows(*held.address)
        row = next((row for row in rows if row.order == held.order), None)
        if row is None:
            return None
        if self.observations is not None:
            self.observe_create(held.event, held.who)
        live = [
            other
            for other in rows
            if other.order < held.order
            and home.addresses.end_of(other, held.order) is None
            and not ended_before(other, row, self.context.skew_us)
        ]
        case = CreateCase(
            event=held.event,
            create=create,
            order=held.order,
            append_us=held.append_us,
            row=row,
            live=live,
            home=home,
            context=self.context,
        )
        worst: Verdict | None = None
        for rule in CREATE_RULES:
            verdict = rule(case)
            if verdict is not None and (worst is None or verdict.severity.rank > worst.severity.rank):
                worst = verdict
        held.disputed = worst is not None and worst.cause == "KEY_UNDERSPECIFIED" and home.owner != held.event.node
        if worst is None:
            return None
        complete = not home.missing(held.event.tier, held.order)
        return self.findings.about_event(held.event, worst, held.who, worst.other or row, complete=complete)
