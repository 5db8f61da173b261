"""From events to rows and marks."""

from collections.abc import Callable

from ...schemas.events import Create, Event
from ..interning import Who
from .home import scope_of
from .lanes import Lane
from .rows import NOTHING_RARE, Digest, Mark, Profile, Rare, Row, Scope, pack_key

_profiles: dict[tuple[Scope, str, str, int], Profile] = {}
"""One object per value; what is lost here is only memory."""


def new_row(
    event: Event, create: Create, order: int, lane: Lane, who: Who, small: Callable[[int], int],
    at: tuple[Scope, Digest] | None = None,
) -> Row:  # fmt: skip
    """The instance that a create begins. `small` gives one object for equal numbers; `at` is its address where that
    is known already."""
    scope, key = at or (scope_of(event), pack_key(event.key))
    payload, own, rare = create.payload_digest or "", who.own, _rare(event, create)
    packed = bytes.fromhex(payload) if len(payload) == 64 and ":" not in payload else b""
    if (payload and not packed) or not isinstance(own, bytes):
        rare = Rare() if rare is NOTHING_RARE else rare
        if not packed:
            rare.payload = payload
        if not isinstance(own, bytes):
            rare.own, own = own, b""
    return Row(
        order=order,
        lane=lane,
        time_us=event.time_us,
        identity=who.identity,
        mask=who.mask,
        principal=who.principal,
        key=key,
        profile=profile(scope, event.kind, event.key_origin, len(packed)),
        data=own + packed + event.request_id.encode(),
        tokens=small(create.tokens),
        size=-1 if create.bytes is None else small(create.bytes),
        rare=rare,
    )


def profile(scope: Scope, kind: str, origin: str, payload: int) -> Profile:
    """The profile of these values, one object for all rows."""
    packed = (scope, kind, origin, payload)
    found = _profiles.get(packed)
    if found is None:
        if len(_profiles) > 65_536:
            _profiles.clear()
        found = _profiles[packed] = Profile(*packed)
    return found


def _rare(event: Event, create: Create) -> Rare:
    if not (
        event.place
        or create.state == "pending"
        or create.finish is not None
        or create.max_age_s is not None
        or create.weights_version is not None
        or event.part
        or event.span
        or event.entry_version
    ):
        return NOTHING_RARE
    return Rare(
        event.place,
        -1 if event.generation is None else event.generation,
        event.part,
        event.span,
        event.entry_version,
        -1 if create.max_age_s is None else round(create.max_age_s * 1e6),
        create.weights_version,
        create.finish,
        create.state == "pending",
    )


def new_mark(event: Event, order: int, lane: Lane, reason: str) -> Mark:
    """The commit or end that an event is."""
    identity, generation = event.identity, event.generation
    return Mark(
        order,
        event.time_us,
        reason,
        lane,
        "",
        event.place,
        -1 if generation is None else generation,
        event.entry_version,
        None if identity is None else identity.isolation_domain or "",
    )
