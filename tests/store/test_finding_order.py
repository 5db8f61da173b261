"""A finding that several partitions raise apart from each other: one of them is current, whichever was stored first."""

import itertools

import pytest
from kvtrail.schemas.clocks import AHEAD_US, EARLIEST_US, plausible_us
from kvtrail.schemas.config import ClickHouseConfig
from kvtrail.schemas.dimensions import Severity
from kvtrail.schemas.findings import Finding, finding_id
from kvtrail.store import queries
from kvtrail.store.client import connect
from kvtrail.store.rows import Source, finding_rows
from msgspec.structs import replace

pytestmark = pytest.mark.engine

ID = finding_id("operation:op-1")


def _finding(time_us: int, revision: int = 1, evidence: str = "n1/i/n:n1/1") -> Finding:
    return Finding(
        id=ID, revision=revision, status="open", rule="INVALIDATE_FAILED", cause="INVALIDATE_FAILED",
        severity=Severity.MEDIUM, title="an invalidation was refused", subject="operation:op-1",
        event_time_us=time_us, evidence=(evidence,),
    )  # fmt: skip


EARLY, LATE = _finding(1_790_000_000_000_000), _finding(1_790_000_000_000_001)
ALSO_EARLY = _finding(1_790_000_000_000_000, evidence="n2/i/n:n2/1")


@pytest.mark.parametrize("merged", [False, True])
def test_the_order_of_arrival_decides_nothing(database: ClickHouseConfig, merged: bool) -> None:
    with connect(database) as client:
        for number, order in enumerate(itertools.permutations([EARLY, LATE, ALSO_EARLY])):
            client.command("TRUNCATE TABLE findings")
            for at, finding in enumerate(order):
                source = Source("kvtrail.findings", 0, at, 1_795_900_000_000_000)
                for copy in range(2):  # as after a crash
                    rows = finding_rows([(source, finding)])
                    client.insert(rows.table, rows.columns, f"{number}/{at}/{copy}")
            if merged:
                client.command("OPTIMIZE TABLE findings FINAL")
                assert client.query("SELECT count() AS n FROM findings") == [{"n": 3}]
            assert queries.FINDINGS_CURRENT.run(client) == [EARLY], order
            assert queries.FINDING_REVISIONS.run(client, finding_id=ID) == [EARLY], order
            [incident] = queries.INCIDENTS.run(client)
            assert incident.findings == 1


def test_a_later_revision_counts_more_than_an_earlier_event(database: ClickHouseConfig) -> None:
    with connect(database) as client:
        source = Source("kvtrail.findings", 0, 1, 1_795_900_000_000_000)
        revised = _finding(LATE.event_time_us, revision=2)
        rows = finding_rows([(source, revised), (source, EARLY)])
        client.insert(rows.table, rows.columns, "x")
        assert queries.FINDINGS_CURRENT.run(client) == [revised]


_NOW = 1_795_900_000_000_000
_TIMES = (
    _NOW, _NOW - 30 * AHEAD_US, _NOW + AHEAD_US, _NOW + AHEAD_US + 1, 0, EARLIEST_US - 1, EARLIEST_US,
    4_949_683_200_000_000,
)  # fmt: skip


def test_lists_are_in_the_order_of_times_that_can_be(database: ClickHouseConfig) -> None:
    source = Source("kvtrail.findings", 0, 1, _NOW)
    stored = [replace(_finding(at), id=finding_id(f"f{at}"), cause_id="c") for at in _TIMES]
    with connect(database) as client:
        rows = finding_rows([(source, one) for one in stored])
        client.insert(rows.table, rows.columns, "x")
        shown = [plausible_us(one.event_time_us, _NOW) for one in queries.FINDINGS_CURRENT.run(client)]
        assert shown == sorted(shown, reverse=True) and len(shown) == len(_TIMES)
        assert [
            plausible_us(one.finding.event_time_us, one.append_us) for one in queries.FINDINGS_LOUDEST.run(client)
        ] == shown
        [incident] = queries.INCIDENTS.run(client)
        assert (incident.first_us, incident.last_us) == (EARLIEST_US, _NOW + AHEAD_US)
        [recent] = queries.INCIDENTS.run(client, since_us=_NOW + 1)
        assert recent.findings == 1  # what is dated a century ahead is not for ever new
        touched = queries.INCIDENT_REQUESTS.run(client, cause_id="c")
        assert [one.time_us for one in touched] == sorted(shown)
