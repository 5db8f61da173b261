"""Alert rules: declared once, written as Grafana's HTTP API and as its provisioning files want them.

The two shapes differ in names (`keep_firing_for` / `keepFiringFor`, seconds / `1m`, annotations / fields for the linked
panel), so the second is derived from the first.
"""

import json
from dataclasses import dataclass
from typing import Any, Literal

from grafana_foundation_sdk.builders import alerting as alerting_builder
from grafana_foundation_sdk.builders import expr as expr_builder
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import alerting
from grafana_foundation_sdk.models.common import DataSourceRef

from .shapes import PanelQuery
from .target import DATASOURCE_UID, ClickHouseQuery

FOLDER_UID = "kvtrail"
FOLDER_TITLE = "kvtrail"
GROUP = "kvtrail"
INTERVAL_S = 60
EXPRESSION = "__expr__"


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertRule:
    """One rule: its query gives one number, which is compared with `threshold`.

    `window_s`: how far back the query looks; `for_s`: how long the condition must hold; `panel`: the panel that shows
    the same thing; `runbook`: file in docs/runbooks; `description`: the first thing to do, for somebody just woken.
    """

    uid: str
    title: str
    query: PanelQuery
    operator: Literal["gt", "lt"]
    threshold: float
    window_s: int
    for_s: int
    dashboard_uid: str
    panel: int
    runbook: str
    severity: Literal["page", "ticket"]
    summary: str
    description: str

    def fires(self, value: float | None) -> bool:
        """What Grafana's reduce (last) and threshold would say. No data alerts: the query always returns a row."""
        if value is None:
            return True
        return value > self.threshold if self.operator == "gt" else value < self.threshold


class _Model(Builder[ClickHouseQuery]):
    def __init__(self, query: PanelQuery) -> None:
        self._query = query

    def build(self) -> ClickHouseQuery:
        return ClickHouseQuery(self._query, uid=DATASOURCE_UID)


def api_rule(rule: AlertRule, runbooks: str) -> dict[str, Any]:
    """The rule as the HTTP API takes it. `runbooks`: the address under which docs/runbooks can be read."""
    window = alerting.RelativeTimeRange(from_val=rule.window_s, to=0)
    expression = DataSourceRef(type_val=EXPRESSION, uid=EXPRESSION)
    built = (
        alerting_builder.Rule(rule.title)
        .uid(rule.uid)
        .org_id(1)
        .folder_uid(FOLDER_UID)
        .rule_group(GROUP)
        .condition("C")
        .for_val(f"{rule.for_s}s")
        .keep_firing_for("5m")
        .no_data_state("Alerting")
        .exec_err_state("Error")
        .labels({"severity": rule.severity, "service": "kvtrail"})
        .annotations(
            {
                "__dashboardUid__": rule.dashboard_uid,
                "__panelId__": str(rule.panel),
                "description": rule.description,
                "runbook_url": f"{runbooks.rstrip('/')}/{rule.runbook}",
                "summary": rule.summary,
            }
        )
        .with_query(
            alerting_builder.Query("A")
            .datasource_uid(DATASOURCE_UID)
            .relative_time_range(window)
            .model(_Model(rule.query))
        )
        .with_query(
            alerting_builder.Query("B")
            .datasource_uid(EXPRESSION)
            .relative_time_range(window)
            .model(expr_builder.TypeReduce().ref_id("B").datasource(expression).expression("A").reducer("last"))
        )
        .with_query(
            alerting_builder.Query("C")
            .datasource_uid(EXPRESSION)
            .relative_time_range(window)
            .model(
                expr_builder.TypeThreshold()
                .ref_id("C")
                .datasource(expression)
                .expression("B")
                .conditions(
                    [
                        expr_builder.ExprTypeThresholdConditions().evaluator(
                            expr_builder.ExprTypeThresholdConditionsEvaluator()
                            .type(rule.operator)
                            .params([rule.threshold])
                        )
                    ]
                )
            )
        )
        .build()
    )
    plain: dict[str, Any] = json.loads(json.dumps(built, cls=JSONEncoder))
    return plain


def api_group(rules: tuple[AlertRule, ...], runbooks: str) -> dict[str, Any]:
    """The rule group as the HTTP API takes it."""
    return {
        "title": GROUP,
        "folderUid": FOLDER_UID,
        "interval": INTERVAL_S,
        "rules": [api_rule(rule, runbooks) for rule in rules],
    }


_FILE_NAMES = {"keep_firing_for": "keepFiringFor"}
_NOT_IN_FILES = frozenset({"folderUID", "orgID", "ruleGroup"})


def file_rule(rule: AlertRule, runbooks: str) -> dict[str, Any]:
    """The rule as a provisioning file takes it."""
    source = api_rule(rule, runbooks)
    annotations = source["annotations"]
    out = {_FILE_NAMES.get(name, name): value for name, value in source.items() if name not in _NOT_IN_FILES}
    out["dashboardUid"] = annotations.pop("__dashboardUid__")
    out["panelId"] = int(annotations.pop("__panelId__"))
    return out


def file_groups(rules: tuple[AlertRule, ...], runbooks: str) -> dict[str, Any]:
    """The document of `provisioning/alerting/`. Contact points and policies are left to the organisation: a
    provisioned policy tree replaces the whole one."""
    return {
        "apiVersion": 1,
        "groups": [
            {
                "orgId": 1,
                "name": GROUP,
                "folder": FOLDER_TITLE,
                "interval": f"{INTERVAL_S}s",
                "rules": [file_rule(rule, runbooks) for rule in rules],
            }
        ],
    }
