"""The audit: what the ledger and the public blobs prove about a run, and what they do not."""
