"""The contracts' events: raw logs, decoded strictly into one dataclass each.

Text on the chain is whatever somebody sent: it is decoded with replacement characters and never refused, except for a
run's name, whose characters the contract checks.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import eth_abi
from eth_hash.auto import keccak

from dlx.ledger.abi import Address, Bytes32, TypedError, checksum, static_fields
from dlx.ledger.typed import (
    RECORD_SIZE,
    RunConfig,
    Seal,
    SignedContribution,
    decode_records,
    recover,
    split_signatures,
)


@dataclass(frozen=True)
class EventPosition:
    """Where on the chain an event is; time is the block's, in seconds."""

    block: int
    block_hash: bytes
    log_index: int
    tx: bytes
    time: int


@dataclass(frozen=True)
class RawLog:
    """A log as the chain gave it."""

    address: str
    topics: tuple[bytes, ...]
    data: bytes
    block: int
    block_hash: bytes
    log_index: int
    tx: bytes


@dataclass(frozen=True)
class NodeRegistered:
    account: Address
    peer_id: bytes
    nonce: int
    at: EventPosition


@dataclass(frozen=True)
class AddressesChanged:
    account: Address
    multiaddrs: tuple[str, ...]
    at: EventPosition


@dataclass(frozen=True)
class NodeDeregistered:
    account: Address
    peer_id: bytes
    at: EventPosition


@dataclass(frozen=True)
class RunCreated:
    run: Bytes32
    creator: Address
    config: RunConfig
    name: str  # what people call it: 1 to 64 of [A-Za-z0-9._-], fit to be shown as it is; not unique
    genesis: tuple[bytes, ...]
    at: EventPosition


@dataclass(frozen=True)
class Joined:
    run: Bytes32
    account: Address
    replica: int
    stage: int
    at: EventPosition


@dataclass(frozen=True)
class Left:
    run: Bytes32
    account: Address
    replica: int
    stage: int
    at: EventPosition


@dataclass(frozen=True)
class Moved:
    run: Bytes32
    account: Address
    from_replica: int
    to_replica: int
    stage: int
    at: EventPosition


@dataclass(frozen=True)
class RoundOpened:
    run: Bytes32
    round: int
    opened_at: int
    at: EventPosition


@dataclass(frozen=True)
class Accused:
    run: Bytes32
    account: Address
    replica: int
    stage: int
    round: int
    by: Address
    at: EventPosition


@dataclass(frozen=True)
class Answered:
    run: Bytes32
    account: Address
    at: EventPosition


@dataclass(frozen=True)
class Evicted:
    run: Bytes32
    account: Address
    replica: int
    stage: int
    at: EventPosition


@dataclass(frozen=True)
class Sealed:
    """A sealed (round, stage) with everything that was counted, undecoded until asked for."""

    run: Bytes32
    round: int
    stage: int
    digest: bytes
    seal: Seal
    records: bytes
    signatures: bytes
    at: EventPosition

    @cached_property
    def contributions(self) -> tuple[SignedContribution, ...]:
        """The counted contributions in ascending order of account. Raises TypedError for bytes that are none."""
        return decode_records(self.records)

    @cached_property
    def accounts(self) -> tuple[str, ...]:
        """The accounts counted, read without decoding the rest."""
        return tuple(checksum(self.records[i + 140 : i + 160]) for i in range(0, len(self.records), RECORD_SIZE))

    @cached_property
    def signers(self) -> tuple[str, ...]:
        """The accounts that signed the digest. Raises SignatureError where one signature is nobody's."""
        return tuple(recover(self.digest, signature) for signature in split_signatures(self.signatures))


@dataclass(frozen=True)
class CheckpointPublished:
    run: Bytes32
    round: int
    account: Address
    weights: bytes
    uri: str
    at: EventPosition


RegistryEvent = NodeRegistered | AddressesChanged | NodeDeregistered
RunEvent = (
    RunCreated | Joined | Left | Moved | RoundOpened | Accused | Answered | Evicted | Sealed | CheckpointPublished
)
Event = RegistryEvent | RunEvent


