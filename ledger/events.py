"""The contracts' events: raw logs, decoded strictly into one dataclass each.

Text on the chain is whatever somebody sent: it is decoded with replacement characters and never refused, except for a
run's name, whose characters the contract checks.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import eth_abi
from eth_hash.auto import keccak

from dlx.ground.untrusted import printable
from dlx.ledger.abi import Address, Bytes32, TypedError, checksum, static_fields
from dlx.ledger.rpc.json_rpc import STORED, quantity
from dlx.ledger.typed import (
    Counted,
    Outcome,
    Record,
    RunConfig,
    Seal,
    decode_records,
    has_founder,
    split_conviction,
    split_entries,
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
    founders: tuple[Address, ...]  # who holds the weight that no work has earned yet
    at: EventPosition


@dataclass(frozen=True)
class Joined:
    run: Bytes32
    account: Address
    replica: int
    stage: int
    at: EventPosition


@dataclass(frozen=True)
class SiteEnlisted:
    """Until then the others of its site may place the account, which asks for a stage (typed.ANY_STAGE: whichever)."""

    run: Bytes32
    account: Address
    site: Address
    stage: int
    until: int
    at: EventPosition


@dataclass(frozen=True)
class SitePlaced:
    """All slots of the replica are the site's now, each stage's of one of the accounts; a Joined follows for each that
    did not hold it before."""

    run: Bytes32
    site: Address
    replica: int
    accounts: tuple[str, ...]
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
class RunOpened:
    """Round 0 opens; every later round with the last seal of the one before, at its block's time."""

    run: Bytes32
    opened_at: int
    at: EventPosition


@dataclass(frozen=True)
class Dealt:
    """The members of a stage's slots in these two replicas changed places."""

    run: Bytes32
    stage: int
    replica: int
    other: int
    at: EventPosition


@dataclass(frozen=True)
class Accused:
    """The account was asked whether it is still there; where its slot is forfeit only work is an answer."""

    run: Bytes32
    account: Address
    by: Address
    forfeit: bool
    at: EventPosition


@dataclass(frozen=True)
class Answered:
    run: Bytes32
    account: Address
    at: EventPosition


@dataclass(frozen=True)
class Evicted:
    """The account lost its slot by its silence. Nobody else can take it until the time `return_until` (0: anyone can at
    once)."""

    run: Bytes32
    account: Address
    replica: int
    stage: int
    return_until: int
    at: EventPosition


@dataclass(frozen=True)
class Dismissed:
    """A founder took the account's slot. Nobody but the successor can take it until that time; zeros and 0: anyone
    can at once."""

    run: Bytes32
    account: Address
    by: Address
    replica: int
    stage: int
    successor: Address
    until: int
    at: EventPosition


@dataclass(frozen=True)
class Reclaimed:
    """The account, which has weight in the stage, took the slot of a member without any. A Joined follows."""

    run: Bytes32
    account: Address
    former: Address  # who held it
    replica: int
    stage: int
    at: EventPosition


@dataclass(frozen=True)
class Convicted:
    """The account's contribution to (stage, round) was found false or withheld: it lost its slot and all weight, and
    gets no other slot."""

    run: Bytes32
    account: Address
    stage: int
    round: int
    statement: bytes
    entries: bytes  # see typed.split_conviction
    at: EventPosition


@dataclass(frozen=True)
class Sealed(Counted):
    """A sealed (round, stage) with everything that was counted."""

    run: Bytes32
    stage: int
    round: int
    digest: bytes
    outcome: Outcome
    records: tuple[Record, ...]
    signatures: bytes  # entries, see typed.split_entries
    at: EventPosition
    accounts: tuple[str, ...] = ()  # the maker of each record: the view knows, the event does not

    @property
    def has_founder(self) -> bool:
        """Whether somebody signed as a founder, be it one or not."""
        return has_founder(self.signatures)

    def seal(self, previous: bytes) -> Seal:
        """What was signed, after the stage's head `previous`."""
        return Seal(self.run, self.stage, self.round, previous, self.outcome, self.records)


@dataclass(frozen=True)
class CheckpointPublished:
    run: Bytes32
    round: int
    account: Address
    folder: bytes  # sha256 of the list of the checkpoint's files, which whoever pulls the version makes alike
    uri: str
    at: EventPosition


@dataclass(frozen=True)
class Evaluated:
    """What a member of the last stage says of a version: the sum of its losses, in micronats, on `count` held-out
    tokens. Nobody checked it."""

    run: Bytes32
    account: Address
    version: int
    sum: int
    count: int
    statement: bytes  # sha256 of the signed typed.Evaluation of its part
    at: EventPosition


