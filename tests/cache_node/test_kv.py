"""KV tensors through the store and back, on the real model: bit for bit, and the same continuation."""

from pathlib import Path

import pytest
import torch
from kvtrail.cache_node import kv
from kvtrail.cache_node.entry_file import Tensor
from kvtrail.cache_node.errors import CorruptEntry, UnsupportedCache
from kvtrail.cache_node.model import LanguageModel
from kvtrail.cache_node.prefix import Prefix, turn
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from .rig import Rig, identity

pytestmark = [pytest.mark.model, pytest.mark.timeout(400)]
PREFIX = Prefix("northwind", "support_v7", "You are a support assistant. Returns are accepted within 90 days.")


def pairs(cache: DynamicCache) -> list[tuple[torch.Tensor, torch.Tensor]]:
    found = []
    for layer in cache.layers:
        assert isinstance(layer, DynamicLayer)
        assert layer.keys is not None
        assert layer.values is not None
        found.append((layer.keys, layer.values))
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_tensors_come_back_bit_for_bit(language_model: LanguageModel, tmp_path: Path, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(7)
    cache = language_model.new_cache()
    for layer in range(language_model.layers):
        # Every bit pattern is kept, NaNs with payloads included.
        bits = torch.randint(0, 256, (2, 1, 3, 5, 64 * dtype.itemsize), dtype=torch.uint8, generator=generator)
        cache.update(bits[0].view(dtype), bits[1].view(dtype), layer)
    rig = Rig(tmp_path)
    with rig.open() as store:
        assert store.put("k", kv.save(cache), identity(), tokens=5)
        entry = store.get("k", identity())
        assert entry is not None
        restored = kv.restore(entry.tensors, language_model.new_cache())
    for (keys, values), (other_keys, other_values) in zip(pairs(cache), pairs(restored), strict=True):
        for saved, found in ((keys, other_keys), (values, other_values)):
            assert found.dtype == dtype
            assert torch.equal(saved.view(torch.uint8), found.view(torch.uint8))


def test_a_restored_prefix_continues_as_a_computed_one(language_model: LanguageModel, tmp_path: Path) -> None:
    model = language_model
    prefix, question = model.encode(PREFIX.text), model.encode(turn("How many days do I have?"))
    computed = model.new_cache()
    model.prefill(computed, prefix)
    rig = Rig(tmp_path)
    with rig.open() as store:
        store.put("k", kv.save(computed), identity(), tokens=len(prefix))
        expected = model.complete(computed, question)
        entry = store.get("k", identity())
        assert entry is not None
        restored = kv.restore(entry.tensors, model.new_cache())
    assert restored.get_seq_length() == len(prefix)
    assert model.complete(restored, question) == expected
    # And both say what the model says without any cache in between.
    whole = model.complete(model.new_cache(), prefix + question)
    assert whole == expected
    assert "90 days" in model.decode(whole)


def test_an_entry_of_another_shape_is_refused(language_model: LanguageModel) -> None:
    cache = language_model.new_cache()
    with pytest.raises(CorruptEntry, match="tensors"):
        kv.restore([Tensor("layer.000.keys", "float32", (1, 3, 1, 64), bytearray(768))], cache)


def test_an_unknown_dtype_is_refused(language_model: LanguageModel) -> None:
    tensors = [
        Tensor(f"layer.{layer:03}.{name}", "float3", (1,), bytearray(4))
        for layer in range(language_model.layers)
        for name in ("keys", "values")
    ]
    with pytest.raises(CorruptEntry, match="dtype"):
        kv.restore(tensors, language_model.new_cache())


def test_a_cache_that_was_never_filled_is_not_saved(language_model: LanguageModel) -> None:
    with pytest.raises(UnsupportedCache, match=r"layers\.0"):
        kv.save(language_model.new_cache())


def test_the_identity_is_computed_from_content(language_model: LanguageModel) -> None:
    model = language_model
    tokens = model.encode(PREFIX.text)
    key = PREFIX.key(model, tokens)
    assert key.kv_dtype == "float32"
    assert key.model_id == "SmolLM2-135M-Instruct"
    assert len(key.weights_digest) == 64
    assert model.decode(tokens).endswith("within 90 days.")
    assert PREFIX.key(model, model.encode(PREFIX.text)).fingerprint() == key.fingerprint()
