"""The plugin's macros, expanded."""

import pytest
from kvtrail.dashboards.macros import UnknownMacro, Window, expand

WINDOW = Window(start_s=100, end_s=700, interval_s=30, variables={"tenant": ("a", "it's"), "all": (), "one": ("x",)})


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("$__timeFilter(t)", "t >= toDateTime(100) AND t <= toDateTime(700)"),
        ("$__timeFilter(f(g(a), b))", None),
        ("$__timeFilter(if(a, (b)))", None),
        (
            "$__timeInterval(toStartOfMinute(t))",
            "toStartOfInterval(toDateTime(toStartOfMinute(t)), INTERVAL 30 second)",
        ),
        ("x / $__interval_s", "x / 30"),
        ("$__fromTime - $__toTime", "toDateTime(100) - toDateTime(700)"),
        ("$__conditionalAll(t IN (${tenant:singlequote}), $tenant)", r"t IN ('a','it\'s')"),
        ("$__conditionalAll(f(a, b), $all)", "1=1"),
        ("${one} $one", "x x"),
        ("SELECT '100%' AS a, b", "SELECT '100%' AS a, b"),
    ],
)
def test_expansion(sql: str, expected: str | None) -> None:
    if expected is None:
        assert expand(sql, WINDOW).count("toDateTime(100)") == 1
    else:
        assert expand(sql, WINDOW) == expected


def test_nested_brackets_stay_together() -> None:
    assert expand("$__timeFilter(if(a, (b), c))", WINDOW).startswith("if(a, (b), c) >= ")


@pytest.mark.parametrize(
    "sql",
    [
        "$__nothing(x)",
        "$__timeFilter(a, b)",
        "$__timeFilter(a",
        "$__conditionalAll(a, $unheard)",
        "$__conditionalAll(a, b, $all)",  # the plugin leaves it unexpanded: its condition may hold no bare comma
        "$unheard",
        "${unheard:singlequote}",
    ],
)
def test_what_nobody_would_expand_is_refused(sql: str) -> None:
    with pytest.raises(UnknownMacro):
        expand(sql, WINDOW)
