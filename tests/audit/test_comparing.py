"""Two identities side by side: what is equal, what differs, what may, and what cannot be compared."""

from kvtrail.audit.comparing import compare, coverage, decided
from kvtrail.audit.incidents import fold_incidents
from kvtrail.schemas.identity import DIMENSIONS
from msgspec.structs import replace

from .samples import CREATE, FINDING, OWN_HIT, WRONG_HIT, digest, finding


def relations(created: dict[str, str], requested: dict[str, str]) -> dict[str, str]:
    return {side.dimension: side.relation for side in compare(created, requested)}


def test_every_dimension_is_there_in_its_order() -> None:
    assert tuple(relations({}, {})) == tuple(DIMENSIONS)
    assert set(relations({}, {}).values()) == {"unknown"}


def test_absent_is_unknown_and_empty_is_known_to_be_none() -> None:
    assert relations({"tool_schema_digest": ""}, {"tool_schema_digest": ""})["tool_schema_digest"] == "equal"
    assert relations({"tool_schema_digest": ""}, {})["tool_schema_digest"] == "unknown"
    assert relations({"tool_schema_digest": ""}, {"tool_schema_digest": digest("a")})["tool_schema_digest"] == "differs"


def test_digests_of_other_makers_cannot_be_compared() -> None:
    keyed = {"template_digest": f"hmac-1:{digest('a')}"}
    assert relations(keyed, {"template_digest": digest("a")})["template_digest"] == "unknown"
    assert relations(keyed, {"template_digest": f"hmac-2:{digest('a')}"})["template_digest"] == "unknown"
    assert relations(keyed, {"template_digest": f"hmac-1:{digest('b')}"})["template_digest"] == "differs"


def test_a_name_beside_equal_digests_may_differ() -> None:
    names = ({"model_id": "a", "weights_digest": digest("w")}, {"model_id": "b", "weights_digest": digest("w")})
    assert relations(*names)["model_id"] == "may differ"
    assert relations({"model_id": "a"}, {"model_id": "b"})["model_id"] == "differs"


def test_a_template_beside_equal_token_ids_may_differ_where_tokens_are_all_that_counts() -> None:
    created = {"template_digest": digest("a"), "token_ids_digest": digest("t")}
    requested = {"template_digest": digest("b"), "token_ids_digest": digest("t")}
    assert relations(created, requested)["template_digest"] == "may differ"
    assert relations(created, {**requested, "token_ids_digest": digest("u")})["template_digest"] == "differs"
    response = {side.dimension: side.relation for side in compare(created, requested, kind="response")}
    assert response["template_digest"] == "differs"


def test_what_does_not_count_for_this_kind_of_entry_may_differ() -> None:
    created, requested = {"kv_dtype": "fp8"}, {"kv_dtype": "bf16"}
    assert relations(created, requested)["kv_dtype"] == "differs"
    media = {side.dimension: side.relation for side in compare(created, requested, kind="media")}
    assert media["kv_dtype"] == "may differ"


def test_scopes_and_epochs_may_differ_unless_a_finding_lists_them() -> None:
    created, requested = {"tenant_id": "a", "epoch": "1"}, {"tenant_id": "b", "epoch": "2"}
    assert {relations(created, requested)[name] for name in ("tenant_id", "epoch")} == {"may differ"}
    listed = {side.dimension: side.relation for side in compare(created, requested, FINDING)}
    assert (listed["tenant_id"], listed["epoch"]) == ("differs", "may differ")


def test_weights_and_content_decide() -> None:
    known = {"weights_digest": digest("w"), "prefix_digest": digest("p")}
    assert decided(known, known)
    assert not decided(known, {**known, "prefix_digest": digest("q")})
    assert not decided({"weights_digest": digest("w")}, known)
    assert not decided({"prefix_digest": digest("p")}, known)


def test_coverage_counts_what_is_known_on_both_sides() -> None:
    pairs: list[tuple[dict[str, str], dict[str, str]]] = [({"epoch": "1"}, {"epoch": "2"}), ({"epoch": "1"}, {})]
    counted = {side.dimension: (side.known, side.hits) for side in coverage(pairs)}
    assert counted["epoch"] == (1, 2) and counted["weights_digest"] == (0, 2)


def test_incidents_hold_open_findings_only_the_loudest_first() -> None:
    gone = finding(CREATE, OWN_HIT, status="retracted", reason="no")
    mild = finding(CREATE, OWN_HIT, cause="TEMPLATE_MISMATCH", dimension="template_digest")
    assert [(one.cause, one.findings) for one in fold_incidents([mild, gone, FINDING])] == [
        ("CROSS_TENANT_REUSE", 1), ("TEMPLATE_MISMATCH", 1),
    ]  # fmt: skip
    assert fold_incidents([gone]) == []


def test_only_a_chosen_key_is_blamed_for_what_it_leaves_out() -> None:
    chosen = finding(CREATE, WRONG_HIT)
    derived = replace(chosen, key_origin="derived")
    ended = finding(CREATE, OWN_HIT, cause="HIT_AFTER_EXPIRE", dimension="")
    assert [fold_incidents([one])[0].cause_sentence for one in (chosen, derived, ended)] == [
        "this key does not cover tenant",
        "entries were reused although tenant differed",
        "hit after expiry",
    ]
