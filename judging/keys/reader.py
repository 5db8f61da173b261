"""Walks an expression's syntax tree and collects the parts of the key."""

import ast
import math
import re
import string
from collections.abc import Iterable
from dataclasses import replace

from ...schemas.errors import InvalidField
from .digesting import BITS
from .parts import Around, Expression, Part
from .syntax import added, called, chain, is_true, name_of, root_is, short, slice_length, whole_number
from .vocabulary import CLIENT_SENT, HELPERS, look_up

MOST_PARTS = 256

_TRANSPARENT = frozenset(
    {
        "str", "repr", "bytes", "encode", "decode", "lower", "upper", "strip", "hexdigest", "digest", "hex", "int",
        "list", "tuple", "sorted", "dumps", "update", "b64encode", "urlsafe_b64encode", "hexlify", "to_bytes",
        "tobytes", "format", "join", "replace", "quote", "casefold", "ascii", "dict", "map", "from_bytes",
        "canonical_json", "model_dump", "model_dump_json", "intdigest", "new", "getvalue", "rstrip", "lstrip", "title",
    }
)  # fmt: skip
_CASE = frozenset({"lower", "upper", "casefold", "strip", "lstrip", "rstrip", "title", "replace"})
_PER_BYTE = frozenset({"digest", "to_bytes"})


_NAMED = re.compile(r"%\((\w{1,64})\)[-#0 +]*[\d.]*[a-zA-Z]")


