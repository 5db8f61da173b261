"""Facts joined to events: what held for an event, as of its own time, among the facts that had been appended.

Two orders meet here. The log's append time decides which facts an envelope may know at all, so that live and replay
agree; a fact's `effective_at_us` against the event's own time decides which of those holds.
"""

from bisect import bisect_right, insort
from collections.abc import Iterator
from operator import itemgetter

from ..schemas.facts import (
    AdapterFact,
    AliasFact,
    CorpusFact,
    EpochFact,
    Fact,
    InvalidationFact,
    PolicyFact,
    StoreFact,
    TemplateFact,
    Tick,
    WeightsFact,
)

_Entry = tuple[int, int, int, Fact]  # effective, append, arrival, fact
_NAMES: dict[type, str] = {
    TemplateFact: "template_id",
    AliasFact: "alias",
    WeightsFact: "model_id",
    AdapterFact: "adapter_name",
    CorpusFact: "corpus_id",
    PolicyFact: "tenant_id",
    StoreFact: "store",
}


class FactBook:
    """Every fact a worker has read. Shared by all judges of a worker; not part of snapshots."""

    def __init__(self) -> None:
        self._ids: set[str] = set()
        self._named: dict[tuple[type, str], list[_Entry]] = {}
        self._corpora: dict[str, str] = {}
        self._log: list[tuple[int, int, Fact]] = []
        self.orders: list[tuple[int, Fact]] = []
        """Epoch bumps and fleet-wide invalidations: (append time, fact), in arrival order."""
        self._effects: list[tuple[int, int]] = []
        """When each of them takes effect, and which it is, in that order."""
        self.ordered_until_us = -1
        """The latest time at which one of them takes effect."""
        self.keep_to_themselves: set[str] = set()
        """Tenants that have ever declared that their entries are not for every other."""
        self.not_cached: set[str] = set()
        """Tenants that have ever declared that they must not be cached."""

    def add(self, fact: Fact, append_us: int) -> bool:
        """Take one fact, appended to the log at `append_us`. False when its id is known already."""
        body = fact.body
        if isinstance(body, Tick):
            return True  # says nothing but the time, and there is no end of them
        if fact.id in self._ids:
            return False
        self._ids.add(fact.id)
        arrival = len(self._ids)
        insort(self._log, (append_us, arrival, fact), key=itemgetter(0, 1))
        name = _NAMES.get(type(body))
        if name is not None:
            entries = self._named.setdefault((type(body), getattr(body, name)), [])
            insort(entries, (fact.effective_at_us, append_us, arrival, fact), key=itemgetter(0, 1, 2))
        if isinstance(body, PolicyFact):
            if not body.caching:
                self.not_cached.add(body.tenant_id)
            if body.sharing != "fleet":
                self.keep_to_themselves.add(body.tenant_id)
        if isinstance(body, CorpusFact):
            self._corpora.setdefault(body.corpus_digest, body.corpus_id)
        if isinstance(body, EpochFact | InvalidationFact):
            insort(self._effects, (fact.effective_at_us, len(self.orders)))
            self.orders.append((append_us, fact))
            self.ordered_until_us = max(self.ordered_until_us, fact.effective_at_us)
        return True

    def history(self, kind: type, name: str, append_us: int, time_us: int) -> list[Fact]:
        """Facts of one kind about `name` that hold or held at `time_us`, oldest first."""
        entries = self._named.get((kind, name))
        if not entries:
            return []
        end = bisect_right(entries, time_us, key=itemgetter(0))
        return [entry[3] for entry in entries[:end] if entry[1] <= append_us]

    def current(self, kind: type, name: str, append_us: int, time_us: int) -> Fact | None:
        """The fact of one kind about `name` that holds at `time_us`, or None."""
        if (kind, name) not in self._named:
            return None
        known = self.history(kind, name, append_us, time_us)
        return known[-1] if known else None

    def policy(self, tenant_id: str, append_us: int, time_us: int) -> tuple[PolicyFact, str] | None:
        """A tenant's policy with the id of the fact that declares it."""
        fact = self.current(PolicyFact, tenant_id, append_us, time_us)
        return (fact.body, fact.id) if fact is not None and isinstance(fact.body, PolicyFact) else None

    def orders_between(self, after_us: int, until_us: int) -> list[tuple[int, Fact]]:
        """The orders that take effect after `after_us` and not after `until_us`, in arrival order."""
        first, end = (bisect_right(self._effects, (at_us, len(self.orders))) for at_us in (after_us, until_us))
        return [self.orders[number] for number in sorted(number for _, number in self._effects[first:end])]

    def partitioned(self, store: str, append_us: int, time_us: int) -> bool:
        """Whether the store is declared to keep isolation domains apart by address."""
        fact = self.current(StoreFact, store, append_us, time_us)
        return fact is not None and isinstance(fact.body, StoreFact) and fact.body.partitioned

    def corpus_of(self, digest: str) -> str | None:
        """The id of the corpus that a digest was published for."""
        return self._corpora.get(digest)

    def digests_of(self, corpus_id: str, append_us: int) -> list[str]:
        """Every digest that was published for a corpus by `append_us`, oldest first."""
        bodies = [entry[3].body for entry in self._named.get((CorpusFact, corpus_id), ()) if entry[1] <= append_us]
        return list(dict.fromkeys(body.corpus_digest for body in bodies if isinstance(body, CorpusFact)))

    def appended(self, after_us: int, until_us: int) -> Iterator[Fact]:
        """Facts appended in (`after_us`, `until_us`], in that order."""
        for append_us, _, fact in self._log[bisect_right(self._log, after_us, key=itemgetter(0)) :]:
            if append_us > until_us:
                return
            yield fact
