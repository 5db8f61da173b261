"""`SpotChecker`: checks some of a node's hits behind the requests, and publishes what it found."""

import logging
import queue
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..producers.publisher import LifecyclePublisher
from ..schemas.identity import PrefixKey
from . import kv
from .entry_events import TIER
from .entry_store import StoredEntry
from .errors import CacheNodeError
from .keys import StoreKey
from .recomputing import measure
from .spot_check import Conclusion, SpotCheckSettings, chosen, conclude, positions_of, wrong_length

if TYPE_CHECKING:
    from .model import LanguageModel

log = logging.getLogger("kvtrail.cache_node")


@dataclass(frozen=True, slots=True)
class Restored:
    """One hit: what came from the store, and the requester's own tokens, for whom it stood."""

    entry: StoredEntry
    token_ids: Sequence[int]
    key: StoreKey
    identity: PrefixKey
    request_id: str


class SpotChecker:
    """Checks hits in a thread of its own. Offering one costs a request a hash; a check that finds no room among those
    waiting is left out and counted."""

    def __init__(
        self,
        model: "LanguageModel",
        publisher: LifecyclePublisher,
        store: str,
        settings: SpotCheckSettings | None = None,
    ) -> None:
        self.settings = settings or SpotCheckSettings()
        self._model, self._publisher, self._store = model, publisher, store
        self._waiting: queue.Queue[Restored | None] = queue.Queue(self.settings.waiting)
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._offered = 0

    def offer(self, hit: Restored) -> bool:
        """Check this hit later, if it is one of those to check. Whether it will be. Never raises or waits."""
        self._offered += 1
        if not chosen(hit.request_id or f"hit {self._offered}", self.settings.share):
            return False
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="kvtrail-spot-check", daemon=True)
                self._thread.start()
        try:
            self._waiting.put_nowait(hit)
        except queue.Full:
            self._counts["left_out"] += 1
            return False
        return True

    def settle(self) -> None:
        """Wait until everything offered has been checked and published."""
        self._waiting.join()

    def close(self) -> None:
        """Finish what waits, and stop."""
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join()
            self._thread = None

    def stats(self) -> dict[str, int]:
        """How many checks passed, failed, came to no result (`inconclusive`), or were left out."""
        return dict(self._counts)

    def check(self, hit: Restored) -> Conclusion:
        """Check one hit now, and publish the result."""
        try:
            found = self._concluded(hit)
        except CacheNodeError as error:
            found = Conclusion("inconclusive", detail=str(error))
        except Exception as error:
            log.exception("a spot check failed to run")
            found = Conclusion("inconclusive", detail=f"failed to run ({type(error).__name__})")
        self._counts[found.result] += 1
        self._publisher.check(
            hit.key.text,
            check="spot_check",
            result=found.result,
            expected=found.expected,
            observed=found.observed,
            detail=found.detail,
            reused_tokens=hit.entry.header.tokens,
            first_divergence=found.first_divergence,
            store=self._store,
            tier=TIER,
            key_origin=hit.key.origin,
            identity=hit.identity,
            request_id=hit.request_id,
        )
        return found

    def _concluded(self, hit: Restored) -> Conclusion:
        stored = kv.pairs(hit.entry.tensors)
        computes = str(self._model.network.dtype).removeprefix("torch.")
        formats = sorted({tensor.dtype for tensor in hit.entry.tensors})
        if formats != [computes]:
            return Conclusion("fail", ", ".join(formats), computes, "the entry is of another dtype")
        tolerance = self.settings.tolerances.get(computes)
        if tolerance is None:
            return Conclusion("inconclusive", detail=f"no tolerance is known for {computes}")
        tokens = stored[0][0].shape[2]
        both = min(tokens, len(hit.token_ids))
        if not both:
            return Conclusion("inconclusive", detail="nothing to compare")
        positions = positions_of(hit.request_id, both, self.settings.positions)
        found = conclude(measure(self._model, stored, hit.token_ids, positions), positions, tolerance)
        if found.result == "pass" and tokens != len(hit.token_ids):
            return wrong_length(tokens, len(hit.token_ids))
        return found

    def _run(self) -> None:
        while True:
            hit = self._waiting.get()
            try:
                if hit is None:
                    return
                self.check(hit)
            finally:
                self._waiting.task_done()
