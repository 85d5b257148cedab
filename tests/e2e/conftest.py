"""One fork server for all devnets of these tests: torch is imported once."""

from tests.forks import fork_server

__all__ = ["fork_server"]
