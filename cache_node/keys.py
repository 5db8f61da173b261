"""Key functions: under which key an application files the KV of a prefix.

Each is given the prefix's identity and chooses what of it to use. Whatever it leaves out, two prefixes may differ in
and still share a key; the audit trail shows when they did.
"""

from collections.abc import Callable
from typing import NamedTuple

from ..schemas.events import KeyOrigin
from ..schemas.identity import PrefixKey


class StoreKey(NamedTuple):
    """The key, and who vouches for it: `derived` from the content, or `asserted` by the application."""

    text: str
    origin: KeyOrigin


KeyFunction = Callable[[PrefixKey], StoreKey]


def name_and_model(prefix: PrefixKey) -> StoreKey:
    """The template's name and the model's: what many applications use, and what makes tenants share an entry."""
    return StoreKey(f"{prefix.template_id}:{prefix.model_id}", "asserted")


def prefix_key(prefix: PrefixKey) -> StoreKey:
    """The fingerprint of the whole identity: no dimension can be left out."""
    return StoreKey(prefix.fingerprint(), "derived")


def in_epoch(key: StoreKey, epoch: str) -> StoreKey:
    """The key inside an epoch. A derived key changes with the epoch by itself, since the marker is part of the
    tokens; an asserted one is blind to it, so the node puts the epoch in front of whatever the application chose."""
    if key.origin == "derived" or not epoch:
        return key
    return StoreKey(f"{epoch}/{key.text}", key.origin)