def parse_log(log: dict[str, Any]) -> RawLog:
    """A JSON-RPC log. Raises TypedError where it is none."""
    try:
        return RawLog(
            address=checksum(bytes.fromhex(log["address"][2:])),
            topics=tuple(_hash(topic) for topic in log["topics"]),
            data=bytes.fromhex(log["data"][2:]),
            block=int(log["blockNumber"], 16),
            block_hash=_hash(log["blockHash"]),
            log_index=int(log["logIndex"], 16),
            tx=_hash(log["transactionHash"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise TypedError(f"not a log: {error!r}") from error


def decode_log(log: RawLog, time: int) -> Event | None:
    """The event in a log of one of our contracts, whose block has this time; None for an event of no known kind.

    Raises TypedError where topics or data do not fit the event.
    """
    spec = _SPECS.get(log.topics[0]) if log.topics else None
    if spec is None:
        return None
    cls, indexed, plain, build = spec
    if len(log.topics) != 1 + len(indexed):
        raise TypedError(f"{cls.__name__}: {len(log.topics)} topics")
    try:
        values = eth_abi.decode(indexed, b"".join(log.topics[1:])) + eth_abi.decode(plain, log.data)
    except Exception as error:  # eth_abi's errors share no base class
        raise TypedError(f"{cls.__name__}: {error}") from error
    kinds = indexed + plain
    fields = [_account(value) if kind == "address" else value for kind, value in zip(kinds, values, strict=True)]
    position = EventPosition(log.block, log.block_hash, log.log_index, log.tx, time)
    return build(*fields, position)


def event_topic(cls: type[Event]) -> bytes:
    """topics[0] of the event."""
    return next(topic for topic, spec in _SPECS.items() if spec[0] is cls)


_CONFIG = "(" + ",".join(kind for _, kind in static_fields(RunConfig)) + ")"
_NAME = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SEAL = "(" + ",".join(kind for _, kind in static_fields(Seal)) + ",bytes)"


def _addresses_changed(account: str, multiaddrs: tuple[bytes, ...], at: EventPosition) -> AddressesChanged:
    return AddressesChanged(account, tuple(text.decode(errors="replace") for text in multiaddrs), at)


def _run_created(
    run: bytes, creator: str, config: tuple, name: bytes, genesis: tuple[bytes, ...], at: EventPosition
) -> RunCreated:
    if not _NAME.fullmatch(name):  # no ledger of ours emits one, and it would reach terminals and web pages
        raise TypedError(f"RunCreated: {name[:80]!r} is no run's name")
    return RunCreated(run, creator, RunConfig(*config), name.decode(), tuple(genesis), at)


def _sealed(
    run: bytes, round: int, stage: int, digest: bytes, seal: tuple, records: bytes, signatures: bytes, at: EventPosition
) -> Sealed:
    *static, packed = seal
    if len(packed) % 2:
        raise TypedError("Sealed: multipliers of odd length")
    multipliers = tuple(int.from_bytes(packed[i : i + 2], "big") for i in range(0, len(packed), 2))
    return Sealed(run, round, stage, digest, Seal(*(*static, multipliers)), records, signatures, at)


def _checkpoint(
    run: bytes, round: int, account: str, weights: bytes, uri: bytes, at: EventPosition
) -> CheckpointPublished:
    return CheckpointPublished(run, round, account, weights, uri.decode(errors="replace"), at)


_Spec = tuple[type, tuple[str, ...], tuple[str, ...], Callable[..., Event]]


def _spec(cls: type, indexed: str, plain: str, build: Callable[..., Event] | None = None) -> tuple[bytes, _Spec]:
    kinds = tuple(indexed.split()), tuple(plain.split())
    topic = keccak(f"{cls.__name__}({','.join(kinds[0] + kinds[1])})".encode())
    # Strings are decoded as bytes: the chain does not promise UTF-8.
    return topic, (cls, kinds[0], tuple(kind.replace("string", "bytes") for kind in kinds[1]), build or cls)


_SPECS: dict[bytes, _Spec] = dict(
    (
        _spec(NodeRegistered, "address", "bytes uint256"),
        _spec(AddressesChanged, "address", "string[]", _addresses_changed),
        _spec(NodeDeregistered, "address", "bytes"),
        _spec(RunCreated, "bytes32 address", f"{_CONFIG} string bytes32[]", _run_created),
        _spec(Joined, "bytes32 address", "uint16 uint16"),
        _spec(Left, "bytes32 address", "uint16 uint16"),
        _spec(Moved, "bytes32 address", "uint16 uint16 uint16"),
        _spec(RoundOpened, "bytes32 uint32", "uint64"),
        _spec(Accused, "bytes32 address", "uint16 uint16 uint32 address"),
        _spec(Answered, "bytes32 address", ""),
        _spec(Evicted, "bytes32 address", "uint16 uint16"),
        _spec(Sealed, "bytes32 uint32 uint16", f"bytes32 {_SEAL} bytes bytes", _sealed),
        _spec(CheckpointPublished, "bytes32 uint32 address", "bytes32 string", _checkpoint),
    )
)


def _hash(text: str) -> bytes:
    raw = bytes.fromhex(text[2:])
    if len(raw) != 32:
        raise ValueError("a hash has 32 bytes")
    return raw


def _account(text: str) -> str:
    return checksum(bytes.fromhex(text[2:]))
