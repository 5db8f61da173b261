"""Panels in the house's style: the SDK's builders with the defaults it leaves out (ids, legends, calcs, noValue)."""

from dataclasses import dataclass

from grafana_foundation_sdk.builders import common as common_builder
from grafana_foundation_sdk.builders import dashboard as dashboard_builder
from grafana_foundation_sdk.builders import stat as stat_builder
from grafana_foundation_sdk.builders import table as table_builder
from grafana_foundation_sdk.builders import timeseries as timeseries_builder
from grafana_foundation_sdk.models import common, dashboard

from .shapes import PanelQuery
from .target import VARIABLE_REF, Target

GREEN, YELLOW, ORANGE, RED, BLUE = "green", "yellow", "orange", "red", "blue"
SEVERITY_COLOURS = {"critical": RED, "high": ORANGE, "medium": YELLOW, "low": BLUE, "info": "text"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a panel stands on Grafana's grid of 24 columns, and the id that links and alerts know it by."""

    id: int
    x: int
    y: int
    w: int
    h: int

    @property
    def grid(self) -> dashboard.GridPos:
        """The same, as Grafana says it."""
        return dashboard.GridPos(x=self.x, y=self.y, w=self.w, h=self.h)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A table cell that leads on: `url` may use `${__data.fields["..."]}` and the dashboard's variables."""

    column: str
    title: str
    url: str


def steps(*bounds: tuple[float | None, str]) -> dashboard_builder.ThresholdsConfig:
    """Colours from values: each colour holds from its bound on; the first bound is None."""
    return (
        dashboard_builder.ThresholdsConfig()
        .mode(dashboard.ThresholdsMode.ABSOLUTE)
        .steps([dashboard.Threshold(value=value, color=colour) for value, colour in bounds])
    )


def stat(
    query: PanelQuery, place: Place, title: str, unit: str, thresholds: dashboard_builder.ThresholdsConfig,
    no_value: str = "0",
) -> stat_builder.Panel:  # fmt: skip
    """One number."""
    return (
        stat_builder.Panel()
        .id(place.id)
        .title(title)
        .description(query.why)
        .datasource(VARIABLE_REF)
        .grid_pos(place.grid)
        .with_target(Target(query))
        .unit(unit)
        .no_value(no_value)
        .thresholds(thresholds)
        .color_mode(common.BigValueColorMode.VALUE)
        .graph_mode(common.BigValueGraphMode.NONE)
        .reduce_options(common_builder.ReduceDataOptions().calcs(["lastNotNull"]).fields("").values(False))
    )


def timeseries(
    query: PanelQuery, place: Place, title: str, unit: str, *, stacked: bool = False, no_value: str = "No traffic"
) -> timeseries_builder.Panel:
    """Numbers over time, their mean, maximum and last value in the legend."""
    panel = (
        timeseries_builder.Panel()
        .id(place.id)
        .title(title)
        .description(query.why)
        .datasource(VARIABLE_REF)
        .grid_pos(place.grid)
        .with_target(Target(query))
        .unit(unit)
        .min(0)
        .no_value(no_value)
        .thresholds(steps((None, GREEN)))
        .show_points(common.VisibilityMode.AUTO)
        .fill_opacity(60 if stacked else 8)
        .legend(
            common_builder.VizLegendOptions()
            .show_legend(True)
            .display_mode(common.LegendDisplayMode.TABLE)
            .placement(common.LegendPlacement.BOTTOM)
            .calcs(["sum"] if stacked else ["mean", "max", "lastNotNull"])
        )
        .tooltip(
            common_builder.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI).sort(common.SortOrder.DESCENDING)
        )
    )
    if stacked:
        panel = panel.draw_style(common.GraphDrawStyle.BARS).stacking(
            common_builder.StackingConfig().mode(common.StackingMode.NORMAL)
        )
    return panel


def table(
    query: PanelQuery, place: Place, title: str, *, units: dict[str, str] | None = None, links: tuple[Link, ...] = (),
    no_value: str = "None in this time range",
) -> table_builder.Panel:  # fmt: skip
    """Rows. `units`: column -> unit; a column named `severity` is coloured."""
    panel = (
        table_builder.Panel()
        .id(place.id)
        .title(title)
        .description(query.why)
        .datasource(VARIABLE_REF)
        .grid_pos(place.grid)
        .with_target(Target(query))
        .unit("none")
        .no_value(no_value)
        .thresholds(steps((None, GREEN)))
        .filterable(True)
    )
    for column, unit in (units or {}).items():
        panel = panel.override_by_name(column, [dashboard.DynamicConfigValue(id_val="unit", value=unit)])
    for link in links:
        target = [{"title": link.title, "url": link.url, "targetBlank": True}]
        panel = panel.override_by_name(link.column, [dashboard.DynamicConfigValue(id_val="links", value=target)])
    if "severity" in query.columns:
        panel = panel.override_by_name("severity", _severity())
    return panel


def _severity() -> list[dashboard.DynamicConfigValue]:
    options = {name: {"color": colour, "index": at} for at, (name, colour) in enumerate(SEVERITY_COLOURS.items())}
    return [
        dashboard.DynamicConfigValue(id_val="mappings", value=[{"type": "value", "options": options}]),
        dashboard.DynamicConfigValue(id_val="custom.cellOptions", value={"type": "color-text"}),
    ]
