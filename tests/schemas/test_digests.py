"""Digests: the same content gives the same digest, and only that."""

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvtrail.schemas.digests import (
    NONE,
    canonical_json,
    digest_bytes,
    digest_corpus,
    digest_prefix,
    digest_template,
    digest_token_ids,
    digest_tools,
    digest_weights,
    is_digest,
    require_digest,
)
from kvtrail.schemas.errors import InvalidField, NameInDigestPlace

REFUND = {"type": "function", "function": {"name": "refund", "parameters": {"reason": {"enum": ["late", "broken"]}}}}
LOOKUP = {"type": "function", "function": {"name": "lookup", "parameters": {"id": {"type": "string"}}}}


def test_the_order_of_tools_and_keys_does_not_matter() -> None:
    turned = {"function": dict(reversed(REFUND["function"].items())), "type": "function"}  # type: ignore[attr-defined]  # a dict
    assert digest_tools([REFUND, LOOKUP]) == digest_tools([LOOKUP, turned])
    assert digest_tools([{"name": "a"}, {"name": "b"}]) == digest_tools([{"name": "b"}, {"name": "a"}])


def test_what_is_in_a_tool_does() -> None:
    enum = {"type": "function", "function": {"name": "refund", "parameters": {"reason": {"enum": ["broken", "late"]}}}}
    assert digest_tools([REFUND]) != digest_tools([enum])
    assert digest_tools([REFUND]) != digest_tools([REFUND, REFUND])
    assert digest_tools([REFUND]) != digest_tools([LOOKUP])


def test_none_is_known_to_be_none() -> None:
    assert digest_tools([]) == digest_corpus([]) == NONE == ""
    assert require_digest("", "tool_schema_digest") == ""


def test_token_ids_are_their_little_endian_words() -> None:
    assert digest_token_ids([1, 256]) == hashlib.sha256(b"\x01\0\0\0\0\x01\0\0").hexdigest()
    assert digest_token_ids([1, 2]) != digest_token_ids([2, 1])
    assert digest_token_ids(iter([1, 2])) == digest_token_ids((1, 2))
    for wrong in ([-1], [2**32], ["1"], [1.5]):
        with pytest.raises(InvalidField) as caught:
            digest_token_ids(wrong)  # type: ignore[arg-type]  # what the test is about
        assert caught.value.field == "token_ids"


def test_a_corpus_is_documents_with_revisions_in_order() -> None:
    assert digest_corpus([("a", "1"), ("b", "1")]) != digest_corpus([("b", "1"), ("a", "1")])
    assert digest_corpus([("a", "1")]) != digest_corpus([("a", "2")])
    assert digest_corpus([("ab", "c")]) != digest_corpus([("a", "bc")])


def test_weights_are_their_bytes_not_their_names(tmp_path: Path) -> None:
    for name, content in (("a", b"one"), ("b", b"two"), ("c", b"one"), ("d", b"three")):
        (tmp_path / name).write_bytes(content)
    a, b, c, d = (tmp_path / name for name in "abcd")
    assert digest_weights([a, b]) == digest_weights([b, c])
    assert digest_weights([a, b]) != digest_weights([a, d])
    for missing in ([], [tmp_path / "nowhere"]):
        with pytest.raises(InvalidField) as caught:
            digest_weights(missing)
        assert caught.value.field == "weights"


def test_keyed_digests_carry_their_keys_id() -> None:
    keyed = digest_template("You are Contoso's assistant.", b"secret", "hmac-2026a")
    assert digest_prefix(keyed) == "hmac-2026a"
    assert is_digest(keyed)
    assert digest_prefix(digest_template("x")) == "sha256"
    assert digest_template("x", b"one", "k") != digest_template("x", b"two", "k")
    with pytest.raises(InvalidField) as caught:
        digest_bytes(b"x", b"secret")
    assert caught.value.field == "key_id"


def test_names_are_no_digests() -> None:
    with pytest.raises(NameInDigestPlace) as caught:
        require_digest("support_v7", "template_digest")
    assert caught.value.field == "template_digest"
    assert "support_v7" not in str(caught.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=3), JSON, max_size=4))
def test_canonical_json_ignores_the_order_of_keys(value: dict[str, object]) -> None:
    assert canonical_json(dict(reversed(value.items()))) == canonical_json(value)


def test_canonical_json_refuses_what_json_cannot_say() -> None:
    for wrong in (float("nan"), float("inf"), {1, 2}, b"raw", object()):
        with pytest.raises(InvalidField):
            canonical_json({"x": wrong})
