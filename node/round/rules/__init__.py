"""What every member decides alike, from the ledger and signed statements alone: pure functions."""
