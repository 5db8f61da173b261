"""Canaries in the node's own prompts: the marker goes to the front of the prefix, the answer's turn is begun with the
field, and what the model copies into it is checked, published and taken out.

A small model copies a marker well where its answer already begins with the field, and seldom when it is only asked to.
"""

import logging
from dataclasses import replace

from ..producers.calls import LifecycleCalls
from ..producers.canary import Canary, CanaryResult
from ..producers.canary_field import FieldPattern, FieldReader
from ..schemas.identity import PrefixKey
from .entry_events import TIER
from .keys import StoreKey
from .prefix import Prefix

TOKENS = 32
"""What the field takes of an answer, at most."""
log = logging.getLogger("kvtrail.cache_node")


class NodeCanary:
    """One node's canary. `failed` counts errors of ours; the answer is given as it is then."""

    def __init__(self, canary: Canary, publisher: LifecycleCalls, store: str) -> None:
        self.failed = 0
        self._canary, self._publisher, self._store = canary, publisher, store
        self._pattern = FieldPattern(canary.field)

    @property
    def opening(self) -> str:
        """How the answer's turn begins. It is no part of the prefix: the marker comes from there alone."""
        return self._canary.opening

    def mark(self, prefix: Prefix) -> Prefix:
        """The prefix with its tenant's marker at the front of what is cached. It is another template then: no two
        tenants have the same, so none can share it."""
        return replace(prefix, rendered=f"{self._canary.statement(prefix.tenant_id)}\n{prefix.rendered}")

    def take(
        self, text: str, key: StoreKey | None, identity: PrefixKey, request_id: str
    ) -> tuple[str, CanaryResult | None]:
        """The answer without its field, and what the field says of the entry under `key` (None: none was asked for)."""
        try:
            reader = FieldReader(self._pattern, self._canary.is_attempt, strip=True)
            begun = self.opening + text
            shown = reader.feed(begun) + reader.end()
            result = self._canary.check(identity.tenant_id, [*reader.found, begun])
            self._publisher.check(
                key.text if key is not None else "", check="canary", result=result.result, store=self._store,
                tier=TIER, expected=result.expected, observed=result.observed, detail=result.detail,
                identity=identity, request_id=request_id, key_origin=key.origin if key is not None else "derived",
            )  # fmt: skip
            return (shown if reader.found else text).strip(), result
        except Exception as error:
            self.failed += 1
            log.debug("an answer's canary could not be checked: %s", type(error).__name__)
            return text, None
