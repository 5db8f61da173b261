"""Entries for the spot check's calibration: right ones, made in the ways that engines make them, and wrong ones.

A wrong entry is given as a function from a prompt to the keys and values that were stored and the tokens that are asked
for, so that everything else is equal.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from kvtrail.cache_node.kv import Pair
from kvtrail.cache_node.model import LanguageModel
from kvtrail.cache_node.prefix import Prefix

Stored = list[Pair]
Make = Callable[["Bench", "Prompt"], Stored]
_NAMES = ("northwind", "contoso", "fabrikam", "tailspin", "litware", "adatum", "proseware", "wingtip")
_RULES = (
    "Returns are accepted within {days} days of delivery.",
    "Refunds above {days} euros need the word of a manager.",
    "Never promise a date, and answer in the customer's own language.",
    "Parcels that were damaged on the way are replaced free of charge.",
    "If the question is about a contract, name the clause and nothing else.",
    "Opening hours are from nine to five, except on the {days}th of each month.",
    "Quote prices with tax, and say which country's tax it is.",
    "When in doubt, hand over to a person and say so.",
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A tenant's rendering of a template, beside the same template rendered for another tenant and with one word
    edited."""

    number: int
    tenant: str
    text: str
    other: str
    edited: str


def prompts(count: int) -> list[Prompt]:
    """Different templates, tenants and lengths."""
    made: list[Prompt] = []
    for number in range(count):
        tenant, other = _NAMES[number % 8], _NAMES[(number * 3 + 1) % 8 if number % 8 != 3 else 7]
        start = number % len(_RULES)
        rules = " ".join((*_RULES[start:], *_RULES[:start])[: 2 + number % 7])
        days, others = str(7 + 3 * number), str(90 - 2 * number)

        def rendered(name: str, days: str, rules: str = rules) -> str:
            words = f"You are the support assistant of {name}. " + rules.replace("{days}", days)
            return Prefix(name, "support", words).text

        text = rendered(tenant, days)
        edited = text.replace("assistant", "agent").replace("  ", " ")
        made.append(Prompt(number, tenant, text, rendered(other, others), edited))
    return made


class Bench:
    """The model, its own weights kept aside, and random numbers that are the same in every run."""

    def __init__(self, model: LanguageModel) -> None:
        self.model = model
        self.random = torch.Generator().manual_seed(7)
        self._right: dict[int, Stored] = {}
        self._weights = {name: tensor.clone() for name, tensor in model.network.state_dict().items()}

    def prefill(self, token_ids: Sequence[int], pieces: int = 1 << 30, singly: int = 0, start: int = 0) -> Stored:
        """Keys and values of these tokens, computed `pieces` at a time, the last `singly` one by one, the first one at
        position `start`."""
        cache, network = self.model.new_cache(), self.model.network
        before = len(token_ids) - singly
        cuts = [*range(0, before, pieces), *range(before, len(token_ids)), len(token_ids)]
        with torch.inference_mode():
            for at, end in pairwise(cuts):
                piece = list(token_ids[at:end])
                network.model(
                    input_ids=torch.tensor([piece]),
                    position_ids=torch.arange(start + at, start + at + len(piece)).unsqueeze(0),
                    past_key_values=cache,
                    use_cache=True,
                )
        return [(layer.keys.clone(), layer.values.clone()) for layer in cache.layers]  # type: ignore[union-attr]  # filled

    def right(self, prompt: Prompt) -> Stored:
        """The entry that belongs to the prompt, a copy of its own."""
        if prompt.number not in self._right:
            self._right = {prompt.number: self.prefill(self.model.encode(prompt.text))}
        return [(keys.clone(), values.clone()) for keys, values in self._right[prompt.number]]

    @contextlib.contextmanager
    def weights(self, change: "Callable[[Bench, str, torch.Tensor], torch.Tensor]") -> Iterator[None]:
        """Other weights for a while: every matrix of every layer goes through `change`."""
        with torch.no_grad():
            for name, parameter in self.model.network.named_parameters():
                if parameter.dim() == 2 and "layers." in name:
                    parameter.copy_(change(self, name, parameter))
        try:
            yield
        finally:
            self.model.network.load_state_dict(self._weights)

    def integer(self, below: int) -> int:
        """A random number below `below`."""
        return int(torch.randint(below, (1,), generator=self.random))

    def normal(self, *shape: int) -> torch.Tensor:
        """Random numbers of mean 0 and deviation 1."""
        return torch.randn(*shape, generator=self.random)


def noise(size: float) -> "Callable[[Bench, str, torch.Tensor], torch.Tensor]":
    """Weights that differ by noise of this size, relative to each matrix: another step of the same training."""

    def changed(bench: Bench, name: str, weights: torch.Tensor) -> torch.Tensor:
        return weights + (bench.normal(*weights.shape) * size * weights.float().std()).to(weights.dtype)

    return changed


