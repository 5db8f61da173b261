"""A believable fleet, with faults of any family injected at a chosen rate and an answer key beside it."""
