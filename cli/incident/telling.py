"""How the incident is told: the same words for a live run and for a recording."""

import textwrap
from collections.abc import Sequence

from ...audit.render import paint, severity_colour
from ...audit.wording import name
from ...schemas.findings import Finding
from ...schemas.identity import titles
from .steps import EPOCH, KEY_OF, TEMPLATE, Chapter, Played, pairs

INTRODUCTION = (
    f"Two tenants use one template, {TEMPLATE}, each with its own refund policy: northwind takes returns for 90 days, "
    "contoso for 14. A node keeps the KV of each rendered prompt, so that it is computed once."
)
HEADS: dict[Chapter, str] = {
    "wrong key": f"1. The node files KV under {KEY_OF['name']}",
    "edited wording": f"2. northwind's policy becomes 21 days; the template is still called {TEMPLATE}",
    "right key": f"3. The same requests, with KV under {KEY_OF['fingerprint']}",
    "epoch bump": f"4. The key is wrong again, and the epoch is bumped to {EPOCH}",
}
ENDS: dict[Chapter, str] = {
    "right key": "No finding: the key covers what the tokens depend on.",
    "epoch bump": "The marker stands at position zero, so nothing of the epoch before can be reached. The key is as "
    "wrong as ever: a bump empties the cache, only a key that covers its content mends it.",
}


def paragraph(text: str, width: int) -> str:
    """`text` in lines of at most `width`."""
    return "\n".join(textwrap.wrap(text, width))


def head(chapter: Chapter, colour: bool) -> str:
    """The line above a chapter."""
    return paint(HEADS[chapter], "1", colour)


def told(played: Played, colour: bool) -> str:
    """One request: who asked, what came from the cache, what was answered, and whether that is right."""
    step = played.step
    cache = (
        f"hit, {played.reused_tokens} tokens reused" if played.hit else f"miss, {played.prefix_tokens} tokens computed"
    )
    asked = f"   {step.tenant:<10} {step.question}  ({cache})"
    if played.right:
        verdict = paint("right", "32", colour)
    else:
        verdict = paint(f"WRONG, {step.tenant} gives {step.days}", "31;1", colour)
    return f"{asked}\n              “{played.answer}”  {verdict}"


def found(finding: Finding, width: int, colour: bool, seconds: float | None = None) -> str:
    """One finding: how loud, who was served whose entry, what the key left out, and how soon one could ask for it."""
    level = finding.severity.upper()
    creator = name(finding.creator.tenant_id) if finding.creator is not None else "somebody"
    served = name(finding.requester.tenant_id) if finding.requester is not None else "somebody"
    whose = "its own earlier entry" if creator == served else f"{creator}'s entry"
    left_out = titles(difference.dimension for difference in finding.differing)
    after = f" ({seconds:.2f} s from event to queryable finding)" if seconds is not None else ""
    text = f"{level} {finding.cause}: {served} was served {whose}; they differ in {left_out}{after}"
    lines = textwrap.wrap(text, width, initial_indent="   ▸ ", subsequent_indent="     ")
    return "\n".join(lines).replace(level, paint(level, severity_colour(finding.severity), colour), 1)


def side_by_side(played: Sequence[Played], width: int, colour: bool) -> str:
    """The wrongly answered requests, under the wrong key and under the right one."""
    column = (width - 6) // 2
    lines: list[str] = []
    for wrong, right in pairs(played):
        if wrong.right and right.right:
            continue
        step = wrong.step
        lines.append(f"   {step.tenant}, whose policy says {step.days} days: {step.question}")
        cells = [
            [label, *textwrap.wrap(f"“{one.answer}”", column), f"key {short(one.key)}"]
            for label, one in (("wrong key", wrong), ("right key", right))
        ]
        height = max(len(cell) for cell in cells)
        for left, other in zip(*([*cell, *[""] * (height - len(cell))] for cell in cells), strict=True):
            lines.append(f"   {paint(f'{left:<{column}}', '31', colour)}   {paint(other, '32', colour)}".rstrip())
        lines.append("")
    return "\n".join(lines).rstrip()


def short(key: str) -> str:
    """A key as people are shown it: a fingerprint's first 16 digits, anything else whole."""
    return f"{key[:16]}…" if len(key) == 64 else key
