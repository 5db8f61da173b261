"""One scrubbed example for each event type, as a plain JSON record.

Tests, documentation and producers in other languages use them.
"""
