"""The query of grafana-clickhouse-datasource as a type of Grafana's foundation SDK, which ships none for it."""

from grafana_foundation_sdk.cog import variants
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.common import DataSourceRef

from .shapes import Format, PanelQuery

PLUGIN = "grafana-clickhouse-datasource"
PLUGIN_VERSION = "4.20.0"
DATASOURCE_UID = "kvtrail-clickhouse"
"""Fixed, because alert rules need the literal uid."""

VARIABLE_REF = DataSourceRef(type_val=PLUGIN, uid="${datasource}")
"""What panels use: the dashboard's own choice of data source."""


class ClickHouseQuery(variants.Dataquery):
    """What the plugin's backend reads is `rawSql` and `format`; the rest is for its editor."""

    def __init__(self, query: PanelQuery, uid: str = "${datasource}", ref_id: str = "A") -> None:
        self.query = query
        self.uid = uid
        self.ref_id = ref_id

    def to_json(self) -> dict[str, object]:
        """The target as it stands in a dashboard or an alert rule."""
        return {
            "datasource": {"type": PLUGIN, "uid": self.uid},
            "editorType": "sql",
            "format": int(self.query.format),
            "meta": {},
            "pluginVersion": PLUGIN_VERSION,
            "queryType": "timeseries" if self.query.format is Format.TIMESERIES else "table",
            "rawSql": self.query.text,
            "refId": self.ref_id,
        }


class Target(Builder[ClickHouseQuery]):
    """The builder the SDK's panels ask for."""

    def __init__(self, query: PanelQuery) -> None:
        self._query = query

    def build(self) -> ClickHouseQuery:
        """A target on the dashboard's data source."""
        return ClickHouseQuery(self._query)
