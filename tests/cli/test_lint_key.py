"""`kvtrail lint-key`."""

import json

from click.testing import CliRunner
from kvtrail.cli.main import kvtrail


def run(*words: str, given: str | None = None) -> tuple[int, str]:
    result = CliRunner().invoke(kvtrail, ["lint-key", *words], input=given)
    return result.exit_code, result.output


def test_a_key_of_names_fails_with_its_remedy() -> None:
    status, output = run("f'{template_name}:{model}'")
    assert status == 1
    assert output.startswith("This key misses ")
    for told in ("by name only: template_name", "[CROSS_TENANT_REUSE, case S01]", "PrefixKey(", "# missing"):
        assert told in output


def test_a_whole_key_passes_and_needs_no_remedy() -> None:
    status, output = run("(tenant, weights_sha, kv_dtype, tokenizer, prompt_hash)")
    assert status == 0
    assert "PrefixKey(" not in output
    assert run("(tenant, weights_sha, kv_dtype, tokenizer, prompt_hash)", "--kind", "response")[0] == 1


def test_json_says_the_same() -> None:
    status, output = run("hash(model)", "--json")
    document = json.loads(output)
    assert (status, document["schema"], document["ok"]) == (1, "kvtrail.lint-key/1", False)
    assert {"KEY_DRIFT", "KEY_COLLISION"} == {problem["rule"] for problem in document["problems"]}


def test_it_reads_stdin_and_writes_nothing_that_moves_the_cursor() -> None:
    status, output = run("-", given="f'\x1b[2J{tenant}\x1b[2J'")
    assert status == 1
    assert "\x1b" not in output
