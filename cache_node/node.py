"""`CacheNode`: answers questions with a real model, and keeps the KV of prompt prefixes in an `EntryStore`.

It does what applications do: choose a key for the prefix, look it up, continue from whatever is found. A wrong key
therefore gives a wrong answer, fluently. What it adds is the requester's identity, computed from content, on each
event.
"""

import logging
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..producers.canary import CanaryResult
from ..producers.publisher import LifecyclePublisher
from ..schemas.errors import InvalidField
from ..schemas.events import LONGEST_TEXT, LookupCount
from ..schemas.identity import PrefixKey
from . import kv
from .entry_events import TIER
from .entry_store import EntryStore, StoredEntry
from .errors import CacheNodeError
from .keys import KeyFunction, StoreKey, in_epoch
from .model import Chosen, LanguageModel
from .node_canary import TOKENS, NodeCanary
from .prefix import Prefix, turn
from .spot_checker import Restored, SpotChecker

if TYPE_CHECKING:
    from transformers import DynamicCache

log = logging.getLogger("kvtrail.cache_node")

ANSWER_TOKENS = 48


@dataclass(frozen=True, slots=True)
class Answer:
    """What one request got, and from where. `reused_tokens` came from the store, `computed_tokens` did not;
    `prefix_tokens` is what the requester's own prefix would have been. `chosen`: the answer's tokens one by one."""

    request_id: str
    text: str
    key: StoreKey
    hit: bool
    reused_tokens: int
    computed_tokens: int
    prefix_tokens: int
    identity: PrefixKey
    seconds: float
    chosen: tuple[Chosen, ...] = ()
    canary: CanaryResult | None = None
    """What the answer's canary said, where the node has one; `text` is without it."""


class CacheNode:
    """One node: a model, a store, and the key function that the application chose."""

    def __init__(
        self,
        model: LanguageModel,
        store: EntryStore,
        publisher: LifecyclePublisher,
        key_function: KeyFunction,
        *,
        ttl_s: float | None = 300.0,
        canary: NodeCanary | None = None,
        spot_checker: SpotChecker | None = None,
    ) -> None:
        """`spot_checker` checks a share of the hits, each after its answer."""
        self.key_function = key_function
        self._model = model
        self._store = store
        self._publisher = publisher
        self._ttl_s = ttl_s
        self._canary = canary
        self._spot_checker = spot_checker
        self._lookups: Counter[tuple[str, str, bool]] = Counter()
        self._bypassed: Counter[tuple[str, str]] = Counter()

    @property
    def store(self) -> EntryStore:
        """Where its entries are."""
        return self._store

    def answer(
        self, prefix: Prefix, question: str, request_id: str, *, bypass: bool = False, limit: int = ANSWER_TOKENS
    ) -> Answer:
        """Answers `question` under `prefix` in at most `limit` tokens, reusing what the store has under the key.

        On a hit, the question continues from the restored tokens, whatever prefix they came from: the node knows
        no better than its key. With `bypass` the store is neither read nor written. Raises `InvalidField`, before
        the lookup, for a key or a request id that no event can hold.
        """
        started = time.perf_counter()
        model = self._model
        canary = self._canary
        if canary is not None:
            prefix, limit = canary.mark(prefix), limit + TOKENS
        token_ids = model.encode(prefix.text)
        identity = prefix.key(model, token_ids)
        key = in_epoch(self.key_function(identity), prefix.epoch)
        if max(len(key.text), len(request_id)) > LONGEST_TEXT:  # an answer from the store that no event could tell of
            raise InvalidField(
                f"is longer than {LONGEST_TEXT} characters.", field="key or request id", remedy="Use shorter names."
            )
        restored: StoredEntry | None = None
        if bypass:
            cache, reused = model.new_cache(), 0
            self._bypassed[identity.tenant_id, identity.template_id] += 1
        else:
            cache, restored = self._restored(key, identity, request_id)
            reused = 0 if restored is None else restored.header.tokens
            self._count(identity, hit=bool(reused))
        if not reused:
            cache = model.new_cache()
            model.prefill(cache, token_ids)
            if not bypass:
                self._save(key, identity, cache, len(token_ids), request_id)
        question_ids = model.encode(turn(question) + (canary.opening if canary is not None else ""))
        chosen: list[Chosen] = []
        text = model.decode(model.complete(cache, question_ids, limit, chosen))
        shown: CanaryResult | None = None
        if canary is not None:
            text, shown = canary.take(text, None if bypass else key, identity, request_id)
        if restored is not None and self._spot_checker is not None:
            self._spot_checker.offer(Restored(restored, token_ids, key, identity, request_id))
        return Answer(
            request_id=request_id,
            text=text,
            key=key,
            hit=reused > 0,
            reused_tokens=reused,
            computed_tokens=len(question_ids) + (0 if reused else len(token_ids)),
            prefix_tokens=len(token_ids),
            identity=identity,
            seconds=time.perf_counter() - started,
            chosen=tuple(chosen),
            canary=shown,
        )

    def report_lookups(self) -> None:
        """Publishes how many lookups hit and missed since the last report: a hit rate needs both."""
        counted, self._lookups = self._lookups, Counter()
        bypassed, self._bypassed = self._bypassed, Counter()
        sides = sorted({(tenant, template) for tenant, template, _ in counted} | set(bypassed))
        if sides:
            self._publisher.lookups(
                [
                    LookupCount(
                        tenant_id=tenant,
                        template_id=template,
                        model_id=self._model.name,
                        tier=TIER,
                        hit=counted[tenant, template, True],
                        miss=counted[tenant, template, False],
                        bypassed=bypassed[tenant, template],
                    )
                    for tenant, template in sides
                ],
                store=self._store.name,
                tier=TIER,
            )

    def _count(self, identity: PrefixKey, *, hit: bool) -> None:
        self._lookups[identity.tenant_id, identity.template_id, hit] += 1

    def _restored(
        self, key: StoreKey, identity: PrefixKey, request_id: str
    ) -> "tuple[DynamicCache, StoredEntry | None]":
        """A cache filled from the store and the entry it came from; an empty one and None for a miss."""
        cache = self._model.new_cache()
        entry = self._store.get(key.text, identity, key_origin=key.origin, request_id=request_id)
        if entry is None:
            return cache, None
        try:
            return kv.restore(entry.tensors, cache), entry
        except CacheNodeError as error:
            log.warning("an entry that was read could not be used: %s", error)
            return cache, None

    def _save(self, key: StoreKey, identity: PrefixKey, cache: "DynamicCache", tokens: int, request_id: str) -> None:
        try:
            tensors = kv.save(cache)
        except CacheNodeError as error:
            log.warning("a prefix is not cached: %s", error)
            return
        self._store.put(
            key.text,
            tensors,
            identity,
            tokens=tokens,
            ttl_s=self._ttl_s,
            key_origin=key.origin,
            computed_tokens=tokens,
            rederived_key=key.text if key.origin == "derived" else None,
            request_id=request_id,
        )
