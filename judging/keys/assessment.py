"""A key expression assessed: dimension by dimension, and what else is wrong with it."""

from collections.abc import Iterator

from msgspec import Struct

from ...schemas.dimensions import TENSORS, EntryKind
from ...schemas.identity import CORE, DIMENSIONS
from ..comparison import SETTLED_BY_TOKENS
from .consequences import BY_NAME, MISSING, case_of, rule_of
from .digesting import ENOUGH_BITS, SAFE_BITS, WEAK, odds
from .expression import read_key
from .parts import Expression, Part
from .suggestion import suggest
from .vocabulary import CLIENT_CHOSEN, Form, look_up

COVERED, BY_ITS_NAME, SETTLED, TRUNCATED, ABSENT = "covered", "by name only", "settled", "truncated", "missing"
_HOLDS_NAMES = {
    "weights_digest": ("model_id", "resolved_model"),
    "template_digest": ("template_id",),
    "adapter_digest": ("adapter_name",),
}
"""Digest dimension -> the dimensions that are its names."""
_WHOLE_PREFIX = ("token_ids_digest", "prefix_digest")


class Coverage(Struct, frozen=True, kw_only=True):
    """One dimension. `status`: covered, by name only, settled (by equal token ids), truncated or missing. `source`:
    the part of the key that stands for it; `rule`, `case`: the failure its absence invites, and where it was seen."""

    dimension: str
    title: str
    status: str
    core: bool
    source: str = ""
    because: str = ""
    rule: str = ""
    case: str = ""


class Problem(Struct, frozen=True, kw_only=True):
    """Something wrong beside the dimensions. `fatal`: different content can get equal keys, or equal content others."""

    what: str
    because: str
    rule: str = ""
    case: str = ""
    fatal: bool = False


class Assessment(Struct, frozen=True, kw_only=True):
    """`verdict` in one sentence; `ok`: no core dimension is missing and nothing fatal was found."""

    expression: str
    kind: str
    ok: bool
    verdict: str
    dimensions: tuple[Coverage, ...]
    problems: tuple[Problem, ...]
    unknown: tuple[str, ...]
    suggestion: str


def assess(text: str, kind: EntryKind = "kv") -> Assessment:
    """Assess a key expression for entries of a kind. Raises `InvalidField` for what is no expression."""
    found = read_key(text)
    known, unknown = _understood(found)
    dimensions = tuple(_dimensions(found, known, kind))
    problems = tuple(_problems(found))
    bad = [one for one in dimensions if one.core and one.status not in (COVERED, SETTLED)]
    fatal = [problem for problem in problems if problem.fatal]
    return Assessment(
        expression=text.strip(),
        kind=kind,
        ok=not bad and not fatal,
        verdict=_verdict(bad, fatal, unknown),
        dimensions=dimensions,
        problems=problems,
        unknown=unknown,
        suggestion=suggest({name: (part.source, form) for name, (part, form) in known.items()}),
    )


Known = dict[str, tuple[Part, Form]]


def _understood(found: Expression) -> tuple[Known, tuple[str, ...]]:
    """Dimension -> the best part that stands for it; and the sources of parts that nobody understands."""
    known: Known = {}
    unknown: list[str] = []
    for part in found.parts:
        read = _meaning(part)
        if read is None:
            unknown.append(part.source)
            continue
        dimension, form = read
        if form == "name" and dimension not in ("model_id", "resolved_model", "template_id", "adapter_name"):
            dimension = f"{dimension}:name"
        before = known.get(dimension)
        if before is None or _rank(part, form) > _rank(*before):
            known[dimension] = part, form
    return known, tuple(dict.fromkeys(unknown))


def _meaning(part: Part) -> tuple[str, Form] | None:
    if part.keyword in DIMENSIONS:
        form: Form = "digest" if DIMENSIONS[part.keyword].form == "digest" else "value"
        said = look_up(part.name)
        # A name in a digest's place is refused when the key is made, so that it cannot be one here by accident.
        return part.keyword, (said[1] if said is not None and said[0] == part.keyword else form)
    if part.dimension:
        return part.dimension, "digest"
    return look_up(part.name) or (look_up(part.keyword) if part.keyword else None)


