"""The language every room speaks: identities, events, facts, findings, their wire form and their errors."""
