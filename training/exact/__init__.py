"""Arithmetic whose bits depend on no machine: what the manifest's `arithmetic = "exact"` means."""
