"""The keys of a node, and what its account has signed."""
