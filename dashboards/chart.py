"""Time series as SVG, for the preview: bars or lines, a grid, a legend. No script."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape

from .formats import human

COLOURS = ("#73bf69", "#f2cc0c", "#8ab8ff", "#ff780a", "#f2495c", "#5794f2", "#b877d9", "#70dbed")
_LEFT, _BOTTOM, _TOP = 66.0, 20.0, 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """The window that is drawn, in Unix seconds, and the width of one point."""

    start_s: int
    end_s: int
    interval_s: int


@dataclass(frozen=True, slots=True)
class _Plane:
    """Where times and values lie on the drawing."""

    axis: Axis
    highest: float
    width: float
    height: float

    def x(self, time_s: float) -> float:
        share = (time_s - self.axis.start_s) / max(1, self.axis.end_s - self.axis.start_s)
        return _LEFT + min(1.0, max(0.0, share)) * (self.width - _LEFT)

    def y(self, value: float) -> float:
        return self.height - _BOTTOM - value / self.highest * (self.height - _BOTTOM - _TOP)


Series = Mapping[str, Sequence[tuple[float, float]]]
"""Name -> (Unix seconds, value), in order."""


def chart(series: Series, axis: Axis, unit: str, size: tuple[int, int], *, stacked: bool) -> str:
    """The drawing, `size` pixels wide and high where there is room, and its legend, as HTML."""
    tops: dict[float, float] = {}
    for points in series.values():
        for time_s, value in points:
            tops[time_s] = tops.get(time_s, 0.0) + value if stacked else max(tops.get(time_s, 0.0), value)
    width, height = size
    plane = _Plane(axis, max(tops.values(), default=0.0) or 1.0, width, height)
    marks = _grid(plane, unit)
    below: dict[float, float] = {}
    for at, points in enumerate(series.values()):
        colour = COLOURS[at % len(COLOURS)]
        marks += _bars(points, below, plane, colour) if stacked else _line(points, plane, colour)
    return f'<svg viewBox="0 0 {width} {height}" role="img">{"".join(marks)}</svg>' + _legend(
        series, unit, stacked=stacked
    )


def _grid(plane: _Plane, unit: str) -> list[str]:
    out = []
    for share in (0.0, 0.5, 1.0):
        y = plane.y(plane.highest * share)
        label = escape(human(plane.highest * share, unit))
        out.append(f'<line class="grid" x1="{_LEFT:g}" x2="{plane.width:g}" y1="{y:.1f}" y2="{y:.1f}"/>')
        out.append(f'<text x="{_LEFT - 6:g}" y="{y + 3:.1f}" text-anchor="end">{label}</text>')
    start, end = plane.axis.start_s, plane.axis.end_s
    for step in range(5):
        time_s = start + (end - start) * step / 4
        anchor = "start" if step == 0 else "end" if step == 4 else "middle"
        clock = datetime.fromtimestamp(time_s, UTC).strftime("%H:%M")
        out.append(f'<text x="{plane.x(time_s):.1f}" y="{plane.height - 5:g}" text-anchor="{anchor}">{clock}</text>')
    return out


def _bars(points: Sequence[tuple[float, float]], below: dict[float, float], plane: _Plane, colour: str) -> list[str]:
    out = []
    wide = max(2.0, plane.x(plane.axis.start_s + plane.axis.interval_s) - plane.x(plane.axis.start_s) - 1)
    for time_s, value in points:
        base = below.get(time_s, 0.0)
        below[time_s] = base + value
        top, foot = plane.y(base + value), plane.y(base)
        size = f'width="{wide:.1f}" height="{foot - top:.1f}"'
        out.append(f'<rect x="{plane.x(time_s):.1f}" y="{top:.1f}" {size} fill="{colour}"/>')
    return out


def _line(points: Sequence[tuple[float, float]], plane: _Plane, colour: str) -> list[str]:
    places = [(plane.x(time_s), plane.y(value)) for time_s, value in points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    dots = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in places]
    return [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>', *dots]


def _legend(series: Series, unit: str, *, stacked: bool) -> str:
    rows = []
    for at, (name, points) in enumerate(series.items()):
        values = [value for _, value in points]
        told = [sum(values)] if stacked else [sum(values) / len(values), max(values), values[-1]]
        cells = "".join(f"<td>{escape(human(value, unit))}</td>" for value in told)
        swatch = f'<i style="background:{COLOURS[at % len(COLOURS)]}"></i>'
        rows.append(f"<tr><th>{swatch}{escape(name)}</th>{cells}</tr>")
    heads = "".join(f"<td>{head}</td>" for head in (("total",) if stacked else ("mean", "max", "last")))
    return f'<table class="legend"><tr><th></th>{heads}</tr>{"".join(rows)}</table>'