def _rank(part: Part, form: Form) -> tuple[int, int]:
    return {"name": 0, "value": 1, "content": 2, "digest": 3}[form], part.bits if part.bits is not None else 1024


def _dimensions(found: Expression, known: Known, kind: EntryKind) -> Iterator[Coverage]:
    whole = any(name in known and not _short_digest(*known[name]) for name in _WHOLE_PREFIX) and kind in TENSORS
    for name in sorted({*_core(kind), *(name.partition(":")[0] for name in known)}, key=list(DIMENSIONS).index):
        if kind in DIMENSIONS[name].kinds or name in known:
            yield _coverage(name, known, whole, name in _core(kind))


def _core(kind: EntryKind) -> tuple[str, ...]:
    """What a key for entries of a kind cannot do without: of the core dimensions, those that matter to them."""
    core = tuple(name for name in CORE if kind in DIMENSIONS[name].kinds)
    return (*core, "media_digest") if kind == "media" else core


def _coverage(name: str, known: Known, whole: bool, core: bool) -> Coverage:
    declared = DIMENSIONS[name]

    def said(
        status: str, source: str = "", because: str = "", *, by_name: bool = False, fault: bool = True
    ) -> Coverage:
        rule = rule_of(name, by_name) if fault else ""
        return Coverage(
            dimension=name, title=declared.title, status=status, core=core, source=source, because=because,
            rule=rule, case=case_of(rule) if rule else "",
        )  # fmt: skip

    if name in known:
        part, form = known[name]
        if _short_digest(part, form):
            left = odds(part.bits) if part.bits is not None else f"cut to {part.cut} characters"
            return said(TRUNCATED, part.source, f"{left}.")
        if form == "name" and declared.form == "digest":
            return said(BY_ITS_NAME, part.source, BY_NAME.get(name, ""), by_name=True)
        optional = "Only under a condition: check both branches." if part.optional else ""
        opaque = f"As far as {part.through[0]}() keeps it." if part.through and not optional else ""
        return said(COVERED, part.source, optional or opaque, fault=False)
    if name == "token_ids_digest" and "prefix_digest" in known:
        return said(COVERED, known["prefix_digest"][0].source, "The cumulative prefix covers its tokens.", fault=False)
    if declared.yields_to in known and not _short_digest(*known[declared.yields_to]):
        source = known[declared.yields_to][0].source
        return said(
            SETTLED, source, f"The {DIMENSIONS[declared.yields_to].title} says more than the name.", fault=False
        )
    names = [known[each] for each in (*_HOLDS_NAMES.get(name, ()), f"{name}:name") if each in known]
    if whole and name in SETTLED_BY_TOKENS:
        return said(
            SETTLED, "", "Equal token ids settle it for KV and state; a cache of responses needs it.", fault=False
        )
    if names:
        return said(BY_ITS_NAME, names[0][0].source, BY_NAME.get(name, ""), by_name=True)
    return said(ABSENT, "", MISSING.get(name, f"Entries that differ in {declared.title} meet."))


def _short_digest(part: Part, form: Form) -> bool:
    if part.bits is not None and form in ("digest", "content"):
        return part.bits < ENOUGH_BITS
    return part.cut is not None and (part.cut * 4 < ENOUGH_BITS if form == "digest" else True)


