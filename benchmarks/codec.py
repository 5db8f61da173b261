"""The envelope codec against the same envelope in pydantic, in one run: `python -m kvtrail.benchmarks.codec`.

Both decode the same bytes to events whose identities are `Identity` objects, interned by their bytes; the pydantic one
validates rows with a model for each body. Printed: events a second, best of several rounds, and the ratio.
"""

import json
import time
from collections.abc import Callable
from typing import Annotated, Any, Literal

import click
from msgspec.structs import replace
from pydantic import BaseModel, ConfigDict, Field

from ..schemas.envelope import EnvelopeDecoder, EnvelopeEncoder
from ..schemas.events import Create, Event, Hit
from ..schemas.homes import node_home
from ..schemas.identity import Identity

EVENTS = 256
ROUNDS = 15


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class PydanticCreate(_Model):
    """What `events.Create` is, as a pydantic model."""

    type: Literal["create"]
    tokens: Annotated[int, Field(ge=0)] = 0
    bytes: Annotated[int, Field(ge=0)] | None = None
    payload_digest: Annotated[str, Field(pattern=r"^(?:[a-z0-9][a-z0-9._-]{0,31}:)?[0-9a-f]{16,128}$")] | None = None
    ttl_s: Annotated[float, Field(ge=0)] | None = None
    state: Literal["pending", "committed"] = "committed"


class PydanticHit(_Model):
    """What `events.Hit` is, as a pydantic model."""

    type: Literal["hit"]
    reused_tokens: Annotated[int, Field(ge=0)] = 0
    reported_tokens: Annotated[int, Field(ge=0)] | None = None
    payload_digest: Annotated[str, Field(pattern=r"^(?:[a-z0-9][a-z0-9._-]{0,31}:)?[0-9a-f]{16,128}$")] | None = None
    age_s: Annotated[float, Field(ge=0)] | None = None
    match_mode: Literal["exact", "semantic"] = "exact"
    outcome: str = "ok"


PydanticBody = Annotated[PydanticCreate | PydanticHit, Field(discriminator="type")]


class PydanticEnvelope(_Model):
    """What `envelope.Envelope` is, as a pydantic model."""

    v: Literal[1]
    node: str
    incarnation: str
    home: str
    first: int
    last: int
    t0: int
    strings: list[str]
    scopes: list[tuple[int, str, int, int, str, str, int]]
    identities: list[dict[str, str]]
    events: list[tuple[int, int, int, int, int, PydanticBody, dict[str, Any] | None]]


class PydanticEvent(_Model):
    """What `events.Event` is, as a pydantic model."""

    node: str
    incarnation: str
    home: str
    seq: int
    time_us: int
    body: PydanticCreate | PydanticHit
    store: str
    tier: str
    key: str
    request_id: str
    identity: Identity | None


def sample() -> list[Event]:
    """A quarter creates, three quarters hits, of eight identities: what a busy node sends."""
    identities = [
        Identity(
            tenant_id=f"tenant-{n}", model_id="llama-3.1-70b", weights_digest="ab" * 32, kv_dtype="bf16",
            tokenizer_id="llama-3", template_id="support_v7", template_digest=f"{n:02d}" * 32, tool_schema_digest="",
            token_ids_digest="cd" * 32,
        )
        for n in range(8)
    ]  # fmt: skip
    created = Event(
        node="node-a", incarnation="6f1c2a9e", home=node_home("node-a"), seq=1, time_us=1_796_040_241_000_000,
        body=Create(tokens=8992, bytes=414_351_360, payload_digest="ef" * 32, ttl_s=300.0), store="kv-nvme",
        tier="nvme",
    )  # fmt: skip
    hit = Hit(reused_tokens=8992, reported_tokens=8992, payload_digest="ef" * 32, age_s=12.5)
    return [
        replace(
            created, seq=n + 1, time_us=created.time_us + n * 250, body=created.body if n % 4 == 0 else hit,
            key=f"{n // 4:064x}", request_id=f"req-{n:08d}", identity=identities[n % 8],
        )
        for n in range(EVENTS)
    ]  # fmt: skip


def pydantic_decode(raw: bytes, known: dict[str, Identity]) -> list[PydanticEvent]:
    """The same work with pydantic: validated envelope, resolved tables, event objects."""
    envelope = PydanticEnvelope.model_validate_json(raw)
    identities: list[Identity | None] = []
    for wire in envelope.identities:
        packed = json.dumps(wire, sort_keys=True)
        identity = known.get(packed)
        if identity is None:
            identity = known[packed] = Identity.from_wire(wire)
        identities.append(identity)
    identities.append(None)
    strings = [*envelope.strings, ""]
    events = []
    for seq, (dt, scope, key, who, request, body, _) in enumerate(envelope.events, envelope.first):
        store, tier = envelope.scopes[scope][:2]
        events.append(
            PydanticEvent.model_construct(
                node=envelope.node, incarnation=envelope.incarnation, home=envelope.home, seq=seq,
                time_us=envelope.t0 + dt, body=body, store=strings[store], tier=tier, key=strings[key],
                request_id=strings[request], identity=identities[who],
            )
        )  # fmt: skip
    return events


def rate(work: Callable[[], object]) -> float:
    """Events a second of CPU, best round."""
    work()
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.process_time()
        for _ in range(8):
            work()
        best = min(best, (time.process_time() - start) / 8)
    return EVENTS / best


def measure() -> dict[str, float]:
    """Rates by name, and the ratios."""
    events = sample()
    encoder, decoder = EnvelopeEncoder(), EnvelopeDecoder()
    raw = encoder.encode(events)
    known: dict[str, Identity] = {}
    ours, theirs = decoder.decode(raw).events, pydantic_decode(raw, known)
    if ours != events or [e.identity for e in theirs] != [e.identity for e in events]:
        raise AssertionError("the two do not decode the same")
    envelope = PydanticEnvelope.model_validate_json(raw)
    found = {
        "bytes an event": len(raw) / EVENTS,
        "decode, ours": rate(lambda: decoder.decode(raw)),
        "decode, pydantic": rate(lambda: pydantic_decode(raw, known)),
        "encode, ours (tables included)": rate(lambda: encoder.encode(events)),
        "encode, pydantic (tables ready)": rate(envelope.model_dump_json),
    }
    found["decode ratio"] = found["decode, ours"] / found["decode, pydantic"]
    return found


def main() -> None:
    """Print the rates and the ratio."""
    for name, value in measure().items():
        click.echo(f"{name:32} {value:12,.1f}")


if __name__ == "__main__":
    main()
