"""A key expression as its parts. It is parsed, never run: every name stays a name.

Bounded: a longer or deeper text than anybody writes by hand is refused.
"""

import ast
import warnings

from ...schemas.errors import InvalidField
from .parts import Expression
from .reader import Reader

LONGEST = 4096
"""Characters of an expression."""
DEEPEST = 100
"""Levels of nesting."""


def read_key(text: str) -> Expression:
    """The parts of a Python expression. Raises `InvalidField` for what is no expression, or too long or too deep."""
    if len(text) > LONGEST:
        raise InvalidField(
            f"is longer than {LONGEST} characters.", field="EXPRESSION", remedy="Name the key's own line."
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text.strip(), mode="eval")
        _bounded(tree)
        reader = Reader()
        reader.whole(tree.body)
    except (SyntaxError, ValueError):
        raise InvalidField(
            "is no Python expression.",
            field="EXPRESSION",
            remedy="Write the right-hand side only: f'{tenant}:{model}'.",
        ) from None
    except (RecursionError, MemoryError):
        raise _too_deep() from None
    return reader.found


def _too_deep() -> InvalidField:
    return InvalidField("is nested too deeply.", field="EXPRESSION", remedy="Name the key's own line.")


def _bounded(tree: ast.AST) -> None:
    level: list[ast.AST] = [tree]
    for _ in range(DEEPEST):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return
    raise _too_deep()
