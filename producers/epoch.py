"""The epoch marker: a short line at position zero of every prompt, which makes old entries unreachable.

A prefix cache finds an entry by the tokens before it, so another first line is another prefix: after a bump no engine
can hit anything that was computed before it, whatever its key function forgets. The marker is stable text, so inside
one epoch the cache works as ever.
"""

import re
from dataclasses import dataclass
from typing import Self

from ..schemas.epochs import COMBINED, LONGEST
from ..schemas.errors import InvalidField

_EPOCH = re.compile(COMBINED)
_MARKER = re.compile(rf"\[epoch:({COMBINED})\]\n")


@dataclass(frozen=True, slots=True)
class EpochMarker:
    """The marker of one epoch, `[epoch:2026-11-29.1]` and a line feed, or of the epochs of several scopes,
    `[epoch:2026-11-29.1+tenant_id:2]`, as `schemas.epochs.combined` joins them.

    An epoch is up to 64 letters, digits, dots, dashes and underscores, beginning with a letter or digit: nothing in
    it can close the bracket or be taken for the prompt. Raises `InvalidField`.
    """

    epoch: str

    def __post_init__(self) -> None:
        if len(self.epoch) > LONGEST or not _EPOCH.fullmatch(self.epoch):
            raise InvalidField(
                "is no epoch.", field="epoch", remedy="Use up to 64 letters, digits, dots, dashes and underscores."
            )

    def prefix(self) -> str:
        """The text that goes before everything else in the prompt, the engine's own template included."""
        return f"[epoch:{self.epoch}]\n"

    def mark(self, prompt: str) -> str:
        """The prompt with this marker at its front, in the place of another epoch's marker where it has one."""
        return self.prefix() + _MARKER.sub("", prompt, count=1) if _MARKER.match(prompt) else self.prefix() + prompt

    @classmethod
    def of(cls, prompt: str) -> Self | None:
        """The marker at the very front of a prompt; None where there is none. Further in it means nothing."""
        found = _MARKER.match(prompt)
        return cls(found.group(1)) if found and len(found.group(1)) <= LONGEST else None
