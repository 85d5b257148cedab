"""A node's folder: settings, keys, logs, and the ledger they lead to."""
