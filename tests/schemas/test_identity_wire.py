"""The short way off the wire gives what the model gives, and leaves every refusal to it."""

import copy
import pickle

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvtrail.schemas.errors import BadInput
from kvtrail.schemas.identity import DIMENSIONS, Identity
from kvtrail.schemas.identity_wire import IdentityReader

HEX = "0123456789abcdef"
DIGESTS = st.sampled_from(["", HEX, HEX * 4, HEX * 8, f"xxh3:{HEX}", "support_v7", HEX.upper(), HEX[:-1], HEX + "\n"])
TEXTS = st.sampled_from(["", "a", " ", "\t ", "x" * 256, "x" * 257, "x" * 512, "x" * 513, "é", HEX])
VALUES = st.one_of(DIGESTS, TEXTS)
WIRE = st.fixed_dictionaries({}, optional=dict.fromkeys((*DIMENSIONS, "unknown"), VALUES))
GOOD = st.fixed_dictionaries(
    {"tenant_id": st.sampled_from(["a", "b"])},
    optional={
        name: st.sampled_from(["", HEX, HEX * 4]) if dimension.form == "digest" else st.sampled_from(["", "a", "b"])
        for name, dimension in DIMENSIONS.items()
        if name != "tenant_id"
    },
)


def outcome(read: object, raw: bytes) -> object:
    try:
        return read(raw)  # type: ignore[operator]  # a function under test
    except BadInput as error:
        return type(error), str(error)
    except msgspec.DecodeError:
        return "no map of strings"


def by_model(raw: bytes) -> Identity:
    return Identity.from_wire(msgspec.json.decode(raw, type=dict[str, str]))


@given(st.lists(st.one_of(GOOD, WIRE), max_size=4))
def test_it_gives_what_the_model_gives(wires: list[dict[str, str]]) -> None:
    reader = IdentityReader()
    for wire in (*wires, *wires):  # again, with texts that it knows
        raw = msgspec.json.encode(wire)
        assert outcome(reader.read, raw) == outcome(by_model, raw)


@pytest.mark.parametrize("raw", [b"[]", b"{", b'{"tenant_id":null}', b'{"tenant_id":"a","epoch":7}', b'{"new":5}'])
def test_what_is_no_map_of_strings_is_refused(raw: bytes) -> None:
    assert outcome(IdentityReader().read, raw) == outcome(by_model, raw)


@given(GOOD)
def test_the_object_is_the_models_in_every_respect(wire: dict[str, str]) -> None:
    raw = msgspec.json.encode(wire)
    made, model = IdentityReader().read(raw), by_model(raw)
    assert type(made) is type(model)
    assert (made, hash(made), repr(made), made.canonical()) == (model, hash(model), repr(model), model.canonical())
    assert made.model_dump() == model.model_dump()
    assert made.model_dump(exclude_unset=True) == model.model_dump(exclude_unset=True)
    assert list(made.__dict__) == list(model.__dict__)
    changed = made.model_copy(update={"epoch": "9"})
    assert changed == model.model_copy(update={"epoch": "9"}) and made == model
    assert copy.deepcopy(made) == model and pickle.loads(pickle.dumps(made)) == model
    with pytest.raises(ValueError, match="frozen"):
        made.epoch = "9"  # type: ignore[misc]  # what is tested: it is frozen


def test_texts_are_forgotten_before_they_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvtrail.schemas.identity_wire._TEXTS_KEPT", 8)
    reader = IdentityReader()
    for n in range(100):
        raw = msgspec.json.encode({"tenant_id": f"t{n}", "token_ids_digest": f"{n:064x}", "weights_digest": ""})
        assert reader.read(raw) == by_model(raw)
    assert len(reader._names) + len(reader._digests) < 16


def test_identities_share_the_names_of_what_they_know_and_no_copy_changes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvtrail.schemas.identity_wire._FIELDS_KEPT", 4)
    reader = IdentityReader()
    first, second = (reader.read(msgspec.json.encode({"tenant_id": tenant, "model_id": "m"})) for tenant in "ab")
    assert first.model_fields_set is second.model_fields_set, "one set each would be most of an identity's memory"
    assert first.model_copy(update={"epoch": "9"}).model_fields_set == {"tenant_id", "model_id", "epoch"}
    assert second.model_fields_set == {"tenant_id", "model_id"}
    for name in DIMENSIONS:
        if name != "tenant_id":
            reader.read(msgspec.json.encode({"tenant_id": "a", name: ""}))
    assert len(reader._fields) <= 4
