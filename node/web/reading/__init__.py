"""What the pages show of a ledger, as plain data."""
