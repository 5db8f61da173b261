"""A pending range against what is stored of it: is it still the same? Pure.

A token makes an insert that is sent again harmless only where its rows are the same rows: others under a used token are
dropped without a word. So before a range goes again it is compared with the ledger, insert by insert: the records'
bytes, and how many events came of them.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Literal

from ..schemas.errors import BrokerError
from ..store.results import LedgerRow
from .intake import Item

Verdict = Literal["same", "decoded otherwise", "other records"]


def compare(items: Sequence[Item], stored: Iterable[LedgerRow]) -> Verdict:
    """What the range's records are, beside every insert that the ledger has of it; where it has none, the same."""
    verdict: Verdict = "same"
    for row in stored:
        own = [item for item in items if row.first_offset <= item.record.offset <= row.last_offset]
        if len(own) != row.records or _folded(own) != int(row.hash_xor or "0", 16):
            return "other records"
        counts = sum(_kept(item) for item in own), sum(len(item.batch.rejects) for item in own if item.batch)
        if counts != (row.events, row.rejects):
            verdict = "decoded otherwise"
    return verdict


def _folded(items: Iterable[Item]) -> int:
    """As the ledger folds: SHA-256 read as a little-endian number, by XOR, and written with its last byte first."""
    folded = 0
    for item in items:
        folded ^= int.from_bytes(hashlib.sha256(item.record.value).digest(), "little")
    return folded


def _kept(item: Item) -> int:
    return sum(event.seq not in item.drop for event in item.batch.events) if item.batch else 0


def other_log(where: str, first: int, last: int) -> BrokerError:
    """The log holds other records than those that were stored under the same offsets."""
    return BrokerError(
        f"offsets {first}-{last} hold other records than those that are stored under them.",
        field=where,
        remedy="The topic was made anew, or another cluster is used. Give its data a database of its own, or restore "
        "the topic; inserted under used tokens, the new records would be dropped in silence.",
    )
