"""The range of offsets a sink is about to insert, kept as the metadata of an offset commit that moves no offset.

After a crash the same range is inserted again under the same token, before anything newer: either nothing of it was
stored, or some tables have it and the others get it now. A range cut anew would be a new token, and its rows twice.
"""

import re

from ..schemas.errors import BrokerError

_SHAPE = re.compile(r"1 (\d+)-(\d+)")
"""A leading number, so that another way to cut or decode can be told from this one."""


def encode_pending(first: int, last: int) -> str:
    """The metadata for offsets `first`..`last`, both included."""
    return f"1 {first}-{last}"


def decode_pending(metadata: str) -> tuple[int, int] | None:
    """The range in a commit's metadata, None where nothing was pending. Raises `BrokerError` on a foreign format:
    guessing would store rows twice."""
    if not metadata:
        return None
    match = _SHAPE.fullmatch(metadata)
    if match is None:
        raise BrokerError(
            "the sink's group holds an offset commit of another format.",
            field="kvtrail-sink",
            remedy="Run the build that wrote it until it has stopped cleanly, then this one.",
        )
    return int(match[1]), int(match[2])
