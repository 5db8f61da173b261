"""The same key as a `PrefixKey`, with what is already there filled in."""

from collections.abc import Mapping

from ...schemas.identity import CORE, DIMENSIONS

_MADE_BY = {
    "template_digest": "digest_template(rendered_template)",
    "tool_schema_digest": "digest_tools(tools)",
    "token_ids_digest": "digest_token_ids(token_ids)",
    "weights_digest": "digest_weights(weights_files)",
    "corpus_digest": "digest_corpus(documents)",
}
_CONTENT_BY = {
    "template_digest": "digest_template", "tool_schema_digest": "digest_tools", "token_ids_digest": "digest_token_ids",
    "weights_digest": "digest_weights", "corpus_digest": "digest_corpus",
}  # fmt: skip
_TEXTS = frozenset({"prompt", "messages", "prompt_text"})


def suggest(known: Mapping[str, tuple[str, str]]) -> str:
    """Python source. `known`: dimension -> (source, form)."""
    names = [*CORE, *(name for name in DIMENSIONS if name in known and name not in CORE)]
    lines: list[tuple[str, str]] = []
    for name in names:
        source, form = known.get(name, ("", ""))
        if not source:
            lines.append((f"{name}={_MADE_BY.get(name, name)},", "missing"))
        elif DIMENSIONS[name].form != "digest" or form == "digest":
            lines.append((f"{name}={source},", "" if len(source) < 60 else "shortened here"))
        elif name in _CONTENT_BY and source.split(".")[-1] not in _TEXTS:
            lines.append((f"{name}={_CONTENT_BY[name]}({source}),", ""))
        elif name in _MADE_BY:
            lines.append((f"{name}={_MADE_BY[name]},", f"from {source}"))
        else:
            lines.append((f"{name}=digest_bytes({source}),", ""))
    width = max(len(line) for line, _ in lines)
    body = "\n".join(f"    {line:<{width}}  # {note}" if note else f"    {line}" for line, note in lines)
    return f"PrefixKey(\n{body}\n).fingerprint()"
