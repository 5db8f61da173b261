"""From events to rows and marks."""

from collections.abc import Callable

from ...schemas.events import Create, Event
from ..interning import Who
from .home import scope_of
from .lanes import Lane
from .rows import NOTHING_RARE, Mark, Profile, Rare, Row, Scope, pack_digest, pack_key

_profiles: dict[tuple[Scope, str, str], Profile] = {}
"""One object per value; what is lost here is only memory."""


def new_row(event: Event, create: Create, order: int, lane: Lane, who: Who, small: Callable[[int], int]) -> Row:
    """The instance that a create begins. `small` gives one object for equal numbers."""
    return Row(
        order=order,
        lane=lane,
        time_us=event.time_us,
        identity=who.identity,
        mask=who.mask,
        own=who.own,
        principal=who.principal,
        key=pack_key(event.key),
        profile=_profile(event),
        tokens=small(create.tokens),
        bytes=-1 if create.bytes is None else small(create.bytes),
        packed=pack_digest(create.payload_digest or ""),
        request_id=event.request_id,
        rare=_rare(event, create),
    )


def _profile(event: Event) -> Profile:
    scope = scope_of(event)
    packed = (scope, event.kind, event.key_origin)
    profile = _profiles.get(packed)
    if profile is None:
        if len(_profiles) > 65_536:
            _profiles.clear()
        profile = _profiles[packed] = Profile(*packed)
    return profile


def _rare(event: Event, create: Create) -> Rare:
    if not (
        create.state == "pending"
        or create.finish is not None
        or create.max_age_s is not None
        or create.weights_version is not None
        or event.place
        or event.part
        or event.span
        or event.entry_version
    ):
        return NOTHING_RARE
    rare = Rare()
    rare.pending = create.state == "pending"
    rare.finish, rare.weights_version = create.finish, create.weights_version
    rare.max_age_us = -1 if create.max_age_s is None else round(create.max_age_s * 1e6)
    rare.place, rare.part, rare.span, rare.version = event.place, event.part, event.span, event.entry_version
    rare.generation = -1 if event.generation is None else event.generation
    return rare


def new_mark(event: Event, order: int, lane: Lane, reason: str) -> Mark:
    """The commit or end that an event is."""
    mark = Mark(order, event.time_us, reason, lane)
    mark.place, mark.version = event.place, event.entry_version
    mark.generation = -1 if event.generation is None else event.generation
    if event.identity is not None:
        mark.domain = event.identity.isolation_domain or ""
    return mark