class Reader:
    """Walks an expression and collects its parts."""

    def __init__(self) -> None:
        self.found = Expression()

    def whole(self, node: ast.expr) -> None:
        self._read(node, Around(whole=True))

    def _read(self, node: ast.expr, around: Around) -> None:
        match node:
            case ast.Constant():
                pass
            case ast.JoinedStr(values=values):
                self._sequence([self._unwrapped(value) for value in values], around)
            case ast.FormattedValue(value=value):
                self._read(value, around)
            case ast.BinOp(op=ast.Add()):
                self._sequence(added(node), around)
            case ast.BinOp(left=ast.Constant(value=str(text)), op=ast.Mod(), right=right):
                self._percent(text, right, around)
            case ast.BinOp(left=left, op=ast.Mod() | ast.BitAnd() as op, right=right) if number := whole_number(right):
                bits = max(1, math.ceil(math.log2(max(2, number + isinstance(op, ast.BitAnd)))))
                self._read(left, self._cut_to(around, bits))
            case ast.BinOp(left=left, right=right):
                self.found.notes.append(("combined", type(node.op).__name__))
                self._read(left, replace(around, whole=False))
                self._read(right, replace(around, whole=False))
            case ast.Tuple(elts=items) | ast.List(elts=items):
                self._each(items, around)
            case ast.Set(elts=items):
                self.found.notes.append(("unordered", "a set has no order"))
                self._each(items, around)
            case ast.Dict(keys=keys, values=values):
                for key, value in zip(keys, values, strict=True):
                    named = key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else ""
                    self._read(value, replace(around, keyword=named or around.keyword, whole=False))
            case ast.IfExp(body=body, orelse=orelse):
                self._each([body, orelse], replace(around, optional=True))
            case ast.BoolOp(values=values):
                self._each(values, replace(around, optional=True))
            case ast.Call():
                self._call(node, around)
            case ast.Subscript(value=value, slice=ast.Slice() as cut):
                self._slice(value, cut, around)
            case ast.Name() | ast.Attribute() | ast.Subscript():
                self._variable(node, around)
            case ast.Starred(value=value) | ast.Await(value=value) | ast.NamedExpr(value=value):
                self._read(value, around)
            case ast.UnaryOp(operand=operand):
                self._read(operand, around)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
                if isinstance(node, ast.SetComp):
                    self.found.notes.append(("unordered", "a set has no order"))
                for loop in node.generators:
                    self._read(loop.iter, replace(around, whole=False))
            case _:
                self._unknown(node, around)

    def _unwrapped(self, node: ast.expr) -> ast.expr:
        return node.value if isinstance(node, ast.FormattedValue) else node

    def _each(self, nodes: Iterable[ast.expr], around: Around) -> None:
        for node in nodes:
            self._read(node, replace(around, whole=False, hashed=""))

    def _sequence(self, nodes: list[ast.expr], around: Around) -> None:
        """Text and variables one after the other, as one text."""
        alone = len([node for node in nodes if not isinstance(node, ast.Constant)]) < 2
        before: ast.expr | None = None
        between = ""
        for node in nodes:
            if isinstance(node, ast.Constant):
                between += str(node.value)
                continue
            if before is not None:
                self._neighbours(short(before), short(node), between)
            before, between = node, ""
            self._read(node, around if alone else replace(around, whole=False, hashed=""))

    def _neighbours(self, one: str, two: str, between: str) -> None:
        if not between:
            self.found.glued.append((one, two))
        elif not any(letter.isalnum() for letter in between):
            self.found.separated.append((one, two))

    def _percent(self, text: str, right: ast.expr, around: Around) -> None:
        names = _NAMED.findall(text)
        if names and not isinstance(right, ast.Tuple | ast.Constant):
            fields: list[ast.expr] = [ast.Subscript(value=right, slice=ast.Constant(value=name)) for name in names]
            self._template([f"%{each}" for each in _NAMED.split(text)[::2]], fields, around)
            return
        items = list(right.elts) if isinstance(right, ast.Tuple) else [right]
        self._template(text.replace("%%", "").split("%"), items, around)

    def _template(self, texts: list[str], items: list[ast.expr], around: Around) -> None:
        """`texts` before, between and behind the items of a format string, the markers still at their front."""
        for index in range(len(items) - 1):
            between = texts[index + 1][1:] if index + 1 < len(texts) else ""
            self._neighbours(short(items[index]), short(items[index + 1]), between)
        self._each(items, around if len(items) == 1 else replace(around, whole=False))

    def _cut_to(self, around: Around, bits: int) -> Around:
        if around.whole:
            self.found.bits = min(bits, self.found.bits or bits)
            return around
        return replace(around, bits=min(bits, around.bits if around.bits is not None else bits))

    def _slice(self, value: ast.expr, cut: ast.Slice, around: Around) -> None:
        length = slice_length(cut)
        if length is None:
            self.found.notes.append(("sliced", short(value)))
            self._read(value, around)
            return
        name = called(value)
        if name in _PER_BYTE:
            self._read(value, self._cut_to(around, length * 8))
        elif name is not None and (name in BITS or name in ("hexdigest", "hex", "hexlify") or name in HELPERS):
            self._read(value, self._cut_to(around, length * 4))
        elif name in ("b64encode", "urlsafe_b64encode"):
            self._read(value, self._cut_to(around, length * 6))
        else:
            self._read(value, replace(around, cut=min(length, around.cut or length)))

    def _call(self, node: ast.Call, around: Around) -> None:
        name = name_of(node.func)
        arguments = [*node.args, *(word.value for word in node.keywords)]
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        if name == "fingerprint" and isinstance(owner, ast.Call) and name_of(owner.func) == "PrefixKey":
            self.found.complete = True
            self._read(owner, around)
        elif name == "PrefixKey" or (name == "dict" and node.keywords):
            for word in node.keywords:
                self._read(word.value, replace(around, keyword=word.arg or "", whole=False))
        elif name in ("hash", "id") and owner is None:
            self.found.notes.append((f"builtin_{name}", short(node)))
            self._each_call(arguments, self._cut_to(around, 61 if name == "hash" else 48))
        elif name in HELPERS:
            self._each_call(arguments, replace(around, dimension=HELPERS[name], hashed=name))
        elif name in BITS or (name == "new" and root_is(owner, "hashlib")):
            self._hash(name, node, around)
        elif name == "join" and owner is not None:
            self._join(owner, arguments, around)
        elif name == "format" and isinstance(owner, ast.Constant) and isinstance(owner.value, str):
            self._format(owner.value, node, around)
        elif name == "get" and owner is not None and node.args and isinstance(node.args[0], ast.Constant):
            self._variable(node, around)
        elif name in ("set", "frozenset"):
            self.found.notes.append(("unordered", f"{name} has no order"))
            self._each_call(arguments, around)
        elif name == "dumps":
            if not any(word.arg == "sort_keys" and is_true(word.value) for word in node.keywords):
                self.found.notes.append(("unsorted", short(node)))
            self._each(node.args, around)
        elif name in _TRANSPARENT:
            self._transparent(name, owner, arguments, around)
        else:
            self._function(node, name, owner, arguments, around)

    def _each_call(self, arguments: list[ast.expr], around: Around) -> None:
        if len(arguments) == 1:
            self._read(arguments[0], around)
        else:
            self._each(arguments, around)

    def _hash(self, name: str, node: ast.Call, around: Around) -> None:
        given = list(node.args)
        if name == "new":
            name = str(given[0].value) if given and isinstance(given[0], ast.Constant) else "unknown"
            given = given[1:]
        bits = BITS.get(name)
        for word in node.keywords:
            if word.arg == "digest_size" and isinstance(word.value, ast.Constant) and isinstance(word.value.value, int):
                bits = max(1, min(64, word.value.value)) * 8
        self.found.hashes.append(name)
        if bits is not None:
            around = self._cut_to(around, bits)
        self._each_call(given, replace(around, hashed=name))

    def _join(self, owner: ast.expr, arguments: list[ast.expr], around: Around) -> None:
        separator = owner.value if isinstance(owner, ast.Constant) else None
        for argument in arguments:
            if isinstance(argument, ast.Tuple | ast.List):
                for one, two in zip(argument.elts, argument.elts[1:], strict=False):
                    self._neighbours(short(one), short(two), str(separator or ""))
            elif not separator:
                self.found.glued.append((f"each of {short(argument)}", "the next"))
            self._read(argument, replace(around, whole=False))

    def _format(self, text: str, node: ast.Call, around: Around) -> None:
        fields: list[ast.expr] = []
        texts: list[str] = []
        words = {word.arg: word.value for word in node.keywords}
        count = 0
        for literal, name, _, _ in string.Formatter().parse(text):
            texts.append(literal if not texts else f" {literal}")
            if name is None:
                continue
            head = name.split(".")[0].split("[")[0]
            at = int(head) if head.isdecimal() and len(head) < 6 else count
            count += not head
            by_place = node.args[at] if at < len(node.args) else None
            given = words.get(head) if head and not head.isdecimal() else by_place
            if given is not None:
                fields.append(given)
        self._template(texts, fields, around)

    def _transparent(self, name: str, owner: ast.expr | None, arguments: list[ast.expr], around: Around) -> None:
        module = isinstance(owner, ast.Name) and owner.id in ("json", "base64", "binascii", "hashlib", "xxhash", "int")
        if owner is not None and not module:
            if name == "repr" or (name in ("model_dump", "model_dump_json") and not arguments):
                self.found.notes.append(("unsorted", short(owner)))
            self._read(owner, around)
            if name in _CASE:
                return
        elif name in ("str", "repr") and any(isinstance(one, ast.Dict | ast.Set) for one in arguments):
            self.found.notes.append(("unsorted", f"{name}({short(arguments[0])})"))
        self._each_call([one for one in arguments if not isinstance(one, ast.Constant)], around)

    def _function(
        self, node: ast.Call, name: str, owner: ast.expr | None, arguments: list[ast.expr], around: Around
    ) -> None:
        """A function whose inside is not known: its own name may say what it gives, else its arguments count."""
        if look_up(name) is not None:
            self._add(name, short(node), replace(around, through=(*around.through, name)), client=False)
            return
        through = replace(around, through=(*around.through, name or "a call"), whole=False)
        before = len(self.found.parts)
        self._each(arguments, through)
        if owner is not None and not isinstance(owner, ast.Name | ast.Attribute):
            self._read(owner, through)
        if len(self.found.parts) == before:
            self._add(name, short(node), around, client=False)

    def _variable(self, node: ast.expr, around: Around) -> None:
        names = chain(node)
        client = any(name in CLIENT_SENT for name in names[:-1])
        self._add(names[-1] if names else "", short(node), around, client=client)

    def _unknown(self, node: ast.expr, around: Around) -> None:
        self._add("", short(node), around, client=False)

    def _add(self, name: str, source: str, around: Around, *, client: bool) -> None:
        if len(self.found.parts) >= MOST_PARTS:
            raise InvalidField(
                f"has more than {MOST_PARTS} parts.", field="EXPRESSION", remedy="Name the key's own line."
            )
        self.found.parts.append(
            Part(
                name=name, source=source, hashed=around.hashed, bits=around.bits, cut=around.cut,
                through=around.through, optional=around.optional, client=client, dimension=around.dimension,
                keyword=around.keyword,
            )
        )  # fmt: skip
