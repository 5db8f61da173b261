"""Errors of this room. None of them reaches a request: the node computes what it cannot restore."""

from ..schemas.errors import KvtrailError


class CacheNodeError(KvtrailError):
    """The entry store or the model cannot do what was asked."""

    code = "cache_node"


class CorruptEntry(CacheNodeError):
    """A file that is not, or no longer, the entry it should be: torn, changed, foreign. It is never served."""

    code = "corrupt_entry"


class EntryNotStored(CacheNodeError):
    """An entry could not be published (full disk, failing device, larger than the store). Nothing is left behind."""

    code = "entry_not_stored"


class StoreInUse(CacheNodeError):
    """Another process holds the store's directory."""

    code = "store_in_use"


class UnsupportedCache(CacheNodeError):
    """A model cache that is not plain keys and values per layer."""

    code = "unsupported_cache"


class ModelMissing(CacheNodeError):
    """The model's weights are not on this machine."""

    code = "model_missing"
