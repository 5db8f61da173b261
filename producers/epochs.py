"""Which epoch each scope is in, for whoever assembles prompts: from configuration, or from the facts as they come.

    epochs = epoch_source(load_config())
    text = epochs.mark(prompt, tenant_id="contoso", template_id="support_v7")
    identity_epoch = epochs.of(tenant_id="contoso", template_id="support_v7")

Several scopes combine (`schemas.epochs`): the prefix names the epoch of each scope that covers it.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, Self

from ..schemas.config import Config, EpochConfig
from ..schemas.digests import require_digest
from ..schemas.epochs import CORPUS_ID, LONGEST, combined, label_of, require_epoch
from ..schemas.errors import ConfigError, InvalidField
from ..schemas.facts import EpochFact, Fact
from ..schemas.identity import DIMENSIONS
from .epoch import EpochMarker

Scope = tuple[tuple[str, str], ...]
"""Dimensions and their values, in order; none: the fleet."""


@dataclass(frozen=True, slots=True)
class Bump:
    """One bump of one scope. `fact_id`: the fact that told of it, empty for one from configuration."""

    scope: Scope
    epoch: str
    effective_at_us: int = 0
    why: str = ""
    fact_id: str = ""


class EpochSource(Protocol):
    """Where a prompt assembler learns of epochs. Neither call waits."""

    def of(self, **prefix: str | None) -> str:
        """The epoch of a prefix: `tenant_id`, `template_id`, `model_id`, `corpus_id` and whatever else is known of
        it. Empty where no scope that covers it has one."""

    def mark(self, prompt: str, **prefix: str | None) -> str:
        """The prompt with the marker of that epoch at its front; unchanged where there is none."""

    def close(self) -> None:
        """Stop following."""


class Epochs:
    """The current epoch of every scope, from bumps in any order. Safe for threads."""

    def __init__(self, bumps: tuple[Bump, ...] = (), *, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self._clock = clock_ns
        self._lock = threading.Lock()
        self._bumps: dict[Scope, tuple[Bump, ...]] = {}
        self._ids: set[str] = set()
        for bump in bumps:
            self._put(bump)

    @classmethod
    def from_config(cls, config: EpochConfig) -> Self:
        """The epochs of `epoch.value` and `epoch.scopes`. Raises `ConfigError` naming what is no epoch or scope."""
        bumps = [Bump((), config.value)] if config.value else []
        try:
            bumps += [Bump(scope_of(text), epoch) for text, epoch in config.scopes.items()]
            for bump in bumps:
                require_epoch(bump.epoch)
        except InvalidField as error:
            raise ConfigError(error.message, field=f"epoch.{error.field}", remedy=error.remedy) from None
        return cls(tuple(bumps))

    def take(self, fact: Fact) -> bool:
        """A fact, as the log has them. False for one that is no bump, that is known, or that no marker can carry."""
        body = fact.body
        if not isinstance(body, EpochFact) or fact.id in self._ids:
            return False
        try:
            require_epoch(body.epoch)
        except InvalidField:
            return False
        self._put(Bump(tuple(sorted(body.where.items())), body.epoch, fact.effective_at_us, body.why, fact.id))
        return True

    def of(self, **prefix: str | None) -> str:
        """The epoch of a prefix, now. What is not said of it (or None) may be anything, so a scope that names it
        covers the prefix: a cold prefill is cheaper than a stale hit."""
        now_us = self._clock() // 1000
        epochs: dict[str, str] = {}
        told: dict[str, int] = {}
        for scope, bumps in self._bumps.items():
            if not all(prefix.get(name) in (None, value) for name, value in scope):
                continue
            current = _current(bumps, now_us)
            label = label_of(name for name, _ in scope)
            # Two scopes of one label cover a prefix only where it does not say which of them it is.
            if current is not None and (label not in told or told[label] <= current.effective_at_us):
                epochs[label], told[label] = current.epoch, current.effective_at_us
        text = combined(epochs)
        # More scopes than a marker can name: none of them may be lost, so the prefix is in an epoch of its own.
        return text if len(text) <= LONGEST else combined({"": _digest_of(text)})

    def mark(self, prompt: str, **prefix: str | None) -> str:
        """The prompt with the marker of its epoch at its front; unchanged where it has none."""
        epoch = self.of(**prefix)
        return EpochMarker(epoch).mark(prompt) if epoch else prompt

    def current(self, at_us: int | None = None) -> list[Bump]:
        """The bump that holds in each scope, the widest scope first."""
        at_us = self._clock() // 1000 if at_us is None else at_us
        found = [bump for bumps in self._bumps.values() if (bump := _current(bumps, at_us)) is not None]
        return sorted(found, key=lambda bump: (len(bump.scope), bump.scope))

    def history(self, scope: Scope) -> tuple[Bump, ...]:
        """Every bump of a scope, in the order in which they take effect."""
        return self._bumps.get(scope, ())

    def close(self) -> None:
        """Nothing to stop."""

    def after_fork(self) -> None:
        """In a forked child: what is known stays, whatever the parent was doing."""
        self._lock = threading.Lock()

    def _put(self, bump: Bump) -> None:
        with self._lock:
            # Bumps of one time are in the order in which they came.
            later = sorted((*self._bumps.get(bump.scope, ()), bump), key=lambda one: one.effective_at_us)
            self._bumps = {**self._bumps, bump.scope: tuple(later)}
            self._ids.add(bump.fact_id)


def scope_of(text: str) -> Scope:
    """A scope from `tenant_id=contoso,template_id=support_v7`; the fleet from nothing. Raises `InvalidField`."""
    pairs: dict[str, str] = {}
    for word in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = word.partition("=")
        if not equals or not value or (name not in DIMENSIONS and name != CORPUS_ID):
            raise InvalidField(
                "is no scope.", field="scopes",
                remedy="Write DIMENSION=VALUE, as tenant_id=contoso; several apart by commas. corpus_id goes too.",
            )  # fmt: skip
        if name in DIMENSIONS and DIMENSIONS[name].form == "digest":
            require_digest(value, f"scopes.{name}")
        pairs[name] = value
    return tuple(sorted(pairs.items()))


def epoch_source(config: Config, *, timeout_s: float = 10.0) -> EpochSource:
    """What `epoch.follow` says: the configured epochs, or a follower of the fact stream that has read all of it.

    Raises `ConfigError`, and `BrokerError` where the facts cannot be read in time: an assembler that does not know
    the epoch must not assemble.
    """
    epochs = Epochs.from_config(config.epoch)
    if not config.epoch.follow:
        return epochs
    from .epoch_follower import EpochFollower

    return EpochFollower(config.kafka, epochs, timeout_s=timeout_s)


def _current(bumps: tuple[Bump, ...], at_us: int) -> Bump | None:
    return next((bump for bump in reversed(bumps) if bump.effective_at_us <= at_us), None)


def _digest_of(text: str) -> str:
    from ..schemas.digests import digest_bytes

    return digest_bytes(text.encode())
