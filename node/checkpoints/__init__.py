"""Published versions of a run: pulled, verified, evaluated."""
