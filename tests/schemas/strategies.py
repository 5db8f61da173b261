"""Hypothesis strategies for events, as wild as the schemas allow."""

from typing import TypeVar

from hypothesis import strategies as st
from kvtrail.schemas.digests import digest_bytes
from kvtrail.schemas.events import (
    Check,
    Commit,
    Create,
    Event,
    Expire,
    Hit,
    Invalidate,
    LookupCount,
    Lookups,
    NodeStart,
    RequestEnd,
    Resolve,
)
from kvtrail.schemas.identity import DIMENSIONS, Identity

# Anything but lone surrogates, which JSON cannot carry; NUL, quotes, backslashes and astral signs included.
_CHARACTERS = st.characters(exclude_categories=["Cs"])
TEXT = st.text(_CHARACTERS, max_size=12)
NAMES = st.text(_CHARACTERS, min_size=1, max_size=8)
COUNTS = st.integers(0, 2**63 - 1)
NUMBERS = st.integers(-(2**63), 2**63 - 1)
MICROS = st.integers(-(2**61), 2**61)
DIGESTS = st.one_of(
    st.binary(max_size=3).map(digest_bytes),
    st.binary(max_size=3).map(lambda raw: digest_bytes(raw, b"secret", "hmac-1")),
    st.from_regex(r"\A[0-9a-f]{16,128}\Z"),
)
SECONDS = st.floats(0, 1e12, allow_nan=False)


T = TypeVar("T")


def maybe(values: st.SearchStrategy[T]) -> st.SearchStrategy[T | None]:
    return st.none() | values


def _identities() -> st.SearchStrategy[Identity]:
    fields = {
        name: maybe(st.just("") | DIGESTS) if dimension.form == "digest" else maybe(TEXT)
        for name, dimension in DIMENSIONS.items()
        if name != "tenant_id"
    }
    tenants = NAMES.filter(lambda name: bool(name.strip()))
    return st.fixed_dictionaries({"tenant_id": tenants}, optional=fields).map(Identity.from_wire)


IDENTITIES = _identities()
BODIES = st.one_of(
    st.builds(
        Create, tokens=COUNTS, computed_tokens=maybe(COUNTS), reported_tokens=maybe(COUNTS), bytes=maybe(COUNTS),
        payload_digest=maybe(DIGESTS), rederived_key=maybe(TEXT), parts=st.lists(TEXT, max_size=2).map(tuple),
        finish=maybe(TEXT), ttl_s=maybe(SECONDS), max_age_s=maybe(SECONDS), lease_s=maybe(SECONDS),
        state=st.sampled_from(["pending", "committed"]), weights_version=maybe(NUMBERS),
    ),
    st.builds(
        Hit, reused_tokens=COUNTS, reported_tokens=maybe(COUNTS), tokens_read=maybe(COUNTS), bytes_read=maybe(COUNTS),
        payload_digest=maybe(DIGESTS), age_s=maybe(SECONDS), match_mode=st.sampled_from(["exact", "semantic"]),
        similarity=maybe(st.floats(-1, 1)), parts_required=st.lists(TEXT, max_size=2).map(tuple), outcome=TEXT,
        weights_version=maybe(NUMBERS),
    ),
    st.builds(Expire, reason=st.sampled_from(["ttl", "capacity", "lease", "aborted", "failed", "demoted", "restart"])),
    st.builds(
        Invalidate, scope=st.sampled_from(["entry", "node", "store"]), where=st.dictionaries(TEXT, TEXT, max_size=2),
        cause=TEXT, op_id=TEXT, outcome=st.sampled_from(["done", "refused", "partial"]),
    ),
    st.builds(Commit, bytes=maybe(COUNTS), payload_digest=maybe(DIGESTS)),
    st.builds(NodeStart, surviving_tiers=st.lists(TEXT, max_size=2).map(tuple), version=TEXT),
    st.builds(
        Lookups,
        counts=st.lists(
            st.builds(LookupCount, tenant_id=TEXT, tier=TEXT, hit=COUNTS, miss=COUNTS), max_size=2
        ).map(tuple),
    ),
    st.builds(
        Check, check=st.sampled_from(["canary", "spot_check", "bypass_diff", "isolation_probe", "heartbeat"]),
        result=st.sampled_from(["pass", "fail", "inconclusive"]), expected=TEXT, observed=TEXT, detail=TEXT,
        reused_tokens=maybe(COUNTS), first_divergence=maybe(COUNTS),
    ),
    st.builds(Resolve, event_id=TEXT),
    st.builds(RequestEnd, parts_required=st.lists(TEXT, max_size=2).map(tuple)),
)  # fmt: skip


@st.composite
def runs(draw: st.DrawFn, size: int = 4) -> list[Event]:
    """One lane's contiguous run."""
    lane = {"node": draw(NAMES), "incarnation": draw(NAMES), "home": "n:" + draw(TEXT)}
    first = draw(st.integers(1, 2**62))
    start = draw(st.integers(-(2**60), 2**60))
    return [
        Event(
            **lane, seq=first + n, time_us=start + draw(st.integers(-(2**59), 2**59)), body=draw(BODIES),
            store=draw(TEXT), tier=draw(st.sampled_from(["gpu", "host", "nvme", "shared"])), rank=draw(NUMBERS),
            copy=draw(TEXT), key=draw(TEXT), key_origin=draw(st.sampled_from(["derived", "asserted", "client"])),
            kind=draw(st.sampled_from(["kv", "state", "media", "response"])), part=draw(TEXT), span=draw(TEXT),
            entry_version=draw(TEXT), place=draw(TEXT), generation=draw(maybe(NUMBERS)), request_id=draw(TEXT),
            trace_id=draw(TEXT), identity=draw(maybe(IDENTITIES)),
        )
        for n in range(draw(st.integers(1, size)))
    ]  # fmt: skip