RegistryEvent = NodeRegistered | AddressesChanged | NodeDeregistered
RunEvent = (
    RunCreated
    | RunOpened
    | Joined
    | SiteEnlisted
    | SitePlaced
    | Left
    | Moved
    | Dealt
    | Accused
    | Answered
    | Evicted
    | Dismissed
    | Reclaimed
    | Convicted
    | Sealed
    | CheckpointPublished
    | Evaluated
)
Event = RegistryEvent | RunEvent


def parse_log(log: dict[str, Any]) -> RawLog:
    """A JSON-RPC log. Raises TypedError where it is none, or one that a reorg has taken back."""
    try:
        removed = log.get("removed")
        found = RawLog(
            address=checksum(bytes.fromhex(log["address"][2:])),
            topics=tuple(_hash(topic) for topic in log["topics"]),
            data=bytes.fromhex(log["data"][2:]),
            block=quantity(log["blockNumber"], STORED),
            block_hash=_hash(log["blockHash"]),
            log_index=quantity(log["logIndex"], STORED),
            tx=_hash(log["transactionHash"]),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise TypedError(f"not a log: {error!r}") from error
    if removed:
        raise TypedError(f"block {found.block}, log {found.log_index} is a log that was removed")
    return found


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
_OUTCOME = "(bytes32,bytes32,bytes32,bytes32,bytes11)"


def _addresses_changed(account: str, multiaddrs: tuple[bytes, ...], at: EventPosition) -> AddressesChanged:
    return AddressesChanged(account, tuple(printable(text.decode(errors="replace")) for text in multiaddrs), at)


def _run_created(
    run: bytes,
    creator: str,
    config: tuple,
    name: bytes,
    genesis: tuple[bytes, ...],
    founders: tuple[str, ...],
    at: EventPosition,
) -> RunCreated:
    if not _NAME.fullmatch(name):  # no ledger of ours emits one, and it would reach terminals and web pages
        raise TypedError(f"RunCreated: {name[:80]!r} is no run's name")
    return RunCreated(
        run, creator, RunConfig(*config), name.decode(), tuple(genesis), tuple(map(_account, founders)), at
    )


def _site_placed(run: bytes, site: str, replica: int, accounts: tuple[str, ...], at: EventPosition) -> SitePlaced:
    return SitePlaced(run, site, replica, tuple(map(_account, accounts)), at)


def _sealed(
    run: bytes, stage: int, round: int, digest: bytes, outcome: tuple, records: bytes, signatures: bytes,
    at: EventPosition,
) -> Sealed:  # fmt: skip
    split_entries(signatures)  # refuses other lengths
    return Sealed(run, stage, round, digest, Outcome.of(*outcome), decode_records(records), signatures, at)


def _convicted(
    run: bytes, account: str, stage: int, round: int, statement: bytes, entries: bytes, at: EventPosition
) -> Convicted:
    split_conviction(entries)  # refuses other lengths
    return Convicted(run, account, stage, round, statement, entries, at)


def _checkpoint(
    run: bytes, round: int, account: str, folder: bytes, uri: bytes, at: EventPosition
) -> CheckpointPublished:
    return CheckpointPublished(run, round, account, folder, printable(uri.decode(errors="replace")), at)


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
        _spec(RunCreated, "bytes32 address", f"{_CONFIG} string bytes32[] address[]", _run_created),
        _spec(Joined, "bytes32 address", "uint16 uint16"),
        _spec(SiteEnlisted, "bytes32 address address", "uint16 uint64"),
        _spec(SitePlaced, "bytes32 address", "uint16 address[]", _site_placed),
        _spec(Left, "bytes32 address", "uint16 uint16"),
        _spec(Moved, "bytes32 address", "uint16 uint16 uint16"),
        _spec(RunOpened, "bytes32", "uint64"),
        _spec(Dealt, "bytes32", "uint16 uint16 uint16"),
        _spec(Accused, "bytes32 address", "address bool"),
        _spec(Answered, "bytes32 address", ""),
        _spec(Evicted, "bytes32 address", "uint16 uint16 uint64"),
        _spec(Dismissed, "bytes32 address", "address uint16 uint16 address uint64"),
        _spec(Reclaimed, "bytes32 address address", "uint16 uint16"),
        _spec(Convicted, "bytes32 address", "uint16 uint32 bytes32 bytes", _convicted),
        _spec(Sealed, "bytes32 uint16 uint32", f"bytes32 {_OUTCOME} bytes bytes", _sealed),
        _spec(CheckpointPublished, "bytes32 uint32 address", "bytes32 string", _checkpoint),
        _spec(Evaluated, "bytes32 address", "uint32 uint64 uint32 bytes32"),
    )
)


def _hash(text: str) -> bytes:
    raw = bytes.fromhex(text[2:])
    if len(raw) != 32:
        raise ValueError("a hash has 32 bytes")
    return raw


def _account(text: str) -> str:
    return checksum(bytes.fromhex(text[2:]))
