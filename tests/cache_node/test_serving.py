"""The node behind HTTP: what is asked of it and what it says, on a real socket with a node that needs no model."""

import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import pytest
import uvicorn
from kvtrail.audit.checks.bypass import run_bypass_diff
from kvtrail.audit.checks.endpoint import Endpoint
from kvtrail.audit.checks.openai_form import NODE
from kvtrail.audit.checks.target import EndpointTarget
from kvtrail.cache_node.keys import StoreKey
from kvtrail.cache_node.model import Chosen
from kvtrail.cache_node.node import Answer
from kvtrail.cache_node.prefix import Prefix
from kvtrail.cache_node.serving import NodeService
from kvtrail.schemas.identity import PrefixKey

IDENTITY = PrefixKey(
    tenant_id="contoso", weights_digest="ab" * 32, model_id="m", kv_dtype="float32", tokenizer_id="t",
    template_digest="cd" * 32, template_id="support_v7", tool_schema_digest="", token_ids_digest="ef" * 32,
)  # fmt: skip


class Parrot:
    """Files what it heard under the template's name, whoever said it: the wrong key, without a model."""

    def __init__(self) -> None:
        self.filed: dict[str, str] = {}
        self.asked: list[tuple[Prefix, str, str, bool, int]] = []
        self.reports = 0

    def answer(
        self, prefix: Prefix, question: str, request_id: str, *, bypass: bool = False, limit: int = 48
    ) -> Answer:
        self.asked.append((prefix, question, request_id, bypass, limit))
        known = None if bypass else self.filed.get(prefix.template_id)
        if not bypass:
            self.filed.setdefault(prefix.template_id, prefix.rendered)
        said = [ord(char) for char in (known or prefix.rendered)][:limit]
        return Answer(
            request_id=request_id, text="".join(map(chr, said)), key=StoreKey(prefix.template_id, "asserted"),
            hit=known is not None, reused_tokens=len(known or ""), computed_tokens=9, prefix_tokens=9,
            identity=IDENTITY, seconds=0.0,
            chosen=tuple(Chosen(one, -0.01, ((one, -0.01), (one + 1, -6.0))) for one in said),
        )  # fmt: skip

    def report_lookups(self) -> None:
        self.reports += 1


@pytest.fixture
def parrot() -> Parrot:
    return Parrot()


@pytest.fixture
def address(parrot: Parrot) -> Iterator[str]:
    app = NodeService(parrot, name="n1", store="kv", model="m").app()
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 20
    while not server.started and time.monotonic() < deadline:
        time.sleep(0.005)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(10)


HEADERS = {"X-Tenant": "contoso", "X-Template": "support_v7", "X-Request-Id": "req-1"}


def ask(address: str, body: Any, headers: Mapping[str, str | bytes] = HEADERS) -> httpx.Response:
    sent: Any = dict(headers)
    return httpx.post(f"{address}/v1/chat/completions", json=body, headers=sent, trust_env=False)


def body(rendered: str = "Fourteen days.", **more: Any) -> dict[str, Any]:
    return {
        "model": "m",
        "messages": [{"role": "system", "content": rendered}, {"role": "user", "content": "How many?"}],
        **more,
    }


def test_an_answer_says_what_was_reused_and_under_which_key(address: str, parrot: Parrot) -> None:
    ask(address, body("Ninety days."), {**HEADERS, "X-Tenant": "northwind"})
    told = ask(address, body(logprobs=True, max_tokens=5)).json()
    assert told["choices"][0]["message"]["content"] == "Ninet"
    assert told["choices"][0]["token_ids"] == [ord(char) for char in "Ninet"]
    assert told["choices"][0]["logprobs"]["content"][0]["top_logprobs"][1] == {"token": "79", "logprob": -6.0}
    assert told["usage"]["prompt_tokens_details"] == {"cached_tokens": 12}
    assert told["kvtrail"] == {
        "key": "support_v7", "key_origin": "asserted", "store": "kv", "tier": "nvme", "node": "n1",
    }  # fmt: skip
    prefix, question, request_id, bypass, limit = parrot.asked[-1]
    assert (prefix, question) == (Prefix("contoso", "support_v7", "Fourteen days.", ""), "How many?")
    assert (request_id, bypass, limit) == ("req-1", False, 5)


