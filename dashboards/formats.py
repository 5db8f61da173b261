"""Numbers and times as Grafana's units would show them, for the preview."""

from datetime import datetime
from typing import Any

_SHORT = ((1e9, " B"), (1e6, " M"), (1e3, " K"))
_SECONDS = ((86400.0, "day"), (3600.0, "hour"), (60.0, "min"))
_RATES = {"cps": "c/s", "ops": "ops/s", "eps": "evt/s"}


def human(value: Any, unit: str) -> str:
    """The value in its unit; what is no number stands as it is."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    match unit:
        case "percentunit":
            return f"{value:.0%}"
        case "locale":
            return f"{value:,.0f}"
        case "s":
            return _seconds(float(value))
    if unit in _RATES:
        return f"{_short(float(value))} {_RATES[unit]}"
    return _short(float(value))


def _short(value: float) -> str:
    for bound, mark in _SHORT:
        if abs(value) >= bound:
            return f"{value / bound:.3g}{mark}"
    return f"{value:.3g}"


def _seconds(value: float) -> str:
    for bound, mark in _SECONDS:
        if value >= bound:
            return f"{value / bound:.3g} {mark}{'s' if mark != 'min' and value >= 2 * bound else ''}"
    return f"{value:.3g} s" if value >= 1 or value == 0 else f"{value * 1000:.3g} ms"