def adapter(size: float, rank: int = 8) -> "Callable[[Bench, str, torch.Tensor], torch.Tensor]":
    """A low-rank change of the query and value projections, its norm this share of theirs."""

    def changed(bench: Bench, name: str, weights: torch.Tensor) -> torch.Tensor:
        if "q_proj" not in name and "v_proj" not in name:
            return weights
        change = bench.normal(weights.shape[0], rank) @ bench.normal(rank, weights.shape[1])
        scale = size * float(torch.linalg.matrix_norm(weights.float()) / torch.linalg.matrix_norm(change))
        return weights + (change * scale).to(weights.dtype)

    return changed


@contextlib.contextmanager
def rotation(model: LanguageModel, theta: float) -> Iterator[None]:
    """Another base of the rotary positions."""
    rotary: Any = model.network.model.rotary_emb
    kept = rotary.inv_freq.clone()
    rotary.inv_freq.copy_(theta ** -(torch.arange(0, 2 * len(kept), 2) / (2 * len(kept))))
    try:
        yield
    finally:
        rotary.inv_freq.copy_(kept)


def other_tenant(bench: Bench, prompt: Prompt) -> Stored:
    """The same template, rendered for another tenant."""
    return bench.prefill(bench.model.encode(prompt.other))


def one_word(bench: Bench, prompt: Prompt) -> Stored:
    """One word of the template edited."""
    return bench.prefill(bench.model.encode(prompt.edited))


def one_token(bench: Bench, prompt: Prompt) -> Stored:
    """One token of the prompt replaced by another."""
    token_ids = bench.model.encode(prompt.text)
    place = bench.integer(len(token_ids))
    token_ids[place] = (token_ids[place] + 1 + bench.integer(40_000)) % 49_152
    return bench.prefill(token_ids)


def shifted(bench: Bench, prompt: Prompt) -> Stored:
    """The right tokens, computed one position further on."""
    return bench.prefill(bench.model.encode(prompt.text), start=1)


def through(dtype: torch.dtype) -> Make:
    """The right entry, through a coarser format and back."""

    def made(bench: Bench, prompt: Prompt) -> Stored:
        return [
            (keys.to(dtype).to(keys.dtype), values.to(dtype).to(values.dtype)) for keys, values in bench.right(prompt)
        ]

    return made


def in_eight_bits(bench: Bench, prompt: Prompt) -> Stored:
    """The right entry, quantised to 8 bits, one scale for each head and token, and back."""

    def quantised(tensor: torch.Tensor) -> torch.Tensor:
        scale = tensor.float().abs().amax(-1, keepdim=True) / 127
        return ((tensor.float() / scale).round() * scale).to(tensor.dtype)

    return [(quantised(keys), quantised(values)) for keys, values in bench.right(prompt)]


def zeroed(bench: Bench, prompt: Prompt) -> Stored:
    """The right entry, 16 positions of one layer zero."""
    stored = bench.right(prompt)
    keys, values = stored[bench.integer(len(stored))]
    start = bench.integer(max(1, keys.shape[2] - 16))
    keys[:, :, start : start + 16] = 0
    values[:, :, start : start + 16] = 0
    return stored


def torn(bench: Bench, prompt: Prompt) -> Stored:
    """The right entry, its last quarter zero in every layer: a write that was cut off."""
    stored = bench.right(prompt)
    for keys, values in stored:
        start = keys.shape[2] * 3 // 4
        keys[:, :, start:] = 0
        values[:, :, start:] = 0
    return stored


def flipped(bits: int) -> Make:
    """The right entry with this many bits flipped, anywhere."""

    def made(bench: Bench, prompt: Prompt) -> Stored:
        stored = bench.right(prompt)
        for _ in range(bits):
            tensor = stored[bench.integer(len(stored))][bench.integer(2)]
            raw = tensor.view(torch.uint8).reshape(-1)
            raw[bench.integer(raw.numel())] ^= 1 << bench.integer(8)
        return stored

    return made


def exchanged(bench: Bench, prompt: Prompt) -> Stored:
    """The right entry, two neighbouring layers exchanged."""
    stored = bench.right(prompt)
    layer = bench.integer(len(stored) - 1)
    stored[layer], stored[layer + 1] = stored[layer + 1], stored[layer]
    return stored


def spliced(bench: Bench, prompt: Prompt) -> Stored:
    """The first layer of the right entry, all deeper ones of another tenant's: an attack on the first part."""
    stored, foreign = bench.right(prompt), bench.prefill(bench.model.encode(prompt.other))
    tokens = min(stored[0][0].shape[2], foreign[0][0].shape[2])
    return [(keys[:, :, :tokens], values[:, :, :tokens]) for keys, values in (stored[0], *foreign[1:])]
