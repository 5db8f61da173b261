"""A bump of a scope ends what the scope covers, and nothing else."""

import pytest
from kvtrail.judging.factbook import FactBook
from kvtrail.schemas.facts import CorpusFact, Fact

from .cases import causes


def after(created: str, bump: str, *, asked: str = "epoch=9", between: str = "") -> list[str]:
    """What a hit long after a bump is, on an entry from before it."""
    lines = [
        "n1:1 create K0 other {in=I0} t=0",
        f"n1:2 create K acme {{{created}}} t=1",
        f"r:1 registry epoch bump {{{bump}}} t=20",
        between,
        f"n1:3 hit K acme {{{created}, {asked}}} t=40",
    ]
    return causes("\n".join(line for line in lines if line))


STALE = ["n1:3 STALE_EPOCH high"]


@pytest.mark.parametrize(
    ("bump", "expected"),
    [
        ("epoch=2, tenant=acme", STALE),
        ("epoch=2, tenant=other", []),
        ("epoch=2, template=chat", STALE),
        ("epoch=2, template=search", []),
        ("epoch=2, model=m1", STALE),
        ("epoch=2, model=m2", []),
        ("epoch=2, tenant=acme, template=chat", STALE),
        ("epoch=2, tenant=acme, template=search", []),
        ("epoch=8", STALE),
    ],
)
def test_a_scope_covers_what_agrees_with_all_of_it(bump: str, expected: list[str]) -> None:
    assert after("epoch=7", bump) == expected


def test_the_number_of_another_scope_is_no_excuse() -> None:
    assert after("epoch=7", "epoch=2, tenant=acme", asked="epoch=7+tenant_id:2") == STALE
    assert after("epoch=7+template_id:5", "epoch=2, tenant=acme", asked="epoch=7+tenant_id:2") == STALE


@pytest.mark.parametrize("created", ["epoch=7+tenant_id:2", "epoch=tenant_id:3", "epoch=2"])
def test_what_is_of_the_new_epoch_already_is_not_stale(created: str) -> None:
    assert after(created, "epoch=2, tenant=acme", asked="") == []


def test_a_corpus_is_covered_in_every_revision_that_was_told() -> None:
    history = (
        "r:1 registry corpus kb {{digest=C1}} t=0\nr:2 registry corpus kb {{digest=C2}} t=1\n"
        "n1:1 create K acme {{corpus={made}}} t=2\nr:3 registry epoch bump {{epoch=2, corpus_id={named}}} t=20\n"
        "n1:2 hit K acme {{corpus={made}}} t=40"
    )
    stale = ["n1:2 STALE_EPOCH high"]
    assert causes(history.format(made="C1", named="kb")) == stale
    assert causes(history.format(made="C2", named="kb")) == stale
    assert causes(history.format(made="C3", named="kb")) == []
    assert causes(history.format(made="C1", named="wiki")) == []


def test_a_digest_that_is_told_of_later_does_not_count_yet() -> None:
    """What was judged before the fact came stays as it is, live and again."""
    history = (
        "n1:1 create K acme {corpus=C1} t=2\nr:1 registry epoch bump {epoch=2, corpus_id=kb} t=20\n"
        "n1:2 hit K acme {corpus=C1} t=40\nr:2 registry corpus kb {digest=C1} t=50\nn1:3 hit K acme {corpus=C1} t=60"
    )
    assert causes(history) == ["n1:3 STALE_EPOCH high"]


def test_a_digest_counts_from_the_append_of_its_fact() -> None:
    """A worker may have read further than the record it judges."""
    book = FactBook()
    for append_us, digest in ((10, "ab" * 32), (20, "cd" * 32)):
        fact = Fact(id=digest, effective_at_us=1, body=CorpusFact(corpus_id="kb", corpus_digest=digest))
        assert book.add(fact, append_us)
    assert [book.digests_of("kb", at_us) for at_us in (9, 10, 20)] == [[], ["ab" * 32], ["ab" * 32, "cd" * 32]]


def test_two_bumps_within_the_skew_do_not_make_the_newest_stale() -> None:
    """The entry is of the second epoch; its node's clock says that it was made before the first."""
    lines = (
        "n1:1 create K acme {{epoch={epoch}}} t=19\nr:1 registry epoch bump {{epoch=blue}} t=20\n"
        "r:2 registry epoch bump {{epoch=green}} t=21\nn1:2 hit K acme {{epoch=green}} t=60"
    )
    assert causes(lines.format(epoch="green")) == []
    assert causes(lines.format(epoch="red")) == ["n1:2 STALE_EPOCH high"]
    assert causes(lines.format(epoch="blue")) == ["n1:2 STALE_EPOCH high"]
