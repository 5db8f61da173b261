"""Where assemblers learn of epochs: configuration, facts, and how scopes combine in one prompt."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvtrail.producers.epoch import EpochMarker
from kvtrail.producers.epochs import Bump, Epochs, epoch_source, scope_of
from kvtrail.producers.facts import epoch_bumped
from kvtrail.schemas.config import Config, EpochConfig, load_config
from kvtrail.schemas.epochs import LONGEST, earlier, parts_of
from kvtrail.schemas.errors import BrokerError, ConfigError, InvalidField, NameInDigestPlace
from kvtrail.schemas.facts import EpochFact, Fact, StoreFact

CONTOSO = {"tenant_id": "contoso", "template_id": "support_v7", "model_id": "m1", "corpus_id": "kb"}


def bumped(epoch: str, at_us: int = 1, **where: str) -> Fact:
    return epoch_bumped(epoch, where, effective_at_us=at_us)


def test_one_value_of_the_configuration(tmp_path: Path) -> None:
    file = tmp_path / "kvtrail.toml"
    file.write_text('[epoch]\nvalue = "7"\n[epoch.scopes]\n"tenant_id=contoso" = "2"\n"template_id=search" = "5"\n')
    source = epoch_source(load_config(file, {}))
    assert source.of(**CONTOSO) == "7+tenant_id:2"
    assert source.of(tenant_id="northwind", template_id="search") == "7+template_id:5"
    assert source.mark("Hello", **CONTOSO) == "[epoch:7+tenant_id:2]\nHello"
    source.close()
    assert epoch_source(load_config(None, {"KVTRAIL_EPOCH__VALUE": "2026-11-29.1"})).of() == "2026-11-29.1"
    assert epoch_source(Config()).mark("Hello", tenant_id="a") == "Hello"


@pytest.mark.parametrize(
    ("config", "field"),
    [
        (EpochConfig(value="two words"), "epoch.epoch"),
        (EpochConfig(scopes={"tenant=contoso": "2"}), "epoch.scopes"),
        (EpochConfig(scopes={"tenant_id=contoso": "7+8"}), "epoch.epoch"),
        (EpochConfig(scopes={"contoso": "2"}), "epoch.scopes"),
    ],
)
def test_what_is_no_epoch_or_scope_is_a_configuration_error(config: EpochConfig, field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        epoch_source(Config(epoch=config))
    assert caught.value.field == field and caught.value.remedy


def test_a_scope_is_read_from_words() -> None:
    assert scope_of("template_id=support_v7, tenant_id=contoso") == (
        ("template_id", "support_v7"), ("tenant_id", "contoso"),
    )  # fmt: skip
    assert scope_of("") == ()
    with pytest.raises(NameInDigestPlace):
        scope_of("corpus_digest=latest")
    with pytest.raises(InvalidField):
        scope_of("tenant_id=")


def test_every_scope_that_covers_a_prefix_is_named_the_widest_first() -> None:
    epochs = Epochs()
    for fact in (
        bumped("t3", tenant_id="contoso"), bumped("1"), bumped("x", tenant_id="northwind"),
        bumped("c2", corpus_id="kb"), bumped("b4", template_id="support_v7", tenant_id="contoso"),
        bumped("no", template_id="search", tenant_id="contoso"),
    ):  # fmt: skip
        assert epochs.take(fact)
    assert epochs.of(**CONTOSO) == "1+corpus_id:c2+tenant_id:t3+template_id.tenant_id:b4"
    assert EpochMarker.of(epochs.mark("Hi", **CONTOSO)) == EpochMarker(epochs.of(**CONTOSO))
    assert epochs.of(tenant_id="adatum", template_id="other", corpus_id="") == "1"


def test_a_dimension_that_is_not_said_may_be_any() -> None:
    epochs = Epochs()
    epochs.take(bumped("2", template_id="support_v7"))
    assert epochs.of(tenant_id="contoso") == "template_id:2" == epochs.of(template_id=None)
    assert epochs.of(template_id="search") == ""


def test_a_bump_counts_from_its_time_on_in_whatever_order_they_come() -> None:
    now_us = 15
    epochs = Epochs(clock_ns=lambda: now_us * 1000)
    first, second, third = bumped("1", 5), bumped("2", 10), bumped("3", 20)
    for fact in (third, second, first):
        assert epochs.take(fact)
    assert not epochs.take(second)
    assert epochs.of() == "2"
    now_us = 20
    assert epochs.of() == "3"
    assert [(bump.epoch, bump.fact_id) for bump in epochs.current(at_us=7)] == [("1", first.id)]
    assert [bump.epoch for bump in epochs.history(())] == ["1", "2", "3"]


def test_what_is_no_bump_or_no_epoch_says_nothing() -> None:
    epochs = Epochs()
    assert not epochs.take(Fact(id="f", effective_at_us=1, body=StoreFact(store="kv")))
    assert not epochs.take(Fact(id="g", effective_at_us=1, body=EpochFact(epoch="]\n evil")))
    assert epochs.of() == ""


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["", "tenant_id=a", "tenant_id=b", "template_id=t", "tenant_id=a,template_id=t"]),
            st.integers(0, 3),
        ),
        max_size=12,
    )
)
def test_a_bump_changes_what_it_covers_and_nothing_else(bumps: list[tuple[str, int]]) -> None:
    """And the judge sees each prefix's old epoch as earlier, its new one not."""
    epochs = Epochs()
    prefixes = [{"tenant_id": tenant, "template_id": template} for tenant in "abc" for template in "tu"]
    for number, (scope, at_us) in enumerate(bumps):
        before = [epochs.of(**prefix) for prefix in prefixes]
        where = dict(scope_of(scope))
        newest = max((bump.effective_at_us for bump in epochs.history(scope_of(scope))), default=0)
        fact = epoch_bumped(f"e{number}", where, effective_at_us=newest + at_us)
        assert epochs.take(fact)
        for prefix, old in zip(prefixes, before, strict=True):
            covered = all(prefix[name] == value for name, value in where.items())
            new = epochs.of(**prefix)
            assert (new != old) == covered
            if covered:
                assert earlier(old, f"e{number}", where) and not earlier(new, f"e{number}", where)


def test_more_scopes_than_a_marker_holds_are_still_all_told() -> None:
    epochs = Epochs(tuple(Bump(scope_of(f"{name}=v"), "x" * 64) for name in (
        "tenant_id", "template_id", "model_id", "corpus_id", "principal", "adapter_name", "tokenizer_id",
    )))  # fmt: skip
    long = epochs.of()
    assert len(long) <= LONGEST and EpochMarker(long).epoch == long and parts_of(long) == {"": long}
    epochs.take(bumped("y", principal="v"))
    assert epochs.of() != long


def test_following_without_a_broker_is_an_error_and_not_an_old_epoch() -> None:
    config = Config.model_validate({"kafka": {"bootstrap": "127.0.0.1:1"}, "epoch": {"follow": True, "value": "7"}})
    with pytest.raises(BrokerError, match="epoch is not known"):
        epoch_source(config, timeout_s=0.5)
