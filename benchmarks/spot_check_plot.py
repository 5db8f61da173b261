"""The spot check's distributions as SVG: one row a kind of entry, one dot a check, the tolerance as a line."""

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, LEFT, ROW, TOP = 1180, 330, 25, 84
LOWEST, HIGHEST = -5.0, 7.0
"""Decades of the error over its tolerance; what lies beyond is drawn at the edge."""
_BELOW = "left of the line the check passes, right of it it fails"
_RIGHT, _WRONG, _LINE, _TEXT, _FAINT = "#2b8a3e", "#c92a2a", "#495057", "#212529", "#dee2e6"


def draw(drawn: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """dtype -> kind of entry -> error over tolerance of each check, as one picture."""
    kinds = list(dict.fromkeys(kind for found in drawn.values() for kind in found))
    panel = (WIDTH - LEFT - 20) / len(drawn) - 20
    height = TOP + ROW * len(kinds) + 54
    marks = [
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        _text(20, 26, "Spot check: error over tolerance, one dot a check", size=16, weight="bold"),
        _text(
            20,
            46,
            "left of the line the check passes, right of it it fails; what lies beyond is drawn at the edge",
            size=12,
            fill=_LINE,
        ),
    ]
    for row, kind in enumerate(kinds):
        y = TOP + ROW * row + ROW / 2
        fill = _RIGHT if kind == "right" else _TEXT
        marks.append(_text(LEFT - 12, y + 4, "right entries" if kind == "right" else kind, anchor="end", fill=fill))
    for number, (dtype, found) in enumerate(drawn.items()):
        marks += _panel(LEFT + number * (panel + 20), panel, dtype, found, kinds)
    body = "\n".join(marks)
    style = "font-family:system-ui,sans-serif;font-size:13px"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'style="{style}" role="img">\n<title>Errors of right and wrong entries over the tolerance</title>\n'
        f"{body}\n</svg>\n"
    )


def _panel(
    left: float, width: float, dtype: str, found: Mapping[str, Sequence[float]], kinds: Sequence[str]
) -> list[str]:
    bottom = TOP + ROW * len(kinds)

    def x(ratio: float) -> float:
        decade = LOWEST if ratio <= 0 else HIGHEST if math.isinf(ratio) else math.log10(ratio)
        return left + (min(max(decade, LOWEST), HIGHEST) - LOWEST) / (HIGHEST - LOWEST) * width

    marks = [_text(left + width / 2, TOP - 12, dtype, anchor="middle", weight="bold")]
    for decade in range(int(LOWEST) + 1, int(HIGHEST), 2):
        at = x(10.0**decade)
        marks.append(_line(at, TOP, bottom, _FAINT))
        label = "1" if decade == 0 else f"10<tspan dy='-5' font-size='9'>{decade}</tspan>"
        marks.append(_text(at, bottom + 18, label, anchor="middle", fill=_LINE, raw=True))
    for row, kind in enumerate(kinds):
        ratios = found.get(kind, ())
        y = TOP + ROW * row + ROW / 2
        wrong = kind != "right"
        if not ratios:
            marks.append(_text(left + 6, y + 4, "not applicable", fill="#868e96", size=11))
            continue
        for place, ratio in enumerate(ratios):
            jitter = ((place * 7919) % 11 - 5) * 1.3
            marks.append(
                f'<circle cx="{x(ratio):.1f}" cy="{y + jitter:.1f}" r="2.2" fill="{_WRONG if wrong else _RIGHT}" '
                'fill-opacity="0.35"/>'
            )
        mistaken = sum((ratio <= 1) == wrong for ratio in ratios)
        if mistaken:
            said = f"{mistaken} of {len(ratios)} {'missed' if wrong else 'false alarms'}"
            marks.append(_text(left + width - 6, y + 4, said, size=11, fill=_LINE, anchor="end"))
    marks.append(_line(x(1.0), TOP, bottom, _LINE, dash="4 3"))
    marks.append(_text(x(1.0), bottom + 36, "tolerance", anchor="middle", fill=_LINE, size=12))
    return marks


def _line(x: float, top: float, bottom: float, colour: str, dash: str = "") -> str:
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top:g}" y2="{bottom:g}" stroke="{colour}"{dashed}/>'


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", fill: str = _TEXT, size: int = 13, weight: str = "normal",
    raw: bool = False,
) -> str:  # fmt: skip
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}" font-size="{size}" '
        f'font-weight="{weight}">{text if raw else escape(text)}</text>'
    )
