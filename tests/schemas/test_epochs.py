"""Epochs of scopes in one identity: which is which, and which lies before which."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvtrail.schemas.epochs import COMBINED, combined, earlier, epoch_in, label_of, parts_of, require_epoch
from kvtrail.schemas.errors import InvalidField

EPOCHS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True)
NAMES = st.frozensets(st.sampled_from(["tenant_id", "template_id", "model_id", "corpus_id", "principal"]), max_size=3)
SCOPES = st.dictionaries(NAMES.map(label_of), EPOCHS, max_size=5)


@given(SCOPES)
def test_what_is_joined_can_be_taken_apart(epochs: dict[str, str]) -> None:
    joined = combined(epochs)
    assert parts_of(joined) == epochs
    assert not epochs or re.fullmatch(COMBINED, joined)


@given(SCOPES, NAMES, EPOCHS)
def test_a_bump_of_any_scope_makes_another_text_and_of_no_two_the_same(
    epochs: dict[str, str], scope: frozenset[str], bumped: str
) -> None:
    label = label_of(scope)
    after = {**epochs, label: bumped}
    assert (combined(after) == combined(epochs)) == (epochs.get(label) == bumped)
    assert not earlier(combined(after), bumped, scope)
    # What was made before is earlier, unless it is the very epoch, or a later number of the same scope.
    before = combined(epochs)
    if label not in epochs and before != bumped:
        assert earlier(before, bumped, scope)
    elif label in epochs and not (epochs[label].isdecimal() and bumped.isdecimal()):
        assert earlier(before, bumped, scope) == (epochs[label] != bumped)


@pytest.mark.parametrize(
    ("epoch", "bumped", "names", "is_earlier"),
    [
        ("7", "8", (), True),
        ("9", "10", (), True),
        ("10", "9", (), False),
        ("blue", "green", (), True),
        ("", "7", (), True),
        # A scope counts for itself: the fleet's 8 says nothing of the tenant's 2.
        ("8", "2", ("tenant_id",), True),
        ("8+tenant_id:2", "2", ("tenant_id",), False),
        ("8+tenant_id:2", "3", ("tenant_id",), True),
        ("8+tenant_id:2", "9", (), True),
        ("8+tenant_id:2", "8", (), False),
        ("tenant_id:2", "1", (), True),
        ("8+template_id:2", "2", ("tenant_id",), True),
        ("8+template_id.tenant_id:2", "2", ("tenant_id", "template_id"), False),
        # An assembler that knows no scopes has put the one there that it was told.
        ("2", "2", ("tenant_id",), False),
        # What others call an epoch is one epoch, whatever it looks like.
        ("a b+c", "a b+c", (), False),
        ("7+8", "7", (), True),
    ],
)
def test_which_is_earlier(epoch: str, bumped: str, names: tuple[str, ...], is_earlier: bool) -> None:
    assert earlier(epoch, bumped, names) is is_earlier


@given(st.text(max_size=40), NAMES)
def test_no_text_is_too_odd(epoch: str, names: frozenset[str]) -> None:
    assert combined(parts_of(epoch)) == epoch or parts_of(epoch) == {"": epoch}
    assert not earlier(epoch, epoch_in(epoch, names), names) or epoch_in(epoch, names) != epoch


@pytest.mark.parametrize("epoch", ["", "a b", "7+tenant_id:2", "tenant_id:2", "-a", "x" * 65])
def test_what_cannot_be_bumped_to_is_refused(epoch: str) -> None:
    with pytest.raises(InvalidField, match="is no epoch"):
        require_epoch(epoch)
