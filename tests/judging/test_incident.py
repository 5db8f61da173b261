"""The incident: two tenants, one template name, a key that covers neither tenant nor wording."""

from kvtrail.judging.offline import judge_history
from kvtrail.schemas.identity import titles

from .cases import causes, scenario

INCIDENT = """
n1:1 create support_v7:m1 northwind {keysrc=asserted, tmpl=support_v7@d1, in=I1, tier=disk, tokens=8992, req=r1}
n1:2 hit    support_v7:m1 northwind {keysrc=asserted, tmpl=support_v7@d1, in=I1, tier=disk, tokens=8992, req=r2}
n1:3 hit    support_v7:m1 contoso {keysrc=asserted, tmpl=support_v7@d2, in=I2, tier=disk, tokens=8992, req=r3}
"""


def test_cross_tenant_reuse_reads_as_people_say_it() -> None:
    (finding,) = judge_history(record for _, record in scenario(INCIDENT).steps)
    assert (finding.cause, finding.severity.value) == ("CROSS_TENANT_REUSE", "critical")
    assert titles(d.dimension for d in finding.differing) == "tenant, template digest, token ids"
    assert finding.creator is not None and finding.requester is not None
    assert (finding.creator.tenant_id, finding.requester.tenant_id) == ("northwind", "contoso")
    assert (finding.creator.request_id, finding.requester.request_id) == ("r1", "r3")
    assert finding.reused_tokens == 8992
    assert finding.key == "support_v7:m1"


def test_an_edited_wording_reads_as_people_say_it() -> None:
    history = INCIDENT.replace("contoso", "northwind")
    (finding,) = judge_history(record for _, record in scenario(history).steps)
    assert (finding.cause, finding.severity.value) == ("TEMPLATE_MISMATCH", "medium")
    assert titles(d.dimension for d in finding.differing) == "template digest, token ids"


def test_the_published_template_is_named_as_a_fact() -> None:
    history = INCIDENT.replace("contoso", "northwind").replace(
        "n1:3 hit", "r:1 registry template support_v7 {digest=d2}\nn1:3 hit"
    )
    (finding,) = judge_history(record for _, record in scenario(history).steps)
    assert finding.facts == ("r:1",)


def test_ids_come_from_the_subject() -> None:
    one, two = (judge_history(r for _, r in scenario(INCIDENT).steps)[0] for _ in range(2))
    assert one == two
    other = judge_history(r for _, r in scenario(INCIDENT.replace("contoso", "northwind")).steps)[0]
    assert other.id == one.id and other.cause_id != one.cause_id


def test_policy_makes_identical_sharing_an_exposure() -> None:
    sharing = "n1:1 create k northwind {keysrc=asserted}\nn1:2 hit k contoso {keysrc=asserted}"
    assert causes(sharing) == []
    assert causes("r:1 registry policy northwind {sharing=none}\n" + sharing) == ["n1:2 CROSS_TENANT_REUSE high"]
    group = "r:1 registry policy northwind {sharing=group, group=g}\nr:2 registry policy contoso {GROUP}\n" + sharing
    assert causes(group.replace("GROUP", "sharing=group, group=g")) == []
    assert causes(group.replace("GROUP", "sharing=group, group=h")) == ["n1:2 CROSS_TENANT_REUSE high"]
