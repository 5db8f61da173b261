"""The Integrity dashboard and its alert rules: is anything being served that should not be, and are we looking?"""

from grafana_foundation_sdk.builders import dashboard as dashboard_builder
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import dashboard
from grafana_foundation_sdk.models.common import DataSourceRef

from . import queries
from .alerts import AlertRule
from .panels import GREEN, ORANGE, RED, YELLOW, Link, Place, stat, steps, table, timeseries
from .shapes import PanelQuery
from .target import PLUGIN, VARIABLE_REF, Target

UID = "kvtrail-integrity"
OPEN_FINDINGS_PANEL = 1
EVENT_RATE_PANEL = 3
CHECKS_PANEL = 15

CONSOLE = "http://127.0.0.1:8780"
"""Default of the variable `console`: where `kvtrail serve` is reached from a reader's browser."""

_FIELD = '${{__data.fields["{0}"]:percentencode}}'
_CONSOLE = "${console:raw}"

RULES: tuple[AlertRule, ...] = (
    AlertRule(
        uid="kvtrail-critical-finding",
        title="Critical cache integrity finding",
        query=queries.CRITICAL_ALERT,
        operator="gt",
        threshold=0,
        window_s=600,
        for_s=0,
        dashboard_uid=UID,
        panel=OPEN_FINDINGS_PANEL,
        runbook="critical-finding.md",
        severity="page",
        summary="A cached entry was served to somebody it does not belong to.",
        description="Run `kvtrail findings --severity critical`, then `kvtrail investigate --finding ID`. If it is "
        "still happening, bump the epoch: it makes the wrong entries unreachable on the next request.",
    ),
    AlertRule(
        uid="kvtrail-events-stopped",
        title="Cache lifecycle events stopped",
        query=queries.EVENTS_ALERT,
        operator="lt",
        threshold=1,
        window_s=600,
        for_s=300,
        dashboard_uid=UID,
        panel=EVENT_RATE_PANEL,
        runbook="events-stopped.md",
        severity="page",
        summary="No lifecycle event has reached ClickHouse for ten minutes: nothing is being watched.",
        description="Producers, Kafka or the sink: the runbook tells which in three commands.",
    ),
    AlertRule(
        uid="kvtrail-check-failed",
        title="Active check failed or keeps coming to no result",
        query=queries.CHECK_ALERT,
        operator="gt",
        threshold=0,
        window_s=600,
        for_s=0,
        dashboard_uid=UID,
        panel=CHECKS_PANEL,
        runbook="check-failed.md",
        severity="ticket",
        summary="A canary, spot check, bypass diff or isolation probe failed inside one tenant, or proves nothing any "
        "more.",
        description="Open the request in the console: `kvtrail investigate REQUEST` shows the check, the entry and who "
        "made it.",
    ),
)


def integrity() -> dashboard.Dashboard:
    """The dashboard. Panel ids are part of its interface: alerts and links know panels by them."""
    board = (
        dashboard_builder.Dashboard("kvtrail: Integrity")
        .uid(UID)
        .description(
            "Wrong reuse of cached KV, state and responses: who was served what, and whether kvtrail sees it all."
        )
        .tags(["kvtrail"])
        .readonly()
        .timezone("utc")
        .time("now-6h", "now")
        .refresh("30s")
        .tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
        .with_variable(
            dashboard_builder.DatasourceVariable("datasource")
            .label("Data source")
            .description("The ClickHouse that holds kvtrail's tables.")
            .type(PLUGIN)
        )
        .with_variable(_tenants(queries.TENANTS))
        .with_variable(
            dashboard_builder.TextBoxVariable("console")
            .label("Console")
            .description("Address of `kvtrail serve`, for the links in the tables.")
            .default_value(CONSOLE)
            .current(dashboard.VariableOption(selected=True, text=CONSOLE, value=CONSOLE))
        )
        .annotation(_BuiltIn())
        .annotation(
            dashboard_builder.AnnotationQuery()
            .name("Critical findings")
            .datasource(VARIABLE_REF)
            .enable(True)
            .hide(False)
            .icon_color(RED)
            .target(Target(queries.CRITICAL_MARKS))
        )
        .link(
            dashboard_builder.DashboardLink("Console")
            .type(dashboard.DashboardLinkType.LINK)
            .icon("external link")
            .url(_CONSOLE)
            .target_blank(True)
        )
    )
    for panel in (*_tiles(), *_wrong(), *_traffic(), *_checks()):
        board = board.with_panel(panel)
    return board.build()


