"""Commands that make and look at a node's folder."""
