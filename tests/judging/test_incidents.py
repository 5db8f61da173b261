"""Incidents: folded by root cause, louder when their findings are, gone with a reason, under ids that never change."""

from collections.abc import Iterable

from kvtrail.audit.incidents import fold_incidents
from kvtrail.judging.incidents import fold
from kvtrail.judging.offline import History
from kvtrail.schemas.findings import Finding

from .cases import scenario

MANY = "\n".join(
    [
        "n1:1 create K acme {keysrc=asserted, tmpl=t@d1, in=I1}",
        "n1:2 create L acme {keysrc=asserted, tmpl=t@d1, in=I1}",
        *(
            f"n1:{n} hit {'KL'[n % 2]} {('beta', 'gamma', 'delta')[n % 3]} {{keysrc=asserted, tmpl=t@d2, in=I2}}"
            for n in range(3, 63)
        ),
        "n1:63 hit K acme {keysrc=asserted, tmpl=t@d2, in=I2}",
        "n1:64 hit K acme {keysrc=asserted, tmpl=t@d2, in=I2}",
    ]
)


def revisions(lines: str | Iterable[str]) -> list[Finding]:
    """Every revision, in order."""
    history = History()
    text = lines if isinstance(lines, str) else "\n".join(lines)
    said = [finding for _, record in scenario(text).steps for finding in history.take(record)]
    return said + history.finish()


def final(lines: str) -> list[Finding]:
    return list({finding.id: finding for finding in revisions(lines)}.values())


def test_findings_fold_by_what_the_key_leaves_out() -> None:
    incidents = fold_incidents(final(MANY))
    assert [(one.cause, one.severity.value, one.findings, one.entries, one.tenant_count) for one in incidents] == [
        ("CROSS_TENANT_REUSE", "critical", 60, 2, 4),
        ("TEMPLATE_MISMATCH", "medium", 2, 1, 1),
    ]
    assert incidents[0].sentence == "this key does not cover tenant: 60 hits, 4 tenants", "served, and whose it was"
    assert {one.cause_id for one in fold(final(MANY))} == {one.cause_id for one in incidents}


def test_ids_are_the_same_however_the_history_comes() -> None:
    lines = MANY.splitlines()
    there = {(f.id, f.cause_id, f.cause) for f in final(MANY)}
    late = [*lines[:5], *lines[6:], lines[5]]  # n1:6 comes last
    twice = [line for line in lines for _ in range(2)]
    for other in (late, twice):
        assert {(f.id, f.cause_id, f.cause) for f in final("\n".join(other)) if f.status == "open"} == there


def test_a_finding_that_grows_louder_says_so_and_its_incident_with_it() -> None:
    told = revisions(
        "n1:1 create R acme {kind=response, finish=error}\nn1:2 create Q acme {kind=response, finish=error, in=I2}\n"
        "n1:3 hit R acme {kind=response}"
    )
    about_r = [(f.revision, f.severity.value) for f in told if f.key == told[0].key]
    assert about_r == [(1, "medium"), (2, "high")]
    assert told[-1].id == told[0].id and told[-1].reason
    (incident,) = fold_incidents({f.id: f for f in told}.values())
    assert (incident.severity.value, incident.findings) == ("high", 2)


def test_what_turns_out_to_be_right_is_retracted_with_a_reason_and_its_incident_closes() -> None:
    told = revisions(
        "n1:1 create K acme {in=I1}\nn1:3 hit K acme {in=I2}\nn1:2 create K acme {in=I2}\nn1:4 hit K acme {in=I2}"
    )
    about = [f for f in told if f.cause == "KEY_COLLISION"]
    assert [(f.revision, f.status) for f in about if f.status == "retracted"] == [(about[-1].revision, "retracted")]
    assert about[0].status == "open" and about[-1].reason
    assert {f.id for f in about} == {about[0].id}
    standing = fold_incidents({f.id: f for f in told}.values())
    assert "KEY_COLLISION" not in {one.cause for one in standing}


def test_a_verdict_that_changes_its_cause_keeps_its_id_and_moves_to_the_other_incident() -> None:
    told = revisions("n2:1 hit K beta {tier=l3, iso=sB} t=11\nn1:1 create K acme {tier=l3, iso=sA} t=9")
    causes = [f.cause for f in told]
    assert causes == ["UNATTRIBUTED_HIT", "CROSS_TENANT_REUSE"]
    assert told[0].id == told[1].id and told[0].cause_id != told[1].cause_id
    assert [f.revision for f in told] == [1, 2] and told[1].reason
    assert [one.cause for one in fold_incidents([told[-1]])] == ["CROSS_TENANT_REUSE"]


def test_findings_that_no_request_is_behind_are_not_called_hits() -> None:
    (incident,) = [one for one in fold_incidents(final("n1:1 create K acme\nn1:3 hit K acme")) if "GAP" in one.cause]
    assert incident.sentence == "stream gap: 1 finding"
