"""Identity and PrefixKey: what they refuse, and that a fingerprint changes with every dimension and nothing else."""

import pytest
from hypothesis import given
from kvtrail.schemas.dimensions import ENTRY_KINDS, Role, Severity
from kvtrail.schemas.errors import EmptyTenant, InvalidField, NameInDigestPlace
from kvtrail.schemas.identity import CORE, DIMENSIONS, Identity, PrefixKey, identity_error, titles
from pydantic import ValidationError

from .strategies import IDENTITIES

KEY = {
    "tenant_id": "northwind",
    "model_id": "m",
    "weights_digest": "a" * 64,
    "kv_dtype": "bf16",
    "tokenizer_id": "t",
    "template_id": "support_v7",
    "template_digest": "b" * 64,
    "tool_schema_digest": "",
    "token_ids_digest": "c" * 64,
}
DIGEST_DIMENSIONS = [name for name, dimension in DIMENSIONS.items() if dimension.form == "digest"]


def other(name: str) -> str:
    """Another value for a dimension."""
    return "d" * 64 if DIMENSIONS[name].form == "digest" else "other"


def test_fingerprint_is_stable_across_builds() -> None:
    """These bytes are the store key of every entry ever filed: a change here orphans them all."""
    key = PrefixKey.model_validate(KEY)
    assert key.canonical() == (
        b'{"kv_dtype":"bf16","model_id":"m","template_digest":"' + b"b" * 64 + b'","template_id":"support_v7",'
        b'"tenant_id":"northwind","token_ids_digest":"' + b"c" * 64 + b'","tokenizer_id":"t","tool_schema_digest":"",'
        b'"weights_digest":"' + b"a" * 64 + b'"}'
    )
    assert key.fingerprint() == "b5645aef006423997f5ab9dc1da54dfaf8a3b416b490413b43c476c14750dd11"


@pytest.mark.parametrize("name", list(DIMENSIONS))
def test_fingerprint_changes_with_every_dimension(name: str) -> None:
    key = PrefixKey.model_validate(KEY)
    assert PrefixKey.model_validate({**KEY, name: other(name)}).fingerprint() != key.fingerprint()


def test_absent_is_not_empty() -> None:
    key = PrefixKey.model_validate(KEY)
    assert PrefixKey.model_validate({**KEY, "adapter_digest": None}).fingerprint() == key.fingerprint()
    assert PrefixKey.model_validate({**KEY, "adapter_digest": ""}).fingerprint() != key.fingerprint()


@pytest.mark.parametrize("name", CORE)
def test_the_nine_core_dimensions_are_required(name: str) -> None:
    with pytest.raises(ValidationError):
        PrefixKey.model_validate({key: value for key, value in KEY.items() if key != name})
    if name != "tool_schema_digest":
        with pytest.raises(ValidationError):
            PrefixKey.model_validate({**KEY, name: ""})


@pytest.mark.parametrize("name", DIGEST_DIMENSIONS)
@pytest.mark.parametrize("value", ["support_v7", "v1.2.3", "A" * 64, "a" * 15, "a" * 129, "sha256:", "x y:" + "a" * 64])
def test_a_name_in_a_digests_place_is_refused(name: str, value: str) -> None:
    with pytest.raises(NameInDigestPlace) as caught:
        Identity.from_wire({"tenant_id": "t", name: value})
    assert caught.value.field == name
    assert "content" in caught.value.remedy
    assert value not in str(caught.value)


@pytest.mark.parametrize("value", ["a" * 16, "a" * 64, "f" * 128, "hmac-2026a:" + "a" * 64, "xxh3:" + "0" * 16, ""])
def test_digests_are_taken(value: str) -> None:
    assert Identity.from_wire({"tenant_id": "t", "template_digest": value}).template_digest == value


@pytest.mark.parametrize("values", [{}, {"tenant_id": ""}, {"tenant_id": "  "}, {"tenant_id": None}])
def test_without_a_tenant_nothing(values: dict[str, str]) -> None:
    with pytest.raises(EmptyTenant) as caught:
        Identity.from_wire(values)
    assert caught.value.field == "tenant_id"


def test_other_bad_values_name_their_field() -> None:
    for values, field in (({"tenant_id": 7}, "tenant_id"), ({"tenant_id": "t", "epoch": 41}, "epoch")):
        with pytest.raises(InvalidField) as caught:
            Identity.from_wire(values)
        assert caught.value.field == field
    with pytest.raises(InvalidField) as caught:
        Identity.from_wire({"tenant_id": "t", "principal": "x" * 513})
    assert caught.value.field == "principal"


def test_dimensions_of_a_newer_producer_are_left_out() -> None:
    assert Identity.from_wire({"tenant_id": "t", "quantum_state": "spin"}) == Identity(tenant_id="t")
    with pytest.raises(ValidationError) as caught:
        Identity.model_validate({"tenant_id": "t", "quantum_state": "spin"})
    assert identity_error(caught.value).field == "quantum_state"


@given(IDENTITIES)
def test_identity_survives_the_wire(identity: Identity) -> None:
    again = Identity.from_wire(identity.to_wire())
    assert again == identity
    assert hash(again) == hash(identity)
    assert again.canonical() == identity.canonical()


def test_the_dimension_table_is_whole() -> None:
    assert set(DIMENSIONS) == set(Identity.model_fields)
    precedences = [dimension.precedence for dimension in DIMENSIONS.values()]
    assert precedences == sorted(precedences)
    assert len(set(precedences)) == len(precedences)
    for name, dimension in DIMENSIONS.items():
        assert dimension.title
        assert dimension.kinds <= ENTRY_KINDS
        assert name.endswith("_digest") <= (dimension.form == "digest")
        if dimension.yields_to:
            assert dimension.form == "name"
            assert DIMENSIONS[dimension.yields_to].form == "digest"
    # Who asked comes last: what was computed names the cause first.
    last = [name for name, dimension in DIMENSIONS.items() if dimension.role is Role.SCOPE]
    assert list(DIMENSIONS)[-len(last) :] == last
    assert last == ["principal", "tenant_id", "isolation_domain"]


def test_titles_are_what_people_say() -> None:
    assert titles(["tenant_id", "template_digest", "token_ids_digest"]) == "tenant, template digest, token ids"
    assert titles(["unheard_of"]) == "unheard_of"


def test_severities_are_ordered_and_only_rise() -> None:
    ranks = [severity.rank for severity in Severity]
    assert ranks == sorted(ranks)
    assert Severity.LOW.raised_to(Severity.HIGH) is Severity.HIGH
    assert Severity.HIGH.raised_to(Severity.LOW) is Severity.HIGH


def test_a_key_is_frozen() -> None:
    key = PrefixKey.model_validate(KEY)
    with pytest.raises(ValidationError):
        key.tenant_id = "contoso"  # type: ignore[misc]  # what the test is about
