"""`kvtrail bypass-diff` and `kvtrail probe isolation` as they are typed, against the stub on a real socket."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from click.testing import CliRunner, Result
from kvtrail.cli import bypass_diff, checking
from kvtrail.cli.main import kvtrail
from kvtrail.cli.probe import StoppableClock
from kvtrail.producers.memory import MemoryTransport
from kvtrail.producers.publisher import LifecyclePublisher
from kvtrail.schemas.config import Config
from kvtrail.schemas.envelope import EnvelopeDecoder
from kvtrail.schemas.errors import BrokerError, KvtrailError
from kvtrail.schemas.events import Check, Event

from ..audit.checks.asking import FORMS, QUESTION, somebody_asked, system
from ..audit.checks.stub import Behaviour, Stub, serving

KEY = "sk-very-secret-1"
OTHER = "sk-very-secret-2"


@pytest.fixture(scope="module")
def served() -> Iterator[Stub]:
    with serving() as stub:
        yield stub


@pytest.fixture
def stub(served: Stub) -> Stub:
    return served.become(Behaviour())


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """No broker, a state directory of its own, two keys."""
    (tmp_path / "system.txt").write_text(system(14))
    (tmp_path / "key").write_text(f"{OTHER}\n")
    return {
        "KVTRAIL_LOCAL__DIRECTORY": str(tmp_path / "state"),
        "ENDPOINT_API_KEY": KEY,
        "NORTHWIND": KEY,
        "FOLDER": str(tmp_path),
    }


def run(environ: Mapping[str, str], *words: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(kvtrail, list(words), env=environ, input=stdin)


def diff(environ: Mapping[str, str], stub: Stub, *words: str) -> Result:
    return run(
        environ, "bypass-diff", stub.url, "--form", "vllm", "--model", "m", "--system",
        f"{environ['FOLDER']}/system.txt", "--question", QUESTION, *words,
    )  # fmt: skip


def probe(environ: Mapping[str, str], stub: Stub, *words: str) -> Result:
    return run(
        environ, "probe", "isolation", stub.url, "--form", "vllm", "--model", "m", "--by", "api-key", "--tenant",
        "northwind=env:NORTHWIND", "--tenant", f"contoso=file:{environ['FOLDER']}/key", "--pause", "0", "--pairs", "2",
        *words,
    )  # fmt: skip


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> MemoryTransport:
    """Whatever would go to Kafka."""
    transport = MemoryTransport()
    monkeypatch.setattr(
        LifecyclePublisher, "to_kafka", lambda node, kafka, config: LifecyclePublisher(node, transport, config)
    )
    return transport


def events(transport: MemoryTransport) -> list[Event]:
    decoder = EnvelopeDecoder()
    return [event for _, record in transport.records for event in decoder.decode(record).events]


def test_each_outcome_has_its_exit_status_and_its_words(stub: Stub, environ: dict[str, str]) -> None:
    for behaviour, days, status, words in (
        (Behaviour(), 14, 0, ("the cache is not implicated: equal", "prompt's evidence", "Not recorded.")),
        (Behaviour(wrong_entry=True, shares_across_tenants=True), 90, 1, ("the cache is implicated: diverges",)),
        (Behaviour(reports="hidden"), 14, 3, ("inconclusive: cached tokens hidden", "--enable-prompt-tokens-details")),
        (Behaviour(refuses=("temperature",)), None, 3, ("inconclusive: temperature refused",)),
    ):
        stub.become(behaviour)
        if days:
            somebody_asked(stub, FORMS["vllm"], days, KEY)
        result = diff(environ, stub)
        assert result.exit_code == status, result.output
        for word in words:
            assert word in result.stdout
        assert "compared by" in result.stdout.lower() or status == 3
        assert KEY not in result.output


def test_json_is_one_document_without_content(stub: Stub, environ: dict[str, str]) -> None:
    somebody_asked(stub.become(Behaviour(wrong_entry=True, shares_across_tenants=True)), FORMS["vllm"], 90, KEY)
    result = diff(environ, stub, "--json", "--about", "req-2044", "--key", "support_v7:m1")
    told = json.loads(result.stdout)
    assert result.exit_code == 1
    assert told["schema"] == "kvtrail.bypass_diff/1"
    assert (told["outcome"], told["reason"], told["basis"]) == ("implicated", "diverges", "token ids")
    assert (told["about"], told["key"], told["bypass_tokens"]) == ("req-2044", "support_v7:m1", 0)
    assert told["position"] == 0 and told["margin"] > 1
    assert len(told["runs"]["reuse"]) == 2 and len(told["runs"]["bypass"]) == 3
    assert "w1" not in result.stdout and KEY not in result.stdout and QUESTION not in result.stdout


def test_the_verdict_is_recorded_under_the_complaint(
    stub: Stub, environ: dict[str, str], recorded: MemoryTransport
) -> None:
    somebody_asked(stub.become(Behaviour(wrong_entry=True, shares_across_tenants=True)), FORMS["vllm"], 90, KEY)
    about = ("--about", "req-2044", "--key", "support_v7:m1", "--store", "kv", "--tier", "nvme", "--owner", "n1")
    result = diff(environ, stub, "--publish", "--tenant", "contoso", *about)
    assert "Recorded as a check event." in result.stdout
    check = events(recorded)[-1]
    assert isinstance(check.body, Check)
    assert (check.body.check, check.body.result, check.body.first_divergence) == ("bypass_diff", "fail", 0)
    assert check.body.reused_tokens == 64
    assert (check.request_id, check.key, check.store, check.tier, check.home) == (
        "req-2044", "support_v7:m1", "kv", "nvme", "n:n1",
    )  # fmt: skip
    assert check.identity is not None and check.identity.tenant_id == "contoso"
    raw = b"".join(record for _, record in recorded.records)
    assert KEY.encode() not in raw and QUESTION.encode() not in raw and b"w1" not in raw


def test_what_an_endpoint_says_of_its_entry_is_believed_of_a_node_only(
    stub: Stub, environ: dict[str, str], recorded: MemoryTransport
) -> None:
    for form, key in (("node", "support_v7:m1"), ("vllm", "")):
        somebody_asked(stub.become(Behaviour()), FORMS[form], 14, KEY)
        words = ("--publish", "--header", "X-Node=text:1")
        result = run(environ, "bypass-diff", stub.url, "--form", form, "--model", "m", "--system",
                     f"{environ['FOLDER']}/system.txt", "--question", QUESTION, *words)  # fmt: skip
        assert result.exit_code == 0, result.output
        assert events(recorded)[-1].key == key


def test_publishing_is_for_a_configured_broker_and_no_publish_wins(
    stub: Stub, environ: dict[str, str], recorded: MemoryTransport
) -> None:
    somebody_asked(stub, FORMS["vllm"], 14, KEY)
    diff(environ, stub)
    configured = {**environ, "KVTRAIL_KAFKA__BOOTSTRAP": "127.0.0.1:9"}
    diff(configured, stub, "--no-publish")
    assert not recorded.records
    diff(configured, stub)
    assert [event.type for event in events(recorded)] == ["node_start", "check"]


def test_a_verdict_is_shown_though_it_cannot_be_recorded(stub: Stub, environ: dict[str, str]) -> None:
    somebody_asked(stub, FORMS["vllm"], 14, KEY)

    def never(publisher: LifecyclePublisher, timeout_s: float = 0.0) -> None:
        raise BrokerError("was not there.", field="kafka.bootstrap", remedy="Start it.")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(checking, "sent", never)
        result = diff({**environ, "KVTRAIL_KAFKA__BOOTSTRAP": "127.0.0.1:9"}, stub)
    assert result.exit_code == 0
    assert "the cache is not implicated" in result.stdout
    assert "NOT recorded: kafka.bootstrap: was not there." in result.stdout


def test_blocks_and_keys_are_told_where_they_are_known(stub: Stub, environ: dict[str, str]) -> None:
    somebody_asked(stub, FORMS["node"], 14, KEY)
    result = run(environ, "bypass-diff", stub.url, "--form", "node", "--model", "m", "--system",
                 f"{environ['FOLDER']}/system.txt", "--question", QUESTION, "--block-size", "16",
                 "--header", "X-Node=text:1")  # fmt: skip
    assert "Reported as reused: 64 tokens (4 blocks of 16) with reuse, 0 without." in result.stdout
    assert "The entry: key support_v7:m1 in store nvme-cache." in result.stdout


def test_a_request_as_it_was_sent(stub: Stub, environ: dict[str, str]) -> None:
    body = {
        "model": "m", "temperature": 0.7, "stream": True, "stream_options": {"include_usage": True}, "n": 3,
        "max_tokens": 4000, "cache_salt": "tenant-salt", "messages": [{"role": "user", "content": QUESTION * 20}],
    }  # fmt: skip
    result = run(environ, "bypass-diff", stub.url + "/v1", "--form", "vllm", "--request", "-", "--warm",
                 stdin=json.dumps(body))  # fmt: skip
    assert result.exit_code == 0, result.output
    salts = [seen["cache_salt"] for seen in stub.seen]
    assert salts.count("tenant-salt") == 3 and len(set(salts)) == 4  # warm and two; each bypass has a pool of its own
    for seen in stub.seen:
        assert (seen["temperature"], seen["stream"], seen["max_tokens"]) == (0, False, 64)
        assert "n" not in seen and "stream_options" not in seen
        assert seen["messages"] == body["messages"]  # a salt in the prompt would be another prompt
    assert all(one["user-agent"].startswith("kvtrail/") for one in stub.headers)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--bypass", "prayer"), "--bypass: is no bypass of this form. Choose of cache-salt, prompt-logprobs."),
        (("--api-key-env", "NOT_SET"), "--api-key-env: names a variable that is not set."),
        (("--api-key-file", "/nowhere"), "--api-key-file: cannot be read."),
        (("--header", "Authorization=text:sk-1"), "a key on a command line can be read by others"),
        (("--header", "X-Odd\n=text:1"), "--header: is no header's name."),
        (("--header", "X-A=text:ü"), "holds characters that no HTTP header can"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_asked(
    stub: Stub, environ: dict[str, str], words: tuple[str, ...], told: str
) -> None:
    result = diff(environ, stub, *words)
    assert isinstance(result.exception, KvtrailError) and told in str(result.exception)
    assert not stub.seen


@pytest.mark.parametrize(
    "url", ["gpu-17:8000", "ftp://a", "http://", "http://u:p@host", "http://h/?key=1", "http://h:x"]
)
def test_an_address_that_is_none_or_carries_a_secret(environ: dict[str, str], url: str) -> None:
    result = run(environ, "bypass-diff", url, "--form", "vllm", "--model", "m", "--question", "q")
    assert isinstance(result.exception, KvtrailError) and result.exception.field == "URL"


def test_a_form_without_a_bypass_declines_and_says_why(stub: Stub, environ: dict[str, str]) -> None:
    result = run(environ, "bypass-diff", stub.url, "--form", "openai-plain", "--model", "m", "--question", "q")
    assert result.exit_code == 3
    assert "Declined" in result.stdout and "another prompt" in result.stdout
    assert not stub.seen


def test_prompt_logprobs_are_proof_of_computing_without_any_report(stub: Stub, environ: dict[str, str]) -> None:
    somebody_asked(stub.become(Behaviour(wrong_entry=True, shares_across_tenants=True)), FORMS["vllm"], 90, KEY)
    result = diff(environ, stub, "--bypass", "prompt-logprobs")
    assert result.exit_code == 1, result.output


def test_what_an_endpoint_calls_itself_cannot_break_a_document(
    stub: Stub, environ: dict[str, str], recorded: MemoryTransport
) -> None:
    stub.become(Behaviour(surrogates=True, other_model="\x1b[2J" + "m" * 9000))
    result = diff(environ, stub, "--warm", "--json", "--publish")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["recorded"] == "Recorded as a check event."
    assert "\x1b" not in diff(environ, stub, "--warm").output


def test_an_interrupted_check_is_no_verdict(
    stub: Stub, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(bypass_diff, "run_bypass_diff", interrupted)
    assert diff(environ, stub).exit_code == 130


def test_a_probe_says_what_it_found(stub: Stub, environ: dict[str, str], recorded: MemoryTransport) -> None:
    result = probe(environ, stub, "--publish")
    assert result.exit_code == 0, result.output
    assert "tenants do not reach each other's entries" in result.stdout
    assert "Second evidence, latencies" in result.stdout
    stub.become(Behaviour(shares_across_tenants=True))
    result = probe(environ, stub, "--publish", "--json")
    told = json.loads(result.stdout)
    assert (result.exit_code, told["isolation"], told["cross_hits"]) == (1, "broken", 2)
    result = probe(environ, stub, "--publish", "--policy", "shared")
    assert result.exit_code == 0 and "policy allows it" in result.stdout
    checks = [event for event in events(recorded) if isinstance(event.body, Check)]
    assert [event.body.result for event in checks if isinstance(event.body, Check)] == ["pass", "fail", "pass"]
    assert all(event.identity is not None and event.identity.tenant_id == "contoso" for event in checks)
    raw = b"".join(record for _, record in recorded.records).decode()
    for secret in (KEY, OTHER):
        assert secret not in raw and secret not in result.output


def test_a_probes_requests_are_tiny_marked_and_meet_nobody(stub: Stub, environ: dict[str, str]) -> None:
    probe(environ, stub)
    assert len(stub.seen) == 8
    assert all((seen["max_tokens"], seen["user"]) == (1, "kvtrail-probe") for seen in stub.seen)
    assert all("isolation-probe" in one["user-agent"] for one in stub.headers)
    starts = [seen["messages"][0]["content"][:32] for seen in stub.seen]
    assert sorted(starts.count(one) for one in set(starts)) == [1, 1, 3, 3]
    first = {seen["messages"][0]["content"].split()[0] for seen in stub.seen}
    assert all(len(word) == 32 for word in first)


@pytest.mark.parametrize(
    ("by", "sources"),
    [("header", ("a=text:a", "b=text:b")), ("cache-salt", ("a=text:tenant-a", "b=text:tenant-b"))],
)
def test_tenants_told_apart_by_header_or_salt(
    stub: Stub, environ: dict[str, str], by: str, sources: tuple[str, str]
) -> None:
    for behaviour, status in ((Behaviour(), 0), (Behaviour(shares_across_tenants=True), 1)):
        stub.become(behaviour)
        result = run(
            environ, "probe", "isolation", stub.url, "--form", "vllm", "--by", by, "--pause", "0", "--pairs", "1",
            *(word for source in sources for word in ("--tenant", source)),
        )  # fmt: skip
        assert result.exit_code == status, result.output


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--by", "api-key", "--tenant", "a=text:sk-1", "--tenant", "b=env:NORTHWIND"), "can be read by others"),
        (("--by", "api-key", "--tenant", "a=env:NORTHWIND", "--tenant", "b=env:NORTHWIND"), "are the same twice"),
        (("--by", "header", "--tenant", "a=text:x", "--tenant", "a=text:y"), "are the same twice"),
        (("--by", "header", "--tenant", "a", "--tenant", "b=text:y"), "env:VARIABLE"),
        (("--by", "header", "--tenant", "a=text:x", "--tenant", "b=text:y", "--every", "soon"), "--every"),
        (("--by", "header", "--tenant", "a=text:x", "--tenant", "b=text:y", "--every", "1s"), "less than 10 s"),
    ],
)
def test_a_probe_that_is_set_up_wrongly_asks_nothing(
    stub: Stub, environ: dict[str, str], words: tuple[str, ...], told: str
) -> None:
    result = run(environ, "probe", "isolation", stub.url, "--form", "vllm", *words)
    assert isinstance(result.exception, KvtrailError) and told in str(result.exception), result.output
    assert not stub.seen


def test_a_form_without_pools_cannot_tell_tenants_apart_by_salt(stub: Stub, environ: dict[str, str]) -> None:
    words = ("--by", "cache-salt", "--tenant", "a=text:x", "--tenant", "b=text:y")
    result = run(environ, "probe", "isolation", stub.url, "--form", "anthropic", *words)
    assert isinstance(result.exception, KvtrailError) and "no field for a pool" in str(result.exception)


@pytest.mark.parametrize("step", range(30))
def test_a_stop_may_be_asked_for_at_any_step_of_a_wait(step: int) -> None:
    """A signal's handler runs in the thread that waits, between any two of its steps: a lock would be held for ever."""
    left = step

    def trace(frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
        nonlocal left
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left < 0 and not clock.stopped:
                clock.stop()
        return trace

    with closing(StoppableClock()) as clock:
        sys.settrace(trace)
        clock.wait(0.0)
        sys.settrace(None)
        assert clock.wait(0.0) is clock.stopped


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_scheduled_probe_ends_in_order_when_told(stub: Stub, environ: dict[str, str], number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "kvtrail.cli", "probe", "isolation", stub.url, "--form", "vllm", "--by", "header",
         "--tenant", "a=text:a", "--tenant", "b=text:b", "--pause", "0", "--pairs", "1", "--every", "10m"],
        env={**os.environ, **environ}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("Not recorded."):
                break
        process.send_signal(number)
        started = time.monotonic()
        _, said = process.communicate(timeout=30)
        assert process.returncode == 0, said
        assert "Traceback" not in said
        assert time.monotonic() - started < 30
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(("shares", "after", "status"), [(False, 4, 3), (True, 4, 1)])
def test_a_scheduled_probe_that_is_stopped_in_its_first_round_clears_nobody(
    stub: Stub, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, shares: bool, after: int, status: int
) -> None:
    class Stopped(StoppableClock):
        asked = 0

        def wait(self, seconds: float) -> bool:
            self.asked += 1
            return self.asked > after

    monkeypatch.setattr("kvtrail.cli.probe.stopping", lambda: nullcontext(Stopped()))
    stub.become(Behaviour(shares_across_tenants=shares))
    words = ("--by", "header", "--tenant", "a=text:a", "--tenant", "b=text:b", "--pause", "0", "--every", "10m")
    result = run(environ, "probe", "isolation", stub.url, "--form", "vllm", *words)
    assert result.exit_code == status, result.output
    assert ("reached another's entry" in result.output) is shares


def test_publishes_follows_the_broker() -> None:
    assert not checking.publishes(Config(), None)
    assert checking.publishes(Config.model_validate({"kafka": {"bootstrap": "b:1"}}), None)
    assert checking.publishes(Config(), True)
