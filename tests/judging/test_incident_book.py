"""Incidents as they grow come to what the fold over final revisions says."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from kvtrail.judging.incident_book import IncidentBook
from kvtrail.judging.incidents import fold
from kvtrail.schemas.dimensions import Severity
from kvtrail.schemas.findings import Finding, Party


def finding(
    name: str, revision: int = 1, *, cause: str = "c", severity: Severity = Severity.HIGH, gone: bool = False,
    tenants: tuple[str, str] = ("a", "b"), key: str = "k", time_us: int = 0,
) -> Finding:  # fmt: skip
    return Finding(
        id=name, revision=revision, status="retracted" if gone else "open", rule="R", cause="C", severity=severity,
        title="t", cause_id=cause, subject=name, key=key, event_time_us=time_us,
        creator=Party(tenant_id=tenants[0]), requester=Party(tenant_id=tenants[1]),
    )  # fmt: skip


revisions = st.builds(
    finding,
    st.sampled_from("fghi"),
    st.integers(1, 4),
    cause=st.sampled_from(["c", "d"]),
    severity=st.sampled_from(Severity),
    gone=st.booleans(),
    tenants=st.tuples(st.sampled_from("ab"), st.sampled_from("bcd")),
    key=st.sampled_from(["", "k", "l"]),
)


def what(incident: Any) -> tuple[Any, ...]:
    return incident.cause_id, incident.severity, incident.findings, incident.tenants, incident.keys


@given(st.lists(revisions, max_size=30), st.sampled_from(Severity), st.integers(0, 30))
def test_the_book_is_the_fold_of_final_revisions(found: list[Finding], at_least: Severity, saved_at: int) -> None:
    """Through repetitions, old revisions, changes of cause, and a save and a restore on the way."""
    book, final = IncidentBook(at_least), dict[str, Finding]()
    for number, one in enumerate(found):
        if number == saved_at:
            restored = IncidentBook(at_least)
            restored.load(book.dump())
            book = restored
        book.take(one)
        if one.id not in final or final[one.id].revision < one.revision:
            final[one.id] = one
    folded = {each.cause_id: what(each) for each in fold(f for f in final.values() if f.severity.rank >= at_least.rank)}
    assert {cause_id: what(book.incident(cause_id)) for cause_id in book} == folded


def test_what_is_forgotten_stays_counted_and_can_be_retracted() -> None:
    book = IncidentBook(kept=2)
    for name in "fghi":
        book.take(finding(name))
    incident = book.incident("c")
    assert incident is not None and incident.findings == 4
    for name in "fghi":
        assert book.take(finding(name, 2, gone=True))
    assert book.incident("c") is None
    assert not book.take(finding("z", 2, gone=True)), "nothing of it was ever counted"


def test_a_closed_incident_begins_anew() -> None:
    book = IncidentBook()
    book.take(finding("f"))
    book.close("c")
    assert book.incident("c") is None
    assert not book.take(finding("f", 2, gone=True))
    book.take(finding("g"))
    incident = book.incident("c")
    assert incident is not None and incident.findings == 1 and book.example("c") == "g"
