"""What an engine embeds: the publisher, its transports, facts, and helpers for prompt assemblers.

`LifecyclePublisher` is imported when it is first asked for, so that importing this room costs nothing.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .publisher import LifecyclePublisher

__all__ = ["LifecyclePublisher"]


def __getattr__(name: str) -> Any:
    if name == "LifecyclePublisher":
        from .publisher import LifecyclePublisher

        return LifecyclePublisher
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
