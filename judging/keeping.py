"""Events that may be judged again, as bytes and back: columns, in chunks, so that no single step holds the interpreter
for long. Their identities are left out, since the ledger keeps what they say: `Who`.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import force_setattr

from ..schemas.events import Event
from ..schemas.identity import Identity
from ..schemas.identity_wire import IdentityReader
from .interning import Packed, Who
from .ledger.home import Held, address_of

if TYPE_CHECKING:
    from .judge import Judge

_CHUNK = 5_000
_LOW = (1 << 64) - 1
_SOME = Identity.model_construct(tenant_id="-")


class _Columns(msgspec.Struct, array_like=True):
    """`events` have `_SOME` for whatever identity they had."""

    events: list[Event]
    high: list[int]
    low: list[int]
    append_us: list[int]
    lanes: list[int]
    identities: list[int]
    masks: list[int]
    own: list[Packed]
    principals: list[str | None]
    flags: list[tuple[bool, bool, bool, bool]]


_encoder = msgspec.msgpack.Encoder(enc_hook=lambda _identity: True)
_decoder = msgspec.msgpack.Decoder(_Columns, dec_hook=lambda _type, _true: _SOME)


def pack(kept: Sequence[Held]) -> list[bytes]:
    """These, in their order. May run in another thread, on copies."""
    return [_encoder.encode(_columns(kept[at : at + _CHUNK])) for at in range(0, len(kept), _CHUNK)]


def _columns(kept: Sequence[Held]) -> _Columns:
    who = [one.who for one in kept]
    return _Columns(
        [one.event for one in kept],
        [one.order >> 64 for one in kept],
        [one.order & _LOW for one in kept],
        [one.append_us for one in kept],
        [one.lane.index for one in kept],
        [one.identity for one in who],
        [one.mask for one in who],
        [one.own for one in who],
        [one.principal for one in who],
        [(one.unmatched, one.clean, one.disputed, one.tail) for one in kept],
    )


def unpack(judge: "Judge", chunks: Iterable[bytes]) -> list[Held]:
    """What was packed, in its order; `told` is left to the caller. Raises `msgspec.DecodeError`, `BadInput`, `KeyError`
    or `IndexError` for what is damaged."""
    made: dict[tuple[Any, ...], Identity] = {}
    reader = IdentityReader()
    return [one for chunk in chunks for one in _held(judge, _decoder.decode(chunk), made, reader)]


def _held(
    judge: "Judge", columns: _Columns, made: dict[tuple[Any, ...], Identity], reader: IdentityReader
) -> Iterator[Held]:
    for event, high, low, append_us, lane, identity, mask, own, principal, flags in zip(
        *msgspec.structs.astuple(columns), strict=True
    ):
        who = Who(identity, mask, own, principal)
        if event.identity is not None:
            key = identity, mask, own, principal
            known = made.get(key)
            if known is None:
                known = made[key] = reader.read(msgspec.json.encode(judge.identities.wire(who)))
            force_setattr(event, "identity", known)  # nobody else has seen it yet
        held = Held(event, high << 64 | low, append_us, judge.lanes[lane], who, address_of(event), seen=True)
        held.unmatched, held.clean, held.disputed, held.tail = flags
        yield held
