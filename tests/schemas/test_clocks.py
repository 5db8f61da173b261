"""Times that cannot be, for whoever shows or orders by them."""

import pytest
from kvtrail.schemas.clocks import AHEAD_US, EARLIEST_US, plausible_us

NOW = 1_795_900_000_000_000


@pytest.mark.parametrize("time_us", [0, -1, EARLIEST_US - 1, NOW + AHEAD_US + 1, 2**62])
def test_what_cannot_be_gives_way_to_the_brokers_time(time_us: int) -> None:
    assert plausible_us(time_us, NOW) == NOW


@pytest.mark.parametrize("time_us", [NOW, NOW + AHEAD_US, NOW - 30 * AHEAD_US, EARLIEST_US])
def test_what_can_be_stands_however_late_it_came(time_us: int) -> None:
    assert plausible_us(time_us, NOW) == time_us


def test_without_a_brokers_time_nothing_is_known() -> None:
    assert plausible_us(5, 0) == 5
