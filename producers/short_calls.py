"""`create` and `hit` as engines mostly call them, in one step.

A thread that has just woken finds its caches empty, and then each function that a call goes through costs microseconds:
so here the buffer's `put` is written out in place, and the way through every field there is begins only where one of
the rarer ones is given. What no item can be made of here is left to that way, which counts it by its field.
"""

import functools
from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ..schemas.events import Create, Hit
from .buffer import NOTHING, PLAIN
from .placing import turn_down

if TYPE_CHECKING:
    from .buffer import How

F = TypeVar("F", bound=Callable[..., None])

_HOWS: dict[str, "How"] = {"derived": PLAIN} | {origin: (0, "", origin, "kv", "") for origin in ("asserted", "client")}
_BODIES_KEPT = 4_096
_MISSING = object()


def short_create(general: F) -> F:
    """`create` without the way through every field there is."""

    @functools.wraps(general)
    def create(
        self: Any, key: Any = _MISSING, identity: Any = _MISSING, /, *more: Any, store: Any = None, tier: Any = None,
        tokens: Any = 0, ttl_s: Any = None, request_id: Any = "", key_origin: Any = "derived", **others: Any,
    ) -> None:  # fmt: skip
        if not others and not more and identity is not _MISSING and store is not None and tier is not None:
            try:
                body, how = Create(tokens=tokens, ttl_s=ttl_s), _HOWS[key_origin]
                item = (self._clock(), body, key, identity, store, tier, "", request_id, how, NOTHING)
            except Exception:  # noqa: S110  # the general way counts it by its field
                pass
            else:  # counted or accepted from here on: the general way would do it twice
                try:
                    buffer = self._buffer
                    if buffer.slots is not None:
                        slot = buffer.slots.get(get_ident())
                        if slot is None or tier == "shared":
                            self._put(item)
                            return
                        buffer.view[slot] += 1
                    queue = buffer.queue
                    if len(queue) + buffer.staged >= buffer.limit:
                        buffer.overflow(item)
                        return
                    queue.append(item)
                    if len(queue) >= buffer.alarm:
                        buffer.wake()
                except Exception as error:
                    turn_down(self._buffer, "create", error)
                return
        others |= {"tokens": tokens, "ttl_s": ttl_s, "request_id": request_id, "key_origin": key_origin}
        general(self, *_given(key, identity, more), **_place(store, tier), **others)

    return cast("F", create)


def short_hit(general: F) -> F:
    """`hit` likewise. Most hits reuse as many tokens as another did: what a call does not make, nobody has to fetch
    from another core's cache."""
    bodies: dict[int, Hit] = {}

    def body_of(reused_tokens: Any) -> Hit:
        body = Hit(reused_tokens=reused_tokens)
        if type(reused_tokens) is int and len(bodies) < _BODIES_KEPT:
            bodies[reused_tokens] = body
        return body

    @functools.wraps(general)
    def hit(
        self: Any, key: Any = _MISSING, identity: Any = _MISSING, /, *more: Any, store: Any = None, tier: Any = None,
        reused_tokens: Any = 0, request_id: Any = "", key_origin: Any = "derived", **others: Any,
    ) -> None:  # fmt: skip
        if not others and not more and identity is not _MISSING and store is not None and tier is not None:
            try:
                known = bodies.get(reused_tokens) if type(reused_tokens) is int else None  # True is not 1 here
                body, how = known or body_of(reused_tokens), _HOWS[key_origin]
                item = (self._clock(), body, key, identity, store, tier, "", request_id, how, NOTHING)
            except Exception:  # noqa: S110  # the general way counts it by its field
                pass
            else:  # counted or accepted from here on: the general way would do it twice
                try:
                    buffer = self._buffer
                    if buffer.slots is not None:
                        slot = buffer.slots.get(get_ident())
                        if slot is None or tier == "shared":
                            self._put(item)
                            return
                        buffer.view[slot] += 1
                    queue = buffer.queue
                    if len(queue) + buffer.staged >= buffer.limit:
                        buffer.overflow(item)
                        return
                    queue.append(item)
                    if len(queue) >= buffer.alarm:
                        buffer.wake()
                except Exception as error:
                    turn_down(self._buffer, "hit", error)
                return
        others |= {"reused_tokens": reused_tokens, "request_id": request_id, "key_origin": key_origin}
        general(self, *_given(key, identity, more), **_place(store, tier), **others)

    return cast("F", hit)


def _given(key: Any, identity: Any, more: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments that were given by their place."""
    if identity is not _MISSING:
        return (key, identity, *more)
    return () if key is _MISSING else (key,)


def _place(store: Any, tier: Any) -> dict[str, Any]:
    """Without what the caller left out."""
    return {name: value for name, value in (("store", store), ("tier", tier)) if value is not None}
