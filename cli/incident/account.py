"""Whether the incident went as it must: wrong answers found, right ones silent, nothing twice."""

from collections.abc import Iterable, Sequence

from ...schemas.findings import Finding
from .steps import Played


def problems(played: Sequence[Played], findings: Iterable[Finding]) -> list[str]:
    """What is not as it must be, in sentences; empty when all is well. `findings` are latest revisions."""
    found: list[str] = []
    opened = [finding for finding in findings if finding.status == "open"]
    by_request: dict[str, list[Finding]] = {}
    for finding in opened:
        by_request.setdefault(requester(finding), []).append(finding)
    for one in played:
        step = one.step
        causes = [finding.cause for finding in by_request.pop(one.request_id, [])]
        if causes != ([step.finding] if step.finding else []):
            found.append(
                f"The request '{step.name}' of {step.tenant} should lead to {step.finding or 'no finding'}, and led to "
                f"{', '.join(causes) or 'none'}."
            )
        if one.right != (not step.finding):
            found.append(f"The request '{step.name}' of {step.tenant} was answered: {one.answer!r}.")
    found += [
        f"A finding that nothing explains: {finding.cause} ({finding.id})."
        for rest in by_request.values()
        for finding in rest
    ]
    return found


def requester(finding: Finding) -> str:
    """The request that a finding is about; empty where it is about none."""
    return finding.requester.request_id if finding.requester is not None else ""


def finding_of(played: Played, findings: Iterable[Finding]) -> Finding | None:
    """The open finding about this request."""
    return next((f for f in findings if f.status == "open" and requester(f) == played.request_id), None)