def test_a_bypass_diff_over_http_implicates_the_wrong_key(address: str, parrot: Parrot) -> None:
    for filed, outcome in (("Ninety days, says northwind.", "implicated"), ("Fourteen days. " * 3, "not_implicated")):
        parrot.filed["support_v7"] = filed
        with Endpoint(address, NODE.path, headers=HEADERS, purpose="test") as there:
            made = run_bypass_diff(EndpointTarget(NODE, there.post, body("Fourteen days. " * 3), tokens=40))
        assert (made.diff.outcome, made.diff.basis) == (outcome, "token ids")
        assert made.runs.reuse[0].key == "support_v7" and made.runs.reuse[0].owner == "n1"


@pytest.mark.parametrize(
    ("sent", "headers", "field"),
    [
        (body(), {"X-Template": "t"}, "X-Tenant"),
        (body(temperature=0.7), HEADERS, "temperature"),
        (body(stream=True), HEADERS, "stream"),
        (body(max_tokens=0), HEADERS, "max_tokens"),
        (body(max_tokens=True), HEADERS, "max_tokens"),
        ({"messages": []}, HEADERS, "messages"),
        ({"messages": "hello"}, HEADERS, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, HEADERS, "messages"),
        ([1], HEADERS, "body"),
        (body("x" * (1 << 20)), HEADERS, "body"),
        (body(), HEADERS | {"X-Request-Id": "r" * 1025}, "X-Request-Id"),
        (body(), HEADERS | {"X-Template": "t" * 513}, "X-Template"),
        (body(), HEADERS | {"X-Tenant": "t" * 257}, "X-Tenant"),
        (body(), HEADERS | {"X-Tenant": "kvtrail:thief"}, "X-Tenant"),
        (body(), HEADERS | {"X-Tenant": b"Z\xfcrich"}, "X-Tenant"),
        (body(), HEADERS | {"X-Request-Id": b"\xff"}, "X-Request-Id"),
        (body(), HEADERS | {"X-Template": b"\xff"}, "X-Template"),
        (body(), HEADERS | {"X-Epoch": b"\xff"}, "X-Epoch"),
    ],
)
def test_what_it_does_not_take_is_named(
    address: str, parrot: Parrot, sent: Any, headers: dict[str, str | bytes], field: str
) -> None:
    answered = ask(address, sent, headers)
    assert answered.status_code == 400
    assert answered.json()["error"]["message"].startswith(f"{field}: ")
    assert not parrot.asked


def test_names_are_read_as_utf_8(address: str, parrot: Parrot) -> None:
    names = {"X-Tenant": "Zürich-株式会社", "X-Template": "hilfe_für_alle", "X-Request-Id": "anfrage-é"}
    told = ask(address, body(), {name: value.encode() for name, value in names.items()})
    assert told.status_code == 200
    ((prefix, _, request_id, _, _),) = parrot.asked
    assert (prefix.tenant_id, prefix.template_id, request_id) == tuple(names.values())


def test_the_longest_names_are_taken(address: str, parrot: Parrot) -> None:
    headers = {"X-Tenant": "t" * 256, "X-Template": "t" * 512, "X-Request-Id": "r" * 1024}
    assert ask(address, body(), headers).status_code == 200
    assert len(parrot.asked) == 1


def test_it_says_that_it_is_there(address: str) -> None:
    told = httpx.get(f"{address}/healthz", trust_env=False)
    assert (told.status_code, told.json()["node"]) == (200, "n1")
