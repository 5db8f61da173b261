"""Which extra brings what, and the command that installs it here."""

from pathlib import Path

EXTRAS = {
    "faust": "streams",
    "aiohttp": "streams",
    "clickhouse_connect": "audit",
    "chdb": "local",
    "torch": "node",
    "transformers": "node",
    "starlette": "audit",
    "uvicorn": "audit",
    "httpx": "audit",
    "jinja2": "audit",
    "grafana_api": "dashboards",
    "grafana_foundation_sdk": "dashboards",
    "yaml": "dashboards",
}
"""Top-level module -> the extra that brings it."""

NEEDS = {
    "demo": "streams,local,audit,node",
    "up": "streams,local,audit",
    "detect": "streams",
    "sink": "streams",
    "dead-letter": "streams",
    "replay": "streams",
    "backfill": "streams",
    "resolve": "streams",
    "fleet": "streams",
    "notify": "streams",
    "heartbeat": "streams",
    "init": "streams",
    "store": "local",
    "dashboards": "dashboards",
}
"""Command -> the extras that it needs whole, whichever module is missed first."""

ROOT = Path(__file__).resolve().parents[1]


def pip_install(extras: str) -> str:
    """The command that adds `extras` (names with commas between) to this installation: from the clone that it runs
    from, where it does, for the package in an index need not be the same."""
    clone = (ROOT / "pyproject.toml").is_file()
    place = "." if clone and Path.cwd() == ROOT else str(ROOT) if clone else "kvtrail"
    return f"pip install '{place}[{extras}]'"