def _problems(found: Expression) -> Iterator[Problem]:
    for what, source in dict.fromkeys(found.notes):
        yield from _noted(what, source)
    if found.glued:
        pairs = ", between ".join(f"{one} and {two}" for one, two in dict.fromkeys(found.glued))
        yield _problem(
            f"nothing stands between {pairs}",
            "'ab' + 'c' and 'a' + 'bc' are the same key. Put a separator that neither can hold, or use PrefixKey.",
            "KEY_COLLISION", fatal=True,
        )  # fmt: skip
    loose = [source for pair in found.separated if all(_free_text(found, one) for one in pair) for source in pair]
    if loose:
        yield _problem(
            f"{', '.join(dict.fromkeys(loose))} are told apart by their order and a separator only",
            "If one can hold the separator, or be left out, two keys become one. Tag the parts, or use PrefixKey.",
            "KEY_COLLISION",
        )  # fmt: skip
    if found.bits is not None and found.bits < SAFE_BITS:
        fatal = found.bits < ENOUGH_BITS
        why = "" if fatal else " Chance is no danger; somebody who looks for two prompts with one key finds them."
        yield _problem("the whole key is short", f"{odds(found.bits)}.{why}", "KEY_COLLISION", fatal=fatal)
    for part in found.parts:
        read = _meaning(part)
        if part.client or part.name in CLIENT_CHOSEN:
            yield _problem(
                f"{part.source} is chosen by the requester",
                "It proves nothing about content, and two requesters can choose the same one.",
                "KEY_CLIENT_CONTROLLED", fatal=part.client and read is not None and read[0] == "tenant_id",
            )  # fmt: skip
        if part.bits is not None and ENOUGH_BITS <= part.bits < SAFE_BITS and found.bits is None:
            yield _problem(f"{part.source} is cut to {part.bits} bits", f"{odds(part.bits)}.", "KEY_COLLISION")
    for name in sorted(WEAK.intersection(found.hashes)):
        yield _problem(
            f"{name} is no cryptographic hash today",
            "Whoever chooses the input can make two prompts meet. Use SHA-256 or BLAKE2.", "KEY_COLLISION",
        )  # fmt: skip


def _noted(what: str, source: str) -> Iterator[Problem]:
    if what == "builtin_hash":
        yield _problem(
            f"{source} is Python's built-in hash",
            "It differs in every process unless PYTHONHASHSEED is fixed, so nothing is found after a restart or on "
            "another node; and 61 bits that nobody made to resist collisions.", "KEY_DRIFT", fatal=True,
        )  # fmt: skip
    elif what == "builtin_id":
        yield _problem(
            f"{source} is an object's address", "The next object at that address gets the same key.", "KEY_COLLISION",
            fatal=True,
        )  # fmt: skip
    elif what == "unordered":
        yield _problem(
            source, "The same members can come in another order and make another key.", "KEY_DRIFT", fatal=True
        )
    elif what == "unsorted":
        yield _problem(
            f"{source} follows the order of insertion",
            "Equal content in another order makes another key. Sort it: json.dumps(..., sort_keys=True).", "KEY_DRIFT",
        )  # fmt: skip
    elif what == "combined":
        yield _problem(
            f"parts are combined by arithmetic ({source})", "Different parts can give one number.", "KEY_COLLISION"
        )
    elif what == "sliced":
        yield _problem(f"{source} is cut to a length that is not written here", "See that at least 128 bits are left.")


def _problem(what: str, because: str, rule: str = "", *, fatal: bool = False) -> Problem:
    return Problem(what=what, because=because, rule=rule, case=case_of(rule) if rule else "", fatal=fatal)


def _free_text(found: Expression, source: str) -> bool:
    """Whether a part can hold any text, a separator too: names and what nobody understands, not digests."""
    for part in found.parts:
        if part.source == source:
            read = _meaning(part)
            return not part.hashed and (read is None or read[1] in ("name", "value"))
    return False


def _verdict(bad: list[Coverage], fatal: list[Problem], unknown: tuple[str, ...]) -> str:
    told: list[str] = []
    for status, words in ((ABSENT, "misses"), (BY_ITS_NAME, "has only the name of"), (TRUNCATED, "cuts short")):
        titles = [one.title for one in bad if one.status == status]
        if titles:
            told.append(f"{words} {', '.join(titles)}")
    if told:
        verdict = f"This key {'; '.join(told)}."
    elif fatal:
        verdict = "Every core dimension is in this key, and it can still be wrong."
    else:
        verdict = "Every core dimension is covered."
    if fatal:
        verdict += f" {len(fatal)} problem(s) beside that."
    if unknown and (bad or fatal):
        verdict += " Parts that are not understood may hold what is missed."
    return verdict
