"""SGLang's own `/generate`: token ids and cached tokens without any server option."""

import copy
from collections.abc import Mapping
from typing import Any

from .answers import Answer, Step
from .forms import AGAIN, Bypass, Document, count, ids, malformed, mapping, name, text
from .openai_form import SALT, TOP


def _skip_read(request: Document, nonce: str) -> Document:
    return {**request, "return_logprob": True, "logprob_start_len": 0}


class GenerateForm:
    """`POST /generate`. The prompt is text or token ids; what decoding is asked for stands in `sampling_params`."""

    name = "sglang-generate"
    path = "/generate"
    bypasses: tuple[Bypass, ...] = (
        SALT,
        Bypass(
            name="prompt-logprobs", does="logprob_start_len 0: the engine skips reading its cache", apply=_skip_read
        ),
    )
    declines = ""
    extras: Mapping[str, Any] = {"return_logprob": True, "top_logprobs_num": TOP, "return_text_in_logprobs": True}
    hidden = "SGLang reports meta_info.cached_tokens always: something in between leaves it out."

    def headers(self, key: str) -> dict[str, str]:
        """A bearer token."""
        return {"Authorization": f"Bearer {key}"} if key else {}

    def plain(self, model: str, system: str, question: str) -> Document:
        """System prompt and question as one text; there is no template here."""
        return {"text": f"{system}\n{question}" if system else question}

    def prepared(self, request: Document, tokens: int) -> Document:
        """Greedy, no stream."""
        document = copy.deepcopy(request)
        sampling = {
            key: value for key, value in mapping(document.get("sampling_params")).items() if key not in _DROPPED
        }
        given = count(sampling.get("max_new_tokens")) or tokens
        document["sampling_params"] = {**sampling, "temperature": 0, "max_new_tokens": min(given, tokens)}
        document["stream"] = False
        return document

    def varied(self, request: Document, number: int) -> Document:
        """The text, a few words longer; there is nothing to make other token ids with."""
        if not isinstance(request.get("text"), str):
            return request
        return {**request, "text": f"{request['text']}\n{AGAIN.format(number=number)}"}

    def salted(self, request: Document, salt: str) -> Document:
        """Under `cache_salt`."""
        return {**request, "cache_salt": salt}

    def marked(self, request: Document) -> Document:
        """The user agent says it; this interface has no field for it."""
        return request

    def read(self, document: Document) -> Answer:
        """`text`, `output_ids` and `meta_info`."""
        meta = mapping(document.get("meta_info"))
        if not isinstance(document.get("text"), str) or not meta:
            raise malformed("no text or no meta_info")
        return Answer(
            text=text(document["text"]),
            token_ids=ids(document.get("output_ids")),
            steps=_steps(meta),
            cached_tokens=count(meta.get("cached_tokens")),
            prompt_tokens=count(meta.get("prompt_tokens")),
            model=name(meta.get("model")),
            fingerprint=name(meta.get("weight_version")),
            finished=name(mapping(meta.get("finish_reason")).get("type")),
            request_id=name(meta.get("id")),
        )


_DROPPED = frozenset({"top_p", "top_k", "min_p", "n"})


def _steps(meta: Document) -> tuple[Step, ...] | None:
    """SGLang's triples (log-probability, id, text or null)."""
    chosen, listed = meta.get("output_token_logprobs"), meta.get("output_top_logprobs")
    if not isinstance(chosen, list) or not chosen:
        return None
    tops = listed if isinstance(listed, list) and len(listed) == len(chosen) else [None] * len(chosen)
    steps: list[Step] = []
    for one, top in zip(chosen, tops, strict=True):
        pair = _pair(one)
        if pair is None:
            return None
        others = (_pair(each) for each in (top if isinstance(top, list) else ()))
        steps.append(Step(*pair, tuple(each for each in others if each is not None)))
    return tuple(steps)


def _pair(triple: Any) -> tuple[str, float] | None:
    """A token by its id: texts of different tokens may be equal."""
    if not isinstance(triple, list) or len(triple) < 2 or count(triple[1]) is None:
        return None
    return (str(triple[1]), float(triple[0])) if isinstance(triple[0], int | float) else None


GENERATE = GenerateForm()
