"""Commands that need no other machine: a chain, its contracts, a demo."""
