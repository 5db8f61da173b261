"""Key expressions read, never run: which dimensions they cover, by digest or by name only, and what they invite."""

from .assessment import Assessment, assess

__all__ = ["Assessment", "assess"]
