"""The terminal table, to the character, and what it does to hostile names, long keys and narrow screens."""

from kvtrail.audit.history import History, Question, build_history
from kvtrail.audit.render import render_table

from .samples import FINDING, INCIDENT, WRONG_HIT

GOLDEN = """\
2026-11-29, times in UTC
12:04:01 cache.create  key=9f3c1a…  tenant=northwind  template=support_v7  tokens=8992  ttl=300s
12:04:44 cache.hit     key=9f3c1a…  tenant=northwind  reused=8992
14:20:09 cache.hit     key=9f3c1a…  tenant=contoso    reused=8992   ← created by northwind: key does not cover tenant, template digest, token ids"""  # noqa: E501 - the line is the contract


def history() -> History:
    return build_history(Question(kind="request", value=WRONG_HIT.request_id), INCIDENT, [FINDING])


def test_table_has_the_shape_of_the_example() -> None:
    assert render_table(history()) == GOLDEN
