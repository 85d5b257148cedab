"""Commands of whoever checks a run."""
