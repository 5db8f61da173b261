"""Key expressions: what they cover, what they miss, and that nothing of them is ever run."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kvtrail.judging.keys import Assessment, assess
from kvtrail.judging.keys.consequences import BY_NAME, MISSING, rule_of
from kvtrail.judging.keys.digesting import meet_at
from kvtrail.judging.keys.vocabulary import HELPERS, WORDS, look_up
from kvtrail.judging.rules import RULES
from kvtrail.schemas.errors import InvalidField
from kvtrail.schemas.identity import CORE, DIMENSIONS

WHOLE = "tenant, weights_sha, kv_dtype, tokenizer, template_hash, tools_hash, prompt_hash"


def status(expression: str, kind: str = "kv") -> dict[str, str]:
    return {one.dimension: one.status for one in assess(expression, kind).dimensions}  # type: ignore[arg-type]


def said(assessment: Assessment) -> str:
    return "\n".join(f"{problem.what}: {problem.because} {problem.rule}" for problem in assessment.problems)


def test_the_incidents_key() -> None:
    found = assess("f'{template_name}:{model}'")
    assert not found.ok
    by = {one.dimension: one for one in found.dimensions}
    assert by["template_digest"].status == by["weights_digest"].status == "by name only"
    assert (by["weights_digest"].rule, by["template_digest"].rule) == ("ALIAS_MOVED", "TEMPLATE_MISMATCH")
    assert (by["tenant_id"].status, by["tenant_id"].rule, by["tenant_id"].case) == (
        "missing", "CROSS_TENANT_REUSE", "S01",
    )  # fmt: skip
    assert by["token_ids_digest"].status == "missing"
    assert "tenant_id=tenant_id," in found.suggestion and "template_id=template_name," in found.suggestion


@pytest.mark.parametrize(
    "expression",
    [
        f"({WHOLE})",
        f"hashlib.sha256(json.dumps([{WHOLE}], sort_keys=True).encode()).hexdigest()",
        "f't={tenant} w={weights_sha} d={kv_dtype} k={tokenizer} p={template_hash} f={tools_hash} i={prompt_hash}'",
        f"'t%s w%s d%s k%s p%s f%s i%s' % ({WHOLE})",
        "'t{} w{} d{} k{} p{} f{} i{}'.format(" + WHOLE + ")",
        "'t{t} w{w} d{d} k{k} p{p} f{f} i{i}'.format(t=tenant, w=weights_sha, d=kv_dtype, k=tokenizer, "
        "p=template_hash, f=tools_hash, i=prompt_hash)",
        "{'tenant': t, 'weights_sha': w, 'kv_dtype': d, 'tokenizer': k, 'template_hash': p, 'tools_hash': f, "
        "'tokens': x}",
        "'|'.join([req.tenant_id, w['weights_sha'], cfg.kv_dtype, cfg.tokenizer, r.get('template_hash'), r.tools_hash, "
        "sha256(token_ids).hexdigest()])",
        "PrefixKey(tenant_id=t, model_id=m, weights_digest=w, kv_dtype=d, tokenizer_id=k, template_id=i, "
        "template_digest=x, tool_schema_digest=y, token_ids_digest=z).fingerprint()",
        "'t' + tenant + 'w' + digest_weights(files) + 'd' + kv_dtype + 'k' + tokenizer + 'p' + digest_template(text) "
        "+ 'f' + digest_tools(mine) + 'i' + digest_token_ids(ids)",
        f"make_key({WHOLE})",
        "'t%(tenant)s w%(weights_sha)s d%(kv_dtype)s k%(tokenizer)s p%(template_hash)s f%(tools_hash)s "
        "i%(prompt_hash)s' % context",
        "(getTenantId(), weights_sha, kv_dtype, tokenizer, template_hash, tools_hash, compute_prompt_hash(x))",
    ],
)  # fmt: skip
def test_every_way_to_write_a_whole_key(expression: str) -> None:
    found = assess(expression)
    assert found.ok, (found.verdict, said(found))
    assert {one.status for one in found.dimensions if one.core} <= {"covered", "settled"}


def test_a_dimension_left_out_is_missed_and_the_others_are_not() -> None:
    words = WHOLE.split(", ")
    assert assess(f"({WHOLE})", "response").ok
    said = ("tenant_id", "weights_digest", "kv_dtype", "tokenizer_id", "template_digest", "tool_schema_digest")
    dimensions = dict(zip(words, (*said, "token_ids_digest"), strict=True))
    for left_out in (word for word in words if word != "kv_dtype"):
        found = assess(f"({', '.join(word for word in words if word != left_out)},)", "response")
        missed = {one.dimension for one in found.dimensions if one.status == "missing"}
        names = {"weights_sha": {"model_id"}, "template_hash": {"template_id"}}.get(left_out, set())
        assert missed == {dimensions[left_out]} | names
        assert not found.ok


def test_equal_token_ids_settle_what_only_shapes_the_text_for_kv_and_not_for_responses() -> None:
    key = "(tenant, weights_sha, kv_dtype, tokenizer, prompt_hash)"
    assert status(key)["template_digest"] == status(key)["tool_schema_digest"] == "settled"
    assert assess(key).ok
    assert status(key, "response")["template_digest"] == "missing"
    assert status("(tenant, weights_sha, kv_dtype, tokenizer, prompt_hash[:8])")["template_digest"] == "missing"


def test_each_kind_of_entry_needs_what_matters_to_it() -> None:
    assert {name for name, what in status("tenant", "media").items() if what == "missing"} == {
        "weights_digest", "model_id", "media_digest",
    }  # fmt: skip
    assert "kv_dtype" not in status("tenant", "response")
    assert assess("(tenant, weights_sha, image_hash)", "media").ok
    assert not assess("(tenant, weights_sha, image_url)", "media").ok


def test_the_hash_of_a_name_is_a_name() -> None:
    assert status("hashlib.sha256(model_name.encode()).hexdigest()")["weights_digest"] == "by name only"
    assert status("hashlib.sha256(rendered_template.encode()).hexdigest()")["template_digest"] == "covered"


@pytest.mark.parametrize(
    ("expression", "bits"),
    [
        ("sha256(prompt).hexdigest()[:8]", 32),
        ("sha256(prompt).digest()[:8]", 64),
        ("hashlib.sha256(prompt.encode()).hexdigest()[:16]", 64),
        ("base64.b64encode(h(prompt))[:4]", 24),
        ("zlib.crc32(prompt)", 32),
        ("hashlib.blake2b(prompt, digest_size=5).hexdigest()", 40),
        ("hashlib.new('md5', prompt).hexdigest()", 128),
        ("int(sha256(prompt).hexdigest(), 16) % 65536", 16),
        ("int(sha256(prompt).hexdigest(), 16) & 0xffff", 16),
        ("int(sha256(prompt).hexdigest(), 16) % (1 << 16)", 16),
        ("int(sha256(prompt).hexdigest(), 16) & (2**16 - 1)", 16),
        ("hash(prompt)", 61),
        ("sha256(prompt).hexdigest()[-8:]", 32),
        ("sha256(prompt).hexdigest()[2:10]", 32),
    ],
)
def test_what_is_left_of_a_digest(expression: str, bits: int) -> None:
    problems = [problem for problem in assess(expression).problems if problem.what == "the whole key is short"]
    assert [problem.because.startswith(f"{bits} bits") for problem in problems] == ([True] if bits < 128 else [])
    assert [problem.fatal for problem in problems] == ([bits < 64] if bits < 128 else [])
    beside = {one.dimension: one for one in assess(f"(tenant, {expression})").dimensions}["token_ids_digest"]
    assert beside.status == ("truncated" if bits < 64 else "covered")


def test_a_birthday_is_counted_right() -> None:
    assert 77_000 < meet_at(32) < 77_300
    assert "77 162" in said(assess("sha256(prompt).hexdigest()[:8]"))


@pytest.mark.parametrize(
    ("expression", "told", "fatal"),
    [
        ("f'{template_name}{model}'", "nothing stands between template_name and model", True),
        ("template_name + model", "nothing stands between template_name and model", True),
        ("''.join([template_name, model])", "nothing stands between template_name and model", True),
        ("'%(template_name)s%(model)s' % ctx", "nothing stands between ctx['template_name'] and ctx['model']", True),
        ("'%s%s' % (template_name, model)", "nothing stands between template_name and model", True),
        ("'{}{}'.format(template_name, model)", "nothing stands between template_name and model", True),
        ("f'{template_name}:{model}'", "told apart by their order and a separator only", False),
        ("hash(model)", "Python's built-in hash", True),
        ("id(model)", "an object's address", True),
        ("str({model, tenant})", "has no order", True),
        ("tuple(set(tools))", "has no order", True),
        ("json.dumps(tools)", "follows the order of insertion", False),
        ("request.headers['X-Tenant-Id']", "is chosen by the requester", True),
        ("body.get('prompt')", "is chosen by the requester", False),
        ("prompt_cache_key", "is chosen by the requester", False),
        ("md5(prompt).hexdigest()", "md5 is no cryptographic hash today", False),
        ("model ^ tenant", "combined by arithmetic", False),
    ],
)
def test_what_else_is_wrong(expression: str, told: str, fatal: bool) -> None:
    found = assess(expression)
    (problem,) = [problem for problem in found.problems if told in f"{problem.what} {problem.because}"]
    assert problem.fatal is fatal
    assert not problem.rule or problem.rule in RULES


@pytest.mark.parametrize("expression", ["f't={tenant} m={model}'", "f'{weights_sha}:{prompt_hash}'", "(tenant, model)"])
def test_tags_digests_and_tuples_are_not_ambiguous(expression: str) -> None:
    assert said(assess(expression)) == ""


def test_what_nobody_understands_is_said_and_not_guessed() -> None:
    found = assess("f'{foo}:{bar.baz}:{qux()}:{(lambda: 1)}'")
    assert found.unknown == ("foo", "bar.baz", "qux()", "lambda: 1")
    assert {one.status for one in found.dimensions} == {"missing"}


def test_a_condition_and_an_unknown_function_are_named() -> None:
    by = {one.dimension: one for one in assess("(tenant if shared else '', scramble(prompt_hash))").dimensions}
    assert "condition" in by["tenant_id"].because
    assert "scramble()" in by["token_ids_digest"].because


def test_nothing_is_run() -> None:
    found = assess("__import__('os').system('false') or [1 for x in iter(int, 1)] or 9**9**9**9 or 'x' * 10**12")
    assert not found.ok


@pytest.mark.parametrize(
    "expression",
    [
        "", "import os", "a = 1", "f'{'", "\x00", "(" * 300, "-" * 4000 + "1", "[" * 150 + "]" * 150, "a" * 5000,
        "a." * 1500 + "b", "+".join("a" * 200), "f(" * 120 + ")" * 120, "'{:{}{'.format(a)", "(" + "a," * 2000 + ")",
    ],
)  # fmt: skip
def test_hostile_text_is_refused_with_a_remedy(expression: str) -> None:
    with pytest.raises(InvalidField) as raised:
        assess(expression)
    assert raised.value.field == "EXPRESSION"
    assert len(str(raised.value)) < 300


PIECES = st.sampled_from(
    [
        *list(WORDS)[:40], "hash(", "(", ")", "[", "]", "{", "}", "f'", "'", ":", "+", ",", "%", ".", "[:8]", "[:-1]",
        "**", "lambda x:", "for x in", "if", "else", "*", "'%s%s'", ".join(", ".format(", "sha256(", ".hexdigest()",
        "10**9", "None", "=", "json.dumps(", " ", "1", "dict(", "é", "\\", "\n", "{}", "await ",
    ]
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(st.one_of(st.text(max_size=200), st.lists(PIECES, max_size=25).map("".join)))
def test_any_text_is_assessed_or_refused(text: str) -> None:
    try:
        found = assess(text)
    except InvalidField:
        return
    assert set(CORE) <= {one.dimension for one in found.dimensions}
    assert assess(text, "media").kind == "media"
    assert found.ok is False or not found.unknown or found.verdict


def test_the_vocabulary_speaks_of_dimensions_that_exist() -> None:
    assert {dimension for dimension, _ in WORDS.values()} | set(HELPERS.values()) <= DIMENSIONS.keys()
    assert MISSING.keys() | BY_NAME.keys() <= DIMENSIONS.keys()
    assert set(CORE) <= MISSING.keys()
    for name in DIMENSIONS:
        assert rule_of(name) in RULES and rule_of(name, by_name=True) in RULES
        assert look_up(name) is not None or name in (
            "adapter_kind",
            "adapter_switch",
            "media_geometry",
            "media_preprocessing",
        )
    assert look_up("version") is None and look_up("x") is None
