"""Verdicts of checks for machines: numbers and reasons, never what was asked or answered. Fields are added under the
same `schema`, never renamed."""

from typing import Any

import msgspec

from .answers import Answer
from .bypass import Made
from .bypass_words import Told
from .isolation_verdict import Pair, Probe

BYPASS_SCHEMA = "kvtrail.bypass_diff/1"
PROBE_SCHEMA = "kvtrail.isolation_probe/1"


def diff_document(made: Made, told: Told, about: dict[str, Any]) -> dict[str, Any]:
    """The bypass diff for machines: numbers and reasons, never what was answered."""
    return {
        "schema": BYPASS_SCHEMA,
        **about,
        **msgspec.to_builtins(made.diff),
        "headline": told.headline,
        "happened": list(told.happened),
        "steps": list(told.steps),
        "runs": {
            "warmed": made.runs.warmed,
            "reuse": [_run(answer) for answer in made.runs.reuse],
            "bypass": [_run(answer) for answer in made.runs.bypass],
        },
    }


def probe_document(probe: Probe, told: Told, about: dict[str, Any], pairs: tuple[Pair, ...]) -> dict[str, Any]:
    """The isolation probe for machines."""
    return {
        "schema": PROBE_SCHEMA,
        **about,
        **msgspec.to_builtins(probe),
        "headline": told.headline,
        "happened": list(told.happened),
        "steps": list(told.steps),
        "measured": [_pair(pair) for pair in pairs],
    }


def _run(answer: Answer) -> dict[str, Any]:
    return {
        "request_id": answer.request_id,
        "cached_tokens": answer.cached_tokens,
        "prompt_tokens": answer.prompt_tokens,
        "tokens": len(answer.token_ids) if answer.token_ids is not None else None,
        "characters": len(answer.text),
        "key": answer.key,
        "model": answer.model,
        "seconds": round(answer.seconds, 6),
    }


def _pair(pair: Pair) -> dict[str, Any]:
    return {name: _run(answer) for name, answer in msgspec.structs.asdict(pair).items()}
