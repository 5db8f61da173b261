"""kvtrail: the audit trail for KV and prefix caches in LLM inference fleets."""

__version__ = "0.1.0"
