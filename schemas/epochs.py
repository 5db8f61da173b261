"""Epochs of scopes: how the epochs of several scopes stand in one identity, and which epoch lies before which.

An epoch is bumped for a scope: the fleet, or whatever agrees with some dimensions (`tenant_id=contoso`). A prefix is
in the current epoch of every scope that covers it, and names them all, the widest first: `7+tenant_id:2` is epoch 7 of
the fleet and epoch 2 of its tenant. So a bump of any scope changes the text at the front of all that it covers, and of
nothing else, and no two scopes can be taken for each other.
"""

import re
from collections.abc import Iterable, Mapping

from .errors import InvalidField

CORPUS_ID = "corpus_id"
"""What a scope may name beside dimensions: a corpus by its id, whatever revision of it, as corpus facts tell."""
LONGEST = 512
_EPOCH = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
_LABEL = r"[a-z0-9_]+(?:\.[a-z0-9_]+)*"
_epoch = re.compile(_EPOCH)
_part = re.compile(rf"(?:({_LABEL}):)?({_EPOCH})")
COMBINED = rf"(?:{_LABEL}:)?{_EPOCH}(?:\+{_LABEL}:{_EPOCH})*"
"""The pattern of one epoch or of several joined."""


def require_epoch(epoch: str) -> str:
    """`epoch` itself, if it can be bumped to: up to 64 letters, digits, dots, dashes and underscores, beginning with a
    letter or digit. Raises `InvalidField`."""
    if not _epoch.fullmatch(epoch):
        raise InvalidField(
            "is no epoch.", field="epoch", remedy="Use up to 64 letters, digits, dots, dashes and underscores."
        )
    return epoch


def label_of(names: Iterable[str]) -> str:
    """How a scope is written in front of its epoch: the dimensions that it names, in order; nothing for the fleet."""
    return ".".join(sorted(names))


def combined(epochs: Mapping[str, str]) -> str:
    """The epochs of several scopes, by label, as one: the fleet's first, then those with fewer dimensions."""
    ordered = sorted(epochs, key=lambda label: (label.count(".") + bool(label), label))
    return "+".join(f"{label}:{epochs[label]}" if label else epochs[label] for label in ordered)


def parts_of(epoch: str) -> dict[str, str]:
    """The epochs of each scope in `epoch`, by label. What was not made by `combined` is one epoch of the fleet."""
    parts: dict[str, str] = {}
    for text in epoch.split("+"):
        found = _part.fullmatch(text)
        label = (found.group(1) or "") if found else ""
        if found is None or label in parts or (not label and parts):
            return {"": epoch} if epoch else {}
        parts[label] = found.group(2)
    return parts


def epoch_in(epoch: str, names: Iterable[str]) -> str:
    """Of what carries `epoch`, the epoch of the scope that names these dimensions; all of it where it says nothing of
    the scope, since an assembler that knows no scopes puts the one there that it was told."""
    return parts_of(epoch).get(label_of(names), epoch)


def earlier(epoch: str, bumped: str, names: Iterable[str] = ()) -> bool:
    """Whether what carries `epoch` was made before the scope that names these dimensions was bumped to `bumped`.

    Of two numbers the smaller is earlier; of anything else, whatever is not the same. An epoch that says nothing of
    the scope was made before the scope had one, unless it is, whole, the one that was bumped to.
    """
    names = tuple(names)
    known = epoch_in(epoch, names)
    if known.isdecimal() and bumped.isdecimal() and label_of(names) in parts_of(epoch):
        return int(known) < int(bumped)
    return known != bumped
