"""Every endpoint that we could think of, in every wire form, and what each tool must say of it."""

from pathlib import Path

import pytest

from .asking import FORMS, Patience, diff, probe, somebody_asked
from .stub import Behaviour, Stub
from .verdicts import ALL, CASES, Case, expected_diff, page

PAGE = Path(__file__).resolve().parents[3] / "docs" / "active-checks.md"
SLOW = {"does not answer", "drips its answer"}


@pytest.mark.parametrize("form", ALL)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bypass_diff(stub: Stub, case: Case, form: str) -> None:
    wire = FORMS[form]
    stub.become(case.behaviour)
    if case.found != "nothing":
        somebody_asked(stub, wire, 14 if case.found == "own" else 90, "contoso-key")
    made = diff(stub, wire, timeout_s=0.2 if case.name in SLOW else 20.0)
    assert (made.diff.outcome, made.diff.reason) == expected_diff(case, form), made


@pytest.mark.parametrize("form", ALL)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_probe_isolation(stub: Stub, case: Case, form: str) -> None:
    probed = probe(stub.become(case.behaviour), FORMS[form], timeout_s=0.2 if case.name in SLOW else 20.0)
    assert (probed.probe.isolation, probed.probe.why) == case.probe, probed


def test_the_page_has_this_table() -> None:
    """`python -m kvtrail.tests.audit.checks.verdicts` prints it."""
    assert page() in PAGE.read_text()


def test_a_limit_is_waited_for_as_long_as_it_asks(stub: Stub) -> None:
    clock = Patience()
    stub.become(Behaviour(first_statuses=(0, 429, 503), retry_after="7"))
    assert diff(stub, FORMS["vllm"], clock=clock, warm=True).diff.outcome == "not_implicated"
    assert clock.waited == [7.0, 7.0]
