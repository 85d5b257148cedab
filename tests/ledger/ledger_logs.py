"""Raw logs as a chain node gives them."""

from collections.abc import Iterable
from dataclasses import astuple, fields
from typing import Any

import eth_abi

from dlx.ledger.abi import checksum
from dlx.ledger.events import _SPECS, Event, Joined, NodeDeregistered, RegistryEvent, event_topic
from dlx.ledger.typed import Outcome, Record, RunConfig, encode_records

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


def replicas(events: Iterable[Event]) -> list[int]:
    return [event.replica for event in events if isinstance(event, Joined)]


def encoded(event: Event) -> dict:
    """The log that a contract emits for an event, without its place."""
    topic = event_topic(type(event))
    _, indexed, plain, _ = _SPECS[topic]
    values = [_plain(getattr(event, field.name)) for field in fields(event) if field.name not in ("at", "accounts")]
    topics = [topic, *(eth_abi.encode([kind], [value]) for kind, value in zip(indexed, values, strict=False))]
    data = eth_abi.encode(plain, values[len(indexed) :])
    address = REGISTRY if isinstance(event, RegistryEvent) else LEDGER
    return {"address": address, "topics": ["0x" + t.hex() for t in topics], "data": "0x" + data.hex()}


def _plain(value: Any) -> object:
    """As eth_abi takes it."""
    match value:
        case Outcome():
            return (*value.hashes, value.plans)
        case RunConfig():
            return astuple(value)
        case (Record(), *_) | ():
            return encode_records(value)
        case str() if not value.startswith("0x"):
            return value.encode()
    return value
