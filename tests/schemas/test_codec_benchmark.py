"""The codec benchmark compares like with like."""

from kvtrail.benchmarks.codec import pydantic_decode, sample
from kvtrail.schemas.envelope import EnvelopeDecoder, EnvelopeEncoder


def test_both_sides_decode_the_same() -> None:
    events = sample()
    raw = EnvelopeEncoder().encode(events)
    ours, theirs = EnvelopeDecoder().decode(raw).events, pydantic_decode(raw, {})
    assert ours == events
    assert len(theirs) == len(events)
    for mine, other in zip(ours, theirs, strict=True):
        for name in ("node", "seq", "time_us", "key", "request_id", "identity", "store", "tier"):
            assert getattr(other, name) == getattr(mine, name)
        assert other.body.type == mine.type
