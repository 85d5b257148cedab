"""The node's place on the ledger, and when its operator wants it to work."""
