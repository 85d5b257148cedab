"""Raw logs as a chain node gives them."""

from dlx.ledger.abi import checksum
from dlx.ledger.events import Joined, NodeDeregistered, event_topic

LEDGER, REGISTRY, STRANGER = (checksum(bytes([i]) * 20) for i in (1, 2, 3))
ACCOUNT = checksum(b"\x0a" * 20)
RUN, OTHER = b"\x10" * 32, b"\x20" * 32


def joined(run: bytes = RUN, replica: int = 0, address: str = LEDGER) -> dict:
    topics = ["0x" + t.hex() for t in (event_topic(Joined), run, bytes(12) + bytes.fromhex(ACCOUNT[2:]))]
    return {"address": address, "topics": topics, "data": "0x" + replica.to_bytes(32, "big").hex() + bytes(32).hex()}


def deregistered() -> dict:
    topics = ["0x" + t.hex() for t in (event_topic(NodeDeregistered), bytes(12) + bytes.fromhex(ACCOUNT[2:]))]
    data = (32).to_bytes(32, "big") + (3).to_bytes(32, "big") + b"abc" + bytes(29)
    return {"address": REGISTRY, "topics": topics, "data": "0x" + data.hex()}


def replicas(events) -> list[int]:
    return [event.replica for event in events if isinstance(event, Joined)]
