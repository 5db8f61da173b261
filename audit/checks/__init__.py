"""Active checks: ask a running endpoint, and say whether its cache is implicated."""
