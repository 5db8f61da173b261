"""Keys and values computed again from tokens and weights, to be held against what a store gave back.

Two parts, since a position cannot be computed without those before it. The first layer's keys and values depend on
nothing but their own token and its position, so they are computed for every position, as a batch of one-token
sequences: they say whether the entry's tokens are these tokens. Deeper layers are computed for a few positions, each
on top of the entry's own earlier positions, all in one pass: an entry that belongs to these weights is consistent with
itself, layer by layer.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .errors import UnsupportedCache
from .kv import Pair

if TYPE_CHECKING:
    import torch

    from .model import LanguageModel


@dataclass(frozen=True, slots=True)
class Errors:
    """How far stored keys and values are from the recomputed: the norm of the difference over the recomputed norm.

    `first`: of the first layer, keys then values, one number for each position both cover. `deep`: of the other layers,
    keys then values, the worst of the sampled positions for each layer. A number that is none (NaN) is infinite here.
    """

    first: tuple[tuple[float, ...], tuple[float, ...]]
    deep: tuple[tuple[float, ...], tuple[float, ...]]


def measure(
    model: "LanguageModel", stored: Sequence[Pair], token_ids: Sequence[int], positions: Sequence[int]
) -> Errors:
    """The errors of `stored` (keys and values of each layer, as `kv.pairs` gives them) against `token_ids`.

    `positions` lie in both. Raises `UnsupportedCache` where the shapes are not this model's.
    """
    import torch

    config = model.network.config
    shape = tuple(stored[0][0].shape) if stored else ()
    fixed = (1, config.num_key_value_heads, config.head_dim)
    alike = all(tensor.shape == shape for pair in stored for tensor in pair)
    if len(stored) != config.num_hidden_layers or not alike or len(shape) != 4 or (*shape[:2], shape[3]) != fixed:
        raise UnsupportedCache("does not have this model's shape.", field="tensors")
    both = min(shape[2], len(token_ids))
    with torch.inference_mode():
        keys, values = _first_layer(model, token_ids[:both])
        first = [
            _listed(_error(was[0, :, :both].transpose(0, 1), now))
            for was, now in zip(stored[0], (keys, values), strict=True)
        ]
        deep: tuple[list[float], list[float]] = ([], [])
        for was, now in zip(stored[1:], _at(model, stored, token_ids, positions)[1:], strict=True):
            for side in (0, 1):
                was_there = was[side][0, :, list(positions)].transpose(0, 1)
                deep[side].append(max(_listed(_error(was_there, now[side][0].transpose(0, 1))), default=0.0))
    return Errors((first[0], first[1]), (tuple(deep[0]), tuple(deep[1])))


def _first_layer(model: "LanguageModel", token_ids: Sequence[int]) -> Pair:
    """Keys and values of the first layer: tokens, heads, dim."""
    import torch

    body = getattr(model.network, "model", None)
    if body is None or not all(hasattr(body, name) for name in ("embed_tokens", "layers", "rotary_emb")):
        raise UnsupportedCache("of this architecture, the first layer is not known.", field="model")
    layer, cache = body.layers[0], model.new_cache()
    hidden = body.embed_tokens(torch.tensor(token_ids).unsqueeze(1))
    positions = torch.arange(len(token_ids)).unsqueeze(1)
    layer.self_attn(
        hidden_states=layer.input_layernorm(hidden),
        position_embeddings=body.rotary_emb(hidden, positions),
        attention_mask=None,
        past_key_values=cache,
    )
    keys, values = _filled(cache.layers[0])
    return keys[:, :, 0], values[:, :, 0]


def _at(
    model: "LanguageModel", stored: Sequence[Pair], token_ids: Sequence[int], positions: Sequence[int]
) -> list[Pair]:
    """Keys and values of every layer at some positions, each seen as the next token after the stored ones before it."""
    import torch

    network, cache = model.network, model.new_cache()
    for index, (keys, values) in enumerate(stored):
        cache.update(keys.to(network.dtype), values.to(network.dtype), index)
    before, count = stored[0][0].shape[2], len(positions)
    sees = torch.zeros(1, 1, count, before + count, dtype=torch.bool)
    for row, position in enumerate(positions):
        sees[0, 0, row, :position] = True
        sees[0, 0, row, before + row] = True
    network.model(
        input_ids=torch.tensor([[token_ids[position] for position in positions]]),
        attention_mask=sees,
        position_ids=torch.tensor([list(positions)]),
        past_key_values=cache,
        use_cache=True,
    )
    return [(keys[:, :, before:], values[:, :, before:]) for keys, values in map(_filled, cache.layers)]


def _filled(layer: object) -> Pair:
    from transformers.cache_utils import DynamicLayer

    if not isinstance(layer, DynamicLayer) or layer.keys is None or layer.values is None:
        raise UnsupportedCache("is not a layer of plain keys and values.", field="layers")
    return layer.keys, layer.values


def _error(stored: "torch.Tensor", computed: "torch.Tensor") -> "torch.Tensor":
    """Of positions, heads, dim: one number for each position."""
    import torch

    was, now = stored.double().flatten(1), computed.double().flatten(1)
    errors: torch.Tensor = torch.linalg.vector_norm(was - now, dim=1) / torch.linalg.vector_norm(now, dim=1)
    return errors


def _listed(errors: "torch.Tensor") -> tuple[float, ...]:
    return tuple(math.inf if math.isnan(error) else error for error in errors.tolist())
