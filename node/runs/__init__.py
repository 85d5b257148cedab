"""Runs of a ledger: created, found, their history, their published versions."""
