"""KV tensors between a model's cache and a store: per layer, bit for bit, dtype kept."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from .entry_file import Tensor
from .errors import CorruptEntry, UnsupportedCache

if TYPE_CHECKING:
    import torch
    from transformers import DynamicCache

Pair = tuple["torch.Tensor", "torch.Tensor"]
"""Keys and values of one layer: batch, heads, tokens, dim."""
LAYOUT = "layers of keys, values; each batch, heads, tokens, dim"


def save(cache: "DynamicCache") -> list[Tensor]:
    """The cache's tensors, layer by layer, keys before values. Their memory is the cache's own where it is contiguous.

    Raises `UnsupportedCache` for a layer that holds anything but plain keys and values (a sliding window, a
    recurrent state): its restored form would not be what the model left.
    """
    from transformers.cache_utils import DynamicLayer

    tensors: list[Tensor] = []
    for index, layer in enumerate(cache.layers):
        if type(layer) is not DynamicLayer or not layer.is_initialized:
            raise UnsupportedCache(
                "is not a layer of plain keys and values.", field=f"layers.{index}", remedy="Do not cache this model."
            )
        for name, values in (("keys", layer.keys), ("values", layer.values)):
            assert values is not None
            tensors.append(_to_bytes(f"layer.{index:03}.{name}", values))
    return tensors


def restore(tensors: Sequence[Tensor], into: "DynamicCache") -> "DynamicCache":
    """Fills an empty cache. The stored memory is read, not kept.

    Raises `CorruptEntry` where the tensors are not one pair for each of the cache's layers.
    """
    expected = [f"layer.{index:03}.{name}" for index in range(len(into.layers)) for name in ("keys", "values")]
    if [tensor.name for tensor in tensors] != expected:
        raise CorruptEntry("does not hold this model's layers.", field="tensors", remedy="Compute the prefix again.")
    for index, (keys, values) in enumerate(pairs(tensors)):
        into.update(keys, values, index)
    return into


def pairs(tensors: Sequence[Tensor]) -> list[Pair]:
    """Keys and values layer by layer, as views of the stored memory. Raises `CorruptEntry` for an unknown dtype."""
    return list(zip(_to_torch(tensors[0::2]), _to_torch(tensors[1::2]), strict=True))


def _to_bytes(name: str, tensor: "torch.Tensor") -> Tensor:
    import torch

    flat = tensor.detach().contiguous().view(torch.uint8).reshape(-1)
    return Tensor(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), flat.numpy().data)


def _to_torch(tensors: Iterable[Tensor]) -> "Iterable[torch.Tensor]":
    import torch

    for tensor in tensors:
        dtype = getattr(torch, tensor.dtype, None)
        if not isinstance(dtype, torch.dtype):
            raise CorruptEntry("has a dtype that is not known here.", field=tensor.name)
        yield torch.frombuffer(tensor.data, dtype=dtype).reshape(tensor.shape)
