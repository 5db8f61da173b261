"""Orders to the fleet: which rows an epoch bump or a fleet-wide invalidation is about.

What an order's `where` names agrees with a row dimension by dimension; a corpus is named by its id, and covers every
digest that a corpus fact has told of it.
"""

from functools import lru_cache

from ..schemas.epochs import CORPUS_ID, earlier
from ..schemas.facts import EpochFact, Fact
from .factbook import FactBook
from .interning import Carrier, Identities
from .ledger.barriers import Barriers

Where = tuple[tuple[str, str], ...]


def about(
    where: dict[str, str], who: Carrier, barriers: Barriers, identities: Identities, facts: FactBook, append_us: int
) -> bool:
    """Whether an identity is of the scope, as far as the facts that were appended by `append_us` tell."""
    corpus = where.get(CORPUS_ID)
    named: Where = tuple(sorted((name, value) for name, value in where.items() if name != CORPUS_ID))
    if corpus is None:
        return barriers.agrees(named, who, identities)
    return any(
        barriers.agrees((("corpus_digest", digest), *named), who, identities)
        for digest in facts.digests_of(corpus, append_us)
    )


_earlier = lru_cache(maxsize=4096)(earlier)


def before_bump(epoch: str, bump: EpochFact) -> bool:
    """Whether what carries `epoch` was made before the bump."""
    return _earlier(epoch, bump.epoch, tuple(bump.where))


def later_bumps(facts: FactBook, fact: Fact, bump: EpochFact, append_us: int) -> frozenset[str]:
    """The epochs that the same scope was bumped to after this bump: what carries one of them is no older, whatever
    a clock inside the skew says."""
    return frozenset(
        body.epoch
        for appended_us, other in facts.orders
        if appended_us <= append_us
        and other.effective_at_us > fact.effective_at_us
        and isinstance(body := other.body, EpochFact)
        and body.where == bump.where
    )
