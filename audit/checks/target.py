"""Targets of a check: an endpoint in one of the wire forms, or a cache node in this process."""

import secrets
from typing import Any, Protocol

import msgspec

from .answers import Answer, NoAnswer, Refused, Step, Trouble
from .endpoint import Asking
from .forms import AGAIN, Bypass, Document, Form


class Target(Protocol):
    """What a bypass diff asks. `bypass` says in words how reuse is avoided, empty where nothing genuine can;
    `declines` says why then. `hidden`: what makes the target tell how much it reused. `varies`: whether there are other
    wordings of the request."""

    bypass: str
    declines: str
    hidden: str
    varies: bool

    def ask(self, *, reuse: bool, variation: int = 0) -> Answer:
        """The answer to the request, the `variation`-th wording of it. Raises `NoAnswer`."""


class EndpointTarget:
    """A request to an endpoint. `request` is its JSON body as an application sends it; `exact`: the
    answer will be compared, so temperature 0 is a must, and ids and log-probabilities are asked for."""

    def __init__(
        self,
        form: Form,
        ask: Asking,
        request: Document,
        *,
        tokens: int,
        bypass: Bypass | None = None,
        exact: bool = True,
    ) -> None:
        self.form = form
        self._ask = ask
        self._request = form.prepared(request, tokens)
        self._exact = exact
        self._extras = dict(form.extras) if exact else {}
        self._bypass = bypass or next(iter(form.bypasses), None)
        self.bypass = self._bypass.does if self._bypass is not None else ""
        self.declines = form.declines
        self.hidden = form.hidden
        self.varies = form.varied(self._request, 1) != self._request

    def ask(self, *, reuse: bool, variation: int = 0) -> Answer:
        """One answer. A field of ours that the endpoint does not know is left out from then on."""
        while True:
            request = self.form.varied(self._request, variation) if variation else self._request
            document = {**request, **self._extras}
            if not reuse:
                assert self._bypass is not None
                document = self._bypass.apply(document, secrets.token_hex(16))
            try:
                return self._read(document)
            except Refused as error:
                if not self._adapted(error.said):
                    raise _what_was_refused(error, reuse=reuse) from error

    def _adapted(self, said: str) -> bool:
        """Whether something that was turned down could be left out, or given another name."""
        unknown = _needed_together([name for name in self._extras if name in said])
        for name in unknown:
            self._extras.pop(name, None)
        decoding = self._request.get("sampling_params", self._request)
        if not self._exact and "temperature" in said and decoding.pop("temperature", None) is not None:
            return True
        if "max_completion_tokens" in said and "max_tokens" in self._request:
            self._request["max_completion_tokens"] = self._request.pop("max_tokens")
            return True
        return bool(unknown)

    def _read(self, document: Document) -> Answer:
        request_id = f"kvtrail-check-{secrets.token_hex(8)}"
        told, seconds = self._ask(document, {"X-Request-Id": request_id})
        answer = self.form.read(told)
        return msgspec.structs.replace(answer, seconds=seconds, request_id=answer.request_id or request_id)


def _needed_together(names: list[str]) -> set[str]:
    logprobs = {"logprobs", "top_logprobs"}
    return set(names) | (logprobs if logprobs & set(names) else set())


def _what_was_refused(error: Refused, *, reuse: bool) -> NoAnswer:
    if "temperature" in error.said:
        return NoAnswer(
            Trouble.TEMPERATURE_REFUSED, "refuses temperature 0, so no two answers can be compared.",
            remedy="Check another model of the same engine, or the entry itself (spot check).",
        )  # fmt: skip
    if not reuse:
        return NoAnswer(
            Trouble.BYPASS_REFUSED, "answers the request, and refuses it with the bypass.",
            remedy="Choose another --bypass, or the form that is the engine's.",
        )  # fmt: skip
    return error


class Node(Protocol):
    """A cache node in this process."""

    def answer(self, prefix: Any, question: str, request_id: str, *, bypass: bool = False) -> Any:
        """An answer; with `bypass` the store is neither read nor written."""


class NodeTarget:
    """A request to a cache node in this process: prefix and question as its `answer` takes them."""

    declines = ""
    hidden = ""
    varies = True
    bypass = "the node's own flag: its store is neither read nor written"

    def __init__(self, node: Node, prefix: Any, question: str) -> None:
        self._node = node
        self._prefix = prefix
        self._question = question

    def ask(self, *, reuse: bool, variation: int = 0) -> Answer:
        """One answer."""
        question = f"{self._question} {AGAIN.format(number=variation)}" if variation else self._question
        said = self._node.answer(self._prefix, question, f"kvtrail-check-{secrets.token_hex(8)}", bypass=not reuse)
        return read_node(said)


def read_node(said: Any) -> Answer:
    """A cache node's answer in the terms of a check."""
    return Answer(
        text=said.text,
        token_ids=tuple(one.token for one in said.chosen),
        steps=tuple(
            Step(str(one.token), one.logprob, tuple((str(token), value) for token, value in one.top))
            for one in said.chosen
        ),
        cached_tokens=said.reused_tokens,
        prompt_tokens=said.prefix_tokens,
        key=said.key.text,
        request_id=said.request_id,
        seconds=said.seconds,
    )
