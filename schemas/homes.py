"""Homes: what orders an entry's events, and the partition they land in.

A node's own tiers have one home; a shared store has a few slots. The record key is the home and the partitioner is
Kafka's murmur2, so that producers in any language agree.
"""

import hashlib

DEFAULT_SLOTS = 8


def node_home(owner: str) -> str:
    """The home of a node's own tiers; a hit on another node's place goes to its owner's."""
    return f"n:{owner}"


def shared_home(store: str, key: str, slots: int = DEFAULT_SLOTS) -> str:
    """The home of an entry in a shared store: first byte of SHA-256 of the store key, modulo slots."""
    return f"s:{store}:{hashlib.sha256(key.encode()).digest()[0] % slots}"


def shared_homes(store: str, slots: int = DEFAULT_SLOTS) -> tuple[str, ...]:
    """Every home of a shared store: where an invalidation that covers the store is sent."""
    return tuple(f"s:{store}:{slot}" for slot in range(slots))


def murmur2(data: bytes) -> int:
    """Kafka's 32-bit murmur2 hash (org.apache.kafka.common.utils.Utils.murmur2), as an unsigned integer."""
    length = len(data)
    h = 0x9747B28C ^ length
    mask = 0xFFFFFFFF
    for start in range(0, length & ~3, 4):
        k = int.from_bytes(data[start : start + 4], "little")
        k = (k * 0x5BD1E995) & mask
        k ^= k >> 24
        k = (k * 0x5BD1E995) & mask
        h = ((h * 0x5BD1E995) & mask) ^ k
    tail = data[length & ~3 :]
    if tail:
        h ^= int.from_bytes(tail, "little")
        h = (h * 0x5BD1E995) & mask
    h ^= h >> 13
    h = (h * 0x5BD1E995) & mask
    return h ^ (h >> 15)


def partition_of(home: str, partitions: int) -> int:
    """The partition a home's events land in, as Kafka's default partitioner chooses it."""
    return (murmur2(home.encode()) & 0x7FFFFFFF) % partitions
