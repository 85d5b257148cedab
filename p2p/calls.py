"""What a host asks of who dials peers through relays, and what that hears of their connections."""

from libp2p.transport.exceptions import OpenConnectionError


class Calls:
    """Of a host that dials nobody through relays. Peer ids all; `relay` is of who carries, or should."""

    async def call(self, relay: str, peer: str) -> tuple[bytes, str]:
        """The token with which a peer is dialled through a relay, and its IP address as the relay tells. Raises
        OpenConnectionError."""
        raise OpenConnectionError(f"{peer} is behind a relay")

    def silent(self, peer: str) -> None:
        """Nothing comes any more of a peer, whose connections are there still."""

    def broken(self, relay: str, peer: str) -> None:
        """A connection that a relay carried was the last to a peer, and ended, not by us."""

    def missed(self, relay: str, peer: str) -> None:
        """A peer was dialled through a relay, and nothing came of it."""

    def agreed(self, peer: str) -> None:
        """A peer said the same hello."""
