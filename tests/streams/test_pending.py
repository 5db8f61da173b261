"""The pending range in an offset commit's metadata."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvtrail.schemas.errors import BrokerError
from kvtrail.streams.pending import decode_pending, encode_pending


@given(st.integers(0, 2**62), st.integers(0, 2**20))
def test_a_range_comes_back(first: int, length: int) -> None:
    assert decode_pending(encode_pending(first, first + length)) == (first, first + length)


def test_no_metadata_is_no_range() -> None:
    assert decode_pending("") is None


@pytest.mark.parametrize("metadata", ["2 1-2", "1-2", "1 1-2 ", "x"])
def test_a_foreign_format_is_refused(metadata: str) -> None:
    with pytest.raises(BrokerError, match="another format"):
        decode_pending(metadata)
