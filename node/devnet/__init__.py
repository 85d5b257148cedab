"""A whole run on one machine, of real processes: for demonstrations, and for tests."""
