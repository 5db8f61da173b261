"""Questions to a syntax tree."""

import ast


def added(node: ast.expr) -> list[ast.expr]:
    """`a + b + c` as its operands; f-strings inside are opened."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return added(node.left) + added(node.right)
    if isinstance(node, ast.JoinedStr):
        return [value.value if isinstance(value, ast.FormattedValue) else value for value in node.values]
    return [node]


def slice_length(cut: ast.Slice) -> int | None:
    """Characters that a slice with constant bounds leaves."""

    def bound(node: ast.expr | None) -> int | None:
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            inner = bound(node.operand)
            return None if inner is None else -inner
        return node.value if isinstance(node, ast.Constant) and isinstance(node.value, int) else None

    lower, upper = bound(cut.lower), bound(cut.upper)
    if cut.step is not None or (cut.upper is not None and upper is None) or (cut.lower is not None and lower is None):
        return None
    if upper is None:
        return -lower if lower is not None and lower < 0 else None
    length = upper - (lower or 0)
    return length if upper > 0 and (lower or 0) >= 0 and length > 0 else None


def whole_number(node: ast.expr) -> int | None:
    """A positive number that is written out: `65536`, `1 << 16`, `2**16`, `(1 << 16) - 1`; None for anything else."""
    match node:
        case ast.Constant(value=int(number)):
            return number if 0 < number < 2**512 else None
        case ast.BinOp(left=left, op=op, right=right):
            one, two = whole_number(left), whole_number(right)
            if one is None or two is None:
                return None
            if isinstance(op, ast.Sub):
                return one - two if one > two else None
            if isinstance(op, ast.LShift | ast.Pow) and one.bit_length() <= 8 and two <= 64:
                return one << two if isinstance(op, ast.LShift) else one**two
    return None


def called(node: ast.expr) -> str | None:
    return name_of(node.func) if isinstance(node, ast.Call) else None


def name_of(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def root_is(node: ast.expr | None, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def is_true(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def chain(node: ast.expr) -> list[str]:
    """`request.headers["x"]` as its names, outermost last."""
    match node:
        case ast.Name(id=name):
            return [name]
        case ast.Attribute(value=value, attr=name):
            return [*chain(value), name]
        case ast.Subscript(value=value, slice=ast.Constant(value=str(name))):
            return [*chain(value), name]
        case ast.Subscript(value=value):
            return chain(value)
        case ast.Call(func=ast.Attribute(value=value, attr="get"), args=[ast.Constant(value=str(name)), *_]):
            return [*chain(value), name]
        case ast.Call(func=func):
            return chain(func)
    return []


def short(node: ast.AST) -> str:
    """A node as written, on one line of a bounded length."""
    text = ast.unparse(node)
    return text if len(text) <= 60 else f"{text[:57]}..."
