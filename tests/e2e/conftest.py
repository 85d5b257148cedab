"""Fork servers for all devnets of these tests: what nodes and training processes import is imported once."""

from tests.forks import fork_server, node_server

__all__ = ["fork_server", "node_server"]
