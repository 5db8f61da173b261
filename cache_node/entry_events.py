"""The store's side of the audit trail: each effect as its event, with the store's name and tier on it."""

from collections.abc import Mapping
from typing import Literal

from ..producers.publisher import LifecyclePublisher
from ..schemas.events import KeyOrigin, Tier
from ..schemas.identity import Identity
from .entry_file import SealedHeader
from .entry_index import Slot

TIER: Tier = "nvme"


class EntryEvents:
    """Publishes for one store. The caller holds the store's lock, so that events leave in the order of effects."""

    def __init__(self, publisher: LifecyclePublisher, store: str) -> None:
        self._publisher = publisher
        self._store = store

    def started(self, *, survived: bool) -> None:
        """The process started; whether what the last one stored can still be there."""
        self._publisher.node_start((TIER,) if survived else ())

    def created(
        self,
        sealed: SealedHeader,
        identity: Identity,
        *,
        computed_tokens: int | None,
        rederived_key: str | None,
        request_id: str,
    ) -> None:
        """The entry can be served from now on."""
        header = sealed.header
        self._publisher.create(
            header.key,
            identity,
            store=self._store,
            tier=TIER,
            key_origin=header.key_origin,
            tokens=header.tokens,
            computed_tokens=computed_tokens,
            bytes=sealed.file_bytes,
            payload_digest=header.payload_digest,
            rederived_key=rederived_key,
            ttl_s=header.ttl_s,
            request_id=request_id,
        )

    def hit(
        self,
        sealed: SealedHeader,
        requester: Identity,
        *,
        verified: bool,
        age_s: float,
        key_origin: KeyOrigin,
        request_id: str,
    ) -> None:
        """The entry was read and goes to `requester`. What was read is known only where it was hashed."""
        header = sealed.header
        self._publisher.hit(
            header.key,
            requester,
            store=self._store,
            tier=TIER,
            key_origin=key_origin,
            reused_tokens=header.tokens,
            tokens_read=header.tokens,
            bytes_read=sealed.file_bytes,
            payload_digest=header.payload_digest if verified else None,
            age_s=age_s,
            request_id=request_id,
        )

    def ended(self, slot: Slot, reason: Literal["ttl", "capacity", "failed"]) -> None:
        """The store ended the entry by itself."""
        self._publisher.expire(slot.key, reason, store=self._store, tier=TIER, key_origin=slot.key_origin)

    def invalidated(self, slot: Slot, *, gone: bool, cause: str, op_id: str, request_id: str) -> None:
        """Somebody ended one entry; `gone` false: its file is still there, and the next start would find it."""
        self._publisher.invalidate(
            slot.key,
            scope="entry",
            cause=cause,
            op_id=op_id,
            outcome="done" if gone else "partial",
            store=self._store,
            tier=TIER,
            key_origin=slot.key_origin,
            request_id=request_id,
        )

    def invalidated_where(self, where: Mapping[str, str], *, gone: bool, cause: str, op_id: str) -> None:
        """Somebody ended every entry here that agrees with `where`."""
        self._publisher.invalidate(
            "",
            scope="node",
            where=dict(where),
            cause=cause,
            op_id=op_id,
            outcome="done" if gone else "partial",
            store=self._store,
            tier=TIER,
        )
