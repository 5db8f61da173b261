"""A name for one process start."""

import secrets
import time


def new_incarnation() -> str:
    """A new name: later ones sort behind earlier ones, no two are equal."""
    return f"{time.time_ns() // 1_000_000:011x}{secrets.token_hex(4)}"