def _tiles() -> tuple[Builder[dashboard.Panel], ...]:
    some_is_bad = steps((None, GREEN), (1, RED))
    some_is_odd = steps((None, GREEN), (1, YELLOW))
    return (
        stat(
            queries.OPEN_FINDINGS, Place(id=OPEN_FINDINGS_PANEL, x=0, y=0, w=4, h=4),
            "Open critical and high findings", "locale", some_is_bad,
        ),
        stat(
            queries.TENANTS_AFFECTED, Place(id=2, x=4, y=0, w=4, h=4), "Tenants affected", "locale", some_is_bad,
        ),
        stat(
            queries.EVENT_RATE, Place(id=EVENT_RATE_PANEL, x=8, y=0, w=4, h=4), "Events", "eps",
            steps((None, GREEN)), "No traffic",
        ),
        stat(
            queries.NEWEST_EVENT_AGE, Place(id=4, x=12, y=0, w=4, h=4), "Newest event is", "s",
            steps((None, GREEN), (60, YELLOW), (600, RED)), "No events",
        ),
        stat(queries.DEAD_LETTERS, Place(id=5, x=16, y=0, w=4, h=4), "Dead letters", "locale", some_is_odd),
        stat(
            queries.STREAM_GAPS, Place(id=6, x=20, y=0, w=4, h=4), "Streams with gaps", "locale",
            steps((None, GREEN), (1, ORANGE)),
        ),
    )  # fmt: skip


def _wrong() -> tuple[Builder[dashboard.Panel], ...]:
    to_incident = Link(
        column="cause", title="Open the incident", url=f"{_CONSOLE}/incidents/{_FIELD.format('incident')}"
    )
    to_finding = Link(
        column="cause",
        title="Investigate the finding",
        url=f"{_CONSOLE}/investigate?finding={_FIELD.format('finding')}",
    )
    to_request = Link(
        column="request",
        title="Investigate the request",
        url=f"{_CONSOLE}/investigate?request={_FIELD.format('request')}",
    )
    return (
        timeseries(
            queries.FINDINGS_BY_CAUSE, Place(id=7, x=0, y=4, w=10, h=9), "Findings by cause", "locale", stacked=True,
            no_value="None in this time range",
        ),
        table(
            queries.INCIDENTS, Place(id=8, x=10, y=4, w=14, h=9), "Incidents by root cause",
            units={"first": "dateTimeAsIso", "last": "dateTimeAsIso"}, links=(to_incident,),
        ),
        table(
            queries.WRONG_HITS, Place(id=9, x=0, y=13, w=16, h=10), "Latest wrong hits",
            units={"time": "dateTimeAsIso"}, links=(to_finding, to_request),
        ),
        table(queries.TENANT_MATRIX, Place(id=10, x=16, y=13, w=8, h=10), "Whose entries were served to whom")
        .with_transformation(
            dashboard.DataTransformerConfig(
                id_val="groupingToMatrix",
                options={"columnField": "requester", "rowField": "creator", "valueField": "hits", "emptyValue": "zero"},
            )
        ),
    )  # fmt: skip


def _traffic() -> tuple[Builder[dashboard.Panel], ...]:
    return (
        timeseries(queries.REUSE_BY_TENANT, Place(id=11, x=0, y=23, w=9, h=9), "Hits and creates by tenant", "ops"),
        timeseries(queries.LATENCY, Place(id=12, x=9, y=23, w=8, h=9), "Pipeline latency", "s"),
        table(
            queries.COVERAGE, Place(id=13, x=17, y=23, w=7, h=9), "Identity known on hits",
            units={"known": "percentunit"}, no_value="No hits in this time range",
        ),
    )  # fmt: skip


def _checks() -> tuple[Builder[dashboard.Panel], ...]:
    to_request = Link(
        column="request",
        title="Investigate the request",
        url=f"{_CONSOLE}/investigate?request={_FIELD.format('request')}",
    )
    return (
        timeseries(
            queries.CHECKS_BY_RESULT, Place(id=14, x=0, y=32, w=9, h=9), "Active checks", "locale", stacked=True,
            no_value="None in this time range",
        ),
        table(
            queries.CHECKS_NOT_PASSED, Place(id=CHECKS_PANEL, x=9, y=32, w=15, h=9), "Checks that did not pass",
            units={"time": "dateTimeAsIso"}, links=(to_request,),
        ),
    )  # fmt: skip


def _tenants(query: PanelQuery) -> dashboard_builder.QueryVariable:
    return (
        dashboard_builder.QueryVariable("tenant")
        .label("Tenant")
        .description("Only findings with this tenant on either side, and only its traffic.")
        .datasource(VARIABLE_REF)
        .query({"editorType": "sql", "rawSql": query.text})
        .definition(query.text)
        .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(dashboard.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .current(dashboard.VariableOption(selected=True, text=["All"], value=["$__all"]))
    )


class _BuiltIn(Builder[dashboard.AnnotationQuery]):
    """Grafana's own annotation, which draws alert states and the marks people set; the SDK leaves it out."""

    def build(self) -> dashboard.AnnotationQuery:
        return dashboard.AnnotationQuery(
            name="Annotations & Alerts",
            datasource=DataSourceRef(type_val="grafana", uid="-- Grafana --"),
            enable=True,
            hide=True,
            icon_color="rgba(0, 211, 255, 1)",
            type_val="dashboard",
            built_in=1,
        )
