"""What a gateway knows of one request, and the events that wait for it: the records of `kvtrail.context`.

Some caches know only which request they served, not whose it was. Their events carry a request id and no identity;
the gateway tells who asked under the same id, and the resolver brings the two together. A record is keyed by its
request id and is either a context or a plain event.
"""

import re

import msgspec
from msgspec import Struct

from .envelope import EnvelopeDecoder, encode_plain
from .errors import BadInput, InvalidField, UndecodableRecord, UnknownSchemaVersion
from .events import Create, Event, Hit, Micros, Resolve, Text
from .foreign import known
from .identity import Identity
from .reserved import check_tenant
from .wording import reworded

CONTEXT_VERSION = 1
RESOLVER = "kvtrail-resolver"
"""The node of every resolution. Each has a lane of its own kind: see `resolution`."""
LONGEST_REQUEST_ID = 256
_USUAL_BYTES = 256
"""A context that is no longer has no room for what is not known here."""

DIMENSIONS_KNOWN = (
    "tenant_id", "principal", "template_id", "template_digest", "tool_schema_digest", "corpus_digest",
    "isolation_domain",
)  # fmt: skip
"""The dimensions of an identity that a gateway can know, by their names there."""

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")


class RequestContext(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Who asked, with what. `at_us`: when, on the gateway's clock.

    Dimensions mean what they mean in an identity: absent is unknown, empty is known to be none; a digest is a digest
    of content. `isolation_domain` is never the salt itself: `digests.digest_bytes(salt, secret, key_id)`.
    """

    request_id: str
    tenant_id: str
    at_us: Micros
    principal: str | None = None
    template_id: str | None = None
    template_digest: str | None = None
    tool_schema_digest: str | None = None
    corpus_digest: str | None = None
    isolation_domain: str | None = None
    trace_id: Text = ""
    v: int = CONTEXT_VERSION

    def identity(self) -> Identity:
        """The requester, as far as a gateway knows. Raises `EmptyTenant`, `NameInDigestPlace` or `InvalidField`."""
        return Identity.from_wire({name: getattr(self, name) for name in DIMENSIONS_KNOWN})


class _Shape(Struct):
    body: msgspec.Raw = msgspec.Raw()


_decoder = msgspec.json.Decoder(RequestContext)
_shape = msgspec.json.Decoder(_Shape)


def encode_context(context: RequestContext) -> bytes:
    """The context as JSON, as it stands on `kvtrail.context`."""
    return msgspec.json.encode(context)


def decode_context(raw: bytes) -> RequestContext:
    """A context from its JSON, its identity checked.

    Raises `UndecodableRecord`, `UnknownSchemaVersion`, `EmptyTenant`, `NameInDigestPlace`, `InvalidField`, or
    `ForeignContent` for an unknown field with room for a prompt.
    """
    try:
        context = _decoder.decode(raw)
        if len(raw) > _USUAL_BYTES:
            known(msgspec.json.decode(raw), RequestContext.__struct_fields__, "context")
    except msgspec.ValidationError as error:
        message, field = reworded(error, {}, RequestContext)
        raise InvalidField(
            message, field=f"context.{field}".rstrip("."), remedy="See docs/reference/context.schema.json."
        ) from None
    except msgspec.DecodeError:
        raise UndecodableRecord("is not JSON.", field="context", remedy="Send one JSON object a record.") from None
    if context.v != CONTEXT_VERSION:
        raise UnknownSchemaVersion("is not known here.", field="v", remedy=f"Send version {CONTEXT_VERSION}.")
    if not 0 < len(context.request_id) <= LONGEST_REQUEST_ID:
        raise InvalidField(
            "is empty or too long.", field="context.request_id", remedy=f"Send 1 to {LONGEST_REQUEST_ID} characters."
        )
    try:
        check_tenant("", context.identity().tenant_id, "tenant_id")
    except BadInput as error:
        raise error.at("context") from None
    return context


def decode_record(raw: bytes, decoder: EnvelopeDecoder) -> RequestContext | Event:
    """A record of `kvtrail.context`: a context, or an event that waits for one. Raises as `decode_context`."""
    try:
        waiting = bool(bytes(_shape.decode(raw).body))
    except msgspec.DecodeError:
        waiting = False
    if not waiting:
        return decode_context(raw)
    batch = decoder.decode(raw)
    if batch.rejects:
        raise batch.rejects[0].error
    if len(batch.events) != 1 or not lacks_identity(batch.events[0]):
        raise InvalidField(
            "is no event that waits for a context.", field="body",
            remedy="Send one create or hit a record, with a request id and without an identity.",
        )  # fmt: skip
    return batch.events[0]


def lacks_identity(event: Event) -> bool:
    """Whether a context could complete the event: it is judged by identity, has none, and names its request."""
    return event.identity is None and bool(event.request_id) and isinstance(event.body, Create | Hit)


def offer(event: Event) -> bytes:
    """The event as a record of `kvtrail.context`."""
    return encode_plain(event)


def resolution(event: Event, context: RequestContext) -> Event:
    """The `resolve` that gives `event` the identity of `context`.

    All of it follows from the two, its id from the event's: made again it is the same event, and readers drop it. So
    a resolver's numbers have holes, and nothing may be concluded from them.
    """
    return Event(
        node=RESOLVER, incarnation=f"{event.node}/{event.incarnation}", home=event.home, seq=event.seq,
        time_us=max(event.time_us, context.at_us), body=Resolve(event_id=event.id), store=event.store,
        tier=event.tier, rank=event.rank, copy=event.copy, key=event.key, key_origin=event.key_origin, kind=event.kind,
        part=event.part, request_id=event.request_id, trace_id=context.trace_id or event.trace_id,
        identity=context.identity(),
    )  # fmt: skip


def trace_of(traceparent: str) -> str:
    """The trace id in a W3C `traceparent`, 32 hex digits; empty where it is none (a broken one starts a new trace)."""
    found = _TRACEPARENT.fullmatch(traceparent.strip())
    return found[1] if found else ""
