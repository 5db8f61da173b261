"""Rules: pure functions over one subject, in the order in which they name its cause, with metadata per cause."""

from ..verdicts import CreateRule, HitRule
from .accounting import computed, reused
from .completeness import unmatched
from .creation import caching_forbidden, contradicts_key, incomplete, place_taken, underspecified_key
from .identity import identity, position
from .lifecycle import age, expired, failed, invalidated, uncommitted
from .registry import RULES, Rule
from .storage import component, payload, stale_handle

HIT_RULES: tuple[HitRule, ...] = (
    stale_handle,
    unmatched,
    payload,
    component,
    identity,
    position,
    uncommitted,
    failed,
    invalidated,
    expired,
    age,
    reused,
)
"""One hit has one finding: the first of these."""

CREATE_RULES: tuple[CreateRule, ...] = (
    computed,
    incomplete,
    contradicts_key,
    caching_forbidden,
    place_taken,
    underspecified_key,
)
"""One create has one finding: the loudest of these, the first among equals. What a later hit can make louder stands
before what it equals, so that the cause does not depend on when the hit is seen."""

__all__ = ["CREATE_RULES", "HIT_RULES", "RULES", "Rule"]
