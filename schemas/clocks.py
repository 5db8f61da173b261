"""Times that cannot be: an event's own time against the broker's clock, for whoever shows or orders by it.

An odd clock is no bad input: the event is kept and judged as it is. But nobody is served by a list that 2126 leads.
"""

from datetime import UTC, datetime

AHEAD_US = 86_400_000_000
"""A producer's clock this far ahead of the broker's is off."""
EARLIEST_US = round(datetime(2020, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000
"""No event is older than this. Spools and archives arrive late; how late says nothing about a clock."""


def plausible_us(time_us: int, append_us: int) -> int:
    """`time_us`, or where that cannot be, `append_us`: when the broker had it. Without a broker's time, `time_us`."""
    odd = append_us >= EARLIEST_US and not EARLIEST_US <= time_us <= append_us + AHEAD_US
    return append_us if odd else time_us
