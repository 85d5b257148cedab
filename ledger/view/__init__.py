"""One run as the contract sees it, recomputed from its events alone. The rules are pure functions."""
