"""Which work is checked, by whom, and what follows: decisions over plain data."""
