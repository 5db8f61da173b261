"""HTTP as it goes wrong: certificates, redirects, silence, limits; and where a key never goes."""

import socket
import subprocess
import threading
from email.utils import formatdate
from pathlib import Path

import pytest
from kvtrail.audit.checks.answers import NoAnswer, Trouble
from kvtrail.audit.checks.endpoint import Endpoint, _retry_after
from kvtrail.schemas.errors import ConfigError

from .asking import FORMS, Patience, diff, endpoint, request, somebody_asked
from .stub import Behaviour, Stub, serving

VLLM = FORMS["vllm"]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", "-out", "cert.pem", "-days",
         "2", "-subj", "/CN=stub", "-addext", "subjectAltName=IP:127.0.0.1"],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    return folder


def test_a_certificate_is_believed_only_when_its_authority_is_named(certificate: Path) -> None:
    files = {"ssl_keyfile": str(certificate / "key.pem"), "ssl_certfile": str(certificate / "cert.pem")}
    with serving(**files) as stub:
        assert diff(stub, VLLM).diff.reason == Trouble.TLS
        assert not stub.seen
        somebody = certificate / "cert.pem"
        assert diff(stub, VLLM, warm=True, ca_file=somebody).diff.outcome == "not_implicated"


def test_a_certificate_file_that_is_none_is_named(stub: Stub, tmp_path: Path) -> None:
    (tmp_path / "not.pem").write_text("hello")
    for path in (tmp_path / "not.pem", tmp_path / "nowhere.pem"):
        with pytest.raises(ConfigError) as told:
            endpoint(stub, VLLM, ca_file=path)
        assert told.value.field == "--ca-file"


def test_the_key_does_not_follow_a_redirect(stub: Stub) -> None:
    with serving() as other:
        stub.become(Behaviour(redirects=f"{other.url}/v1/chat/completions"))
        assert diff(stub, VLLM).diff.reason == Trouble.REDIRECTED
        assert not other.headers


def test_nobody_is_there() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: refused
        with pytest.raises(NoAnswer) as told:
            _ask(f"http://127.0.0.1:{taken.getsockname()[1]}")
    assert told.value.trouble == Trouble.UNREACHABLE
    assert "sk-" not in str(told.value)


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", b"220 smtp ready\r\n"])
def test_a_connection_that_breaks_off_or_speaks_something_else(said: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def once() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(said)

        thread = threading.Thread(target=once, daemon=True)
        thread.start()
        with pytest.raises(NoAnswer) as told:
            _ask(f"http://127.0.0.1:{server.getsockname()[1]}")
        thread.join(5)
    assert told.value.trouble == Trouble.UNREACHABLE


def test_a_proxy_in_the_environment_is_not_asked_for_this_machine(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert diff(stub, VLLM, warm=True).diff.outcome == "not_implicated"


def test_the_deadline_is_one_over_everything(stub: Stub) -> None:
    stub.become(Behaviour(status=503, after=0, retry_after="4"))
    clock = Patience()
    made = diff(stub, VLLM, deadline_s=10.0, clock=clock)
    assert made.diff.reason == Trouble.SERVER_FAILED
    assert clock.waited == [4.0, 4.0]


def test_an_endpoint_that_asks_for_no_pause_gets_one(stub: Stub) -> None:
    stub.become(Behaviour(status=503, after=0, retry_after="0"))
    clock = Patience()
    assert diff(stub, VLLM, deadline_s=10.0, clock=clock).diff.reason == Trouble.SERVER_FAILED
    assert 1 < len(clock.waited) <= 20 and min(clock.waited) > 0


def test_a_wait_that_is_cut_short_ends_it(stub: Stub) -> None:
    class Stopping(Patience):
        def wait(self, seconds: float) -> bool:
            return True

    stub.become(Behaviour(status=429, after=0, retry_after="1"))
    assert diff(stub, VLLM, clock=Stopping()).diff.reason == Trouble.RATE_LIMITED


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("7", 7.0), ("0", 0.0), ("-3", 0.0), ("1.5", 1.5), ("", None), ("soon", None), ("nan", None), ("inf", None),
     (formatdate(1_800_000_060, usegmt=True), 60.0), (formatdate(1_700_000_000, usegmt=True), 0.0)],
)  # fmt: skip
def test_retry_after_is_seconds_or_a_date(value: str, seconds: float | None) -> None:
    assert _retry_after(value, 1_800_000_000.0) == seconds


@pytest.mark.parametrize(
    ("url", "asked"),
    [
        ("http://h:1", "http://h:1/v1/chat/completions"),
        ("http://h:1/", "http://h:1/v1/chat/completions"),
        ("http://h:1/v1", "http://h:1/v1/chat/completions"),
        ("http://h:1/proxy/v1/", "http://h:1/proxy/v1/chat/completions"),
        ("http://h:1/v1/chat/completions", "http://h:1/v1/chat/completions"),
        ("http://[::1]:1", "http://[::1]:1/v1/chat/completions"),
    ],
)
def test_an_address_may_be_the_base_or_the_whole(url: str, asked: str) -> None:
    with Endpoint(url, VLLM.path, headers={}, purpose="test") as there:
        assert there.url == asked


def test_a_salt_never_enters_the_prompt_and_reuse_keeps_the_requests_own(stub: Stub) -> None:
    for name in ("vllm", "sglang", "sglang-generate", "openai", "anthropic"):
        form = FORMS[name]
        somebody_asked(stub.become(Behaviour()), form, 14)
        diff(stub, form)
        prompts = {str((seen.get("messages"), _bare(seen.get("system")), seen.get("text"))) for seen in stub.seen}
        assert len(prompts) == 1, name
        assert {seen.get("model") for seen in stub.seen} == {request(form).get("model")}


def _bare(system: object) -> object:
    return [block["text"] for block in system] if isinstance(system, list) else system


def _ask(url: str) -> None:
    with Endpoint(url, VLLM.path, headers=VLLM.headers("sk-1"), purpose="test", timeout_s=5.0) as there:
        there.post({"model": "m"}, {})
