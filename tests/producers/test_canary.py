"""Canaries: markers that nobody else can make, and what an answer's marker says."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kvtrail.producers.canary import Canary
from kvtrail.producers.canary_keys import LENGTH, CanaryKey, is_marker, keys_of, marker_of
from kvtrail.producers.canary_words import WORDS
from kvtrail.schemas.config import Config, load_config
from kvtrail.schemas.errors import ConfigError, InvalidField
from kvtrail.schemas.facts import Fact, PolicyFact, StoreFact

NEW, OLD = CanaryKey("2026b", b"n" * 32), CanaryKey("2026a", b"o" * 32)
TENANTS = st.text(min_size=1, max_size=40)
SECRETS = st.binary(min_size=32, max_size=32)


@pytest.fixture
def canary() -> Canary:
    return Canary([NEW, OLD], ["northwind", "contoso"])


def test_the_words_can_be_told_apart() -> None:
    assert len(WORDS) == len(set(WORDS)) == 256
    assert all(re.fullmatch("[a-z]{3,9}", word) for word in WORDS)


@given(SECRETS, TENANTS, TENANTS)
def test_tenants_have_their_own_markers(secret: bytes, one: str, other: str) -> None:
    key = CanaryKey("k", secret)
    assert (marker_of(key, one) == marker_of(key, other)) == (one == other)
    assert is_marker(key, marker_of(key, one)) and len(marker_of(key, one)) == LENGTH


@settings(derandomize=True)  # one in 65 536 would look like a marker of somebody's
@given(SECRETS, SECRETS, TENANTS)
def test_no_marker_is_made_without_the_secret(secret: bytes, another: bytes, tenant: str) -> None:
    """Not of another tenant, and none that passes for a marker at all."""
    mine, forged = CanaryKey("k", secret), CanaryKey("k", another)
    if secret != another:
        assert marker_of(mine, tenant) != marker_of(forged, tenant)
        assert not is_marker(mine, marker_of(forged, tenant))
        assert Canary([mine], [tenant]).check("victim", ["-".join(marker_of(forged, tenant))]).result == "inconclusive"


def test_the_form_of_a_marker_is_stable() -> None:
    """Prefixes that were cached under it must still be recognised by the next version."""
    assert "-".join(marker_of(NEW, "northwind")) == MARKER


MARKER = "granite-water-saddle-sapphire-ribbon-river-leaf"


def test_what_an_answer_shows(canary: Canary) -> None:
    own, others = canary.marker("contoso"), canary.marker("northwind")
    passed = canary.check("contoso", [f"[ref: {own}] Within 14 days."])
    assert (passed.result, passed.expected, passed.observed) == ("pass", "contoso", "contoso")
    failed = canary.check("contoso", [f"[ref: {others}] Within 90 days."])
    assert (failed.result, failed.expected, failed.observed) == ("fail", "contoso", "northwind")
    assert "2026b" in failed.detail
    # Another's beside one's own is another's.
    assert canary.check("contoso", [f"[ref: {own}] and {others}"]).result == "fail"
    assert canary.check("contoso", [own, others]).observed == "northwind"


def test_a_marker_of_nobody_we_know_is_still_somebody_elses(canary: Canary) -> None:
    failed = canary.check("contoso", ["-".join(marker_of(NEW, "fabrikam"))])
    assert (failed.result, failed.observed) == ("fail", "") and "unknown which" in failed.detail
    canary.know("fabrikam")
    assert canary.check("contoso", ["-".join(marker_of(NEW, "fabrikam"))]).observed == "fabrikam"
    assert canary.take(Fact(id="p", effective_at_us=1, body=PolicyFact(tenant_id="adatum")))
    assert not canary.take(Fact(id="s", effective_at_us=1, body=StoreFact(store="kv")))
    assert canary.check("contoso", ["-".join(marker_of(NEW, "adatum"))]).observed == "adatum"


def test_entries_of_the_secret_before_are_recognised(canary: Canary) -> None:
    earlier = "-".join(marker_of(OLD, "contoso"))
    passed = canary.check("contoso", [earlier])
    assert passed.result == "pass" and "2026a, an earlier one" in passed.detail
    assert canary.check("northwind", [earlier]).observed == "contoso"
    assert canary.marker("contoso") == "-".join(marker_of(NEW, "contoso"))
    # Once it is gone, nothing that it made says anything.
    assert Canary([NEW]).check("northwind", [earlier]).result == "inconclusive"


@pytest.mark.parametrize("form", ["upper", "spaces", "newlines", "commas", "quoted"])
def test_a_copy_may_differ_in_case_and_spaces(canary: Canary, form: str) -> None:
    marker = canary.marker("contoso")
    copies = {
        "upper": marker.upper(), "spaces": marker.replace("-", "  "), "newlines": marker.replace("-", " -\n"),
        "commas": marker.replace("-", ", "), "quoted": f'"{marker}."',
    }  # fmt: skip
    assert canary.check("contoso", [copies[form]]).result == "pass"
    assert canary.check("northwind", [copies[form]]).observed == "contoso"


@given(st.integers(0, LENGTH - 1), st.sampled_from(WORDS), st.sampled_from(["drop", "swap", "replace", "join"]))
def test_a_garbled_copy_says_nothing(at: int, word: str, how: str) -> None:
    canary = Canary([NEW, OLD], ["northwind", "contoso"])
    words = canary.marker("northwind").split("-")
    garbled = list(words)
    if how == "drop":
        del garbled[at]
    elif how == "swap":
        garbled[at], garbled[at - 1] = garbled[at - 1], garbled[at]
    elif how == "replace":
        garbled[at] = word
    else:
        garbled = ["".join(words)]
    if garbled != words:
        for tenant in ("contoso", "northwind"):
            result = canary.check(tenant, ["-".join(garbled)])
            assert (result.result, result.observed) == ("inconclusive", "")


@given(st.text(max_size=200), st.sampled_from(["contoso", "nobody"]))
def test_whatever_else_an_answer_says_proves_nothing(text: str, tenant: str) -> None:
    assert Canary([NEW], ["contoso"]).check(tenant, [text]).result == "inconclusive"


def test_what_is_missing_and_what_is_garbled_are_told_apart(canary: Canary) -> None:
    assert canary.check("contoso", []).detail == "no marker"
    assert canary.check("contoso", ["The tiger and the lion."]).detail == "no marker"
    assert canary.check("contoso", [canary.marker("contoso").rpartition("-")[0]]).detail == "a garbled marker"


def test_two_tenants_with_one_marker_are_refused(canary: Canary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvtrail.producers.canary.marker_of", lambda key, tenant: marker_of(key, "contoso"))
    with pytest.raises(InvalidField, match="another tenant"):
        canary.know("fabrikam")
    assert canary.check("fabrikam", [canary.marker("contoso")]).result == "inconclusive"


def test_the_sentence_is_put_where_it_is_cached(canary: Canary) -> None:
    sentence = canary.sentence("contoso")
    assert canary.opening in sentence and canary.marker("contoso") in sentence
    turn = {"role": "user", "content": "Hi"}
    plain = canary.embed({"model": "m", "messages": [{"role": "system", "content": "Be kind."}, turn]}, "contoso")
    assert plain["messages"] == [{"role": "system", "content": f"{sentence}\nBe kind."}, turn]
    assert canary.embed({"messages": [turn]}, "contoso")["messages"] == [{"role": "system", "content": sentence}, turn]
    blocks = [{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}]
    parts = canary.embed({"messages": [{"role": "developer", "content": blocks}, turn]}, "contoso")
    assert parts["messages"][0]["content"] == [{"type": "text", "text": sentence}, *blocks]
    assert canary.embed({"system": "Be kind.", "messages": [turn]}, "contoso")["system"] == f"{sentence}\nBe kind."
    assert canary.embed({"system": blocks, "messages": [turn]}, "contoso")["system"][1:] == blocks
    given = {"messages": [turn]}
    canary.embed(given, "contoso")
    assert given == {"messages": [turn]}
    with pytest.raises(InvalidField, match="messages"):
        canary.embed({"prompt": "Hi"}, "contoso")


def test_keys_come_from_a_file_or_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "canary.keys"
    file.write_text(f"2026b:{'n' * 32}\n2026a:{'o' * 32}\n")
    config = load_config(
        None, {"KVTRAIL_CANARY__KEYS_FILE": str(file), "KVTRAIL_CANARY__TENANTS": "northwind, contoso"}
    )
    assert keys_of(config.canary) == [NEW, OLD] and config.canary.tenants == ("northwind", "contoso")
    assert keys_of(load_config(None, {"KVTRAIL_CANARY__KEYS": f"2026b:{'n' * 32}"}).canary) == [NEW]
    assert "n" * 32 not in repr(config) and "n" * 32 not in repr(NEW)
    with pytest.raises(ConfigError, match=r"canary\.keys_file"):
        load_config(None, {"KVTRAIL_CANARY__KEYS_FILE": "/nowhere"})


@pytest.mark.parametrize("keys", ["", "2026b", "2026b:short", f"two words:{'n' * 32}", f":{'n' * 32}"])
def test_keys_that_are_none_are_refused_without_their_value(keys: str) -> None:
    with pytest.raises(ConfigError) as caught:
        keys_of(Config.model_validate({"canary": {"keys": keys}}).canary)
    assert caught.value.field == "canary.keys" and caught.value.remedy
    assert "short" not in str(caught.value) and "n" * 32 not in str(caught.value)


def test_a_canary_needs_keys_with_ids_of_their_own() -> None:
    for keys in ([], [NEW, CanaryKey("2026b", b"z" * 32)]):
        with pytest.raises(ConfigError, match=r"canary\.keys"):
            Canary(keys)
    with pytest.raises(ConfigError, match=r"canary\.field"):
        Canary([NEW], field="a]b")
