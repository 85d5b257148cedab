"""A block's header: as a chain node tells it, and as Ethereum hashes it, of the forks from London to Prague."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import rlp
from eth_hash.auto import keccak

from dlx.ground.untrusted import printable
from dlx.ledger.errors import Contradiction, LedgerError
from dlx.ledger.rpc.json_rpc import STORED, octets, quantity

# By the names of JSON-RPC, in the order of the encoding; None: a number, else the size in bytes, 0 where it may vary.
_LONDON: dict[str, int | None] = {
    "parentHash": 32, "sha3Uncles": 32, "miner": 20, "stateRoot": 32, "transactionsRoot": 32, "receiptsRoot": 32,
    "logsBloom": 256, "difficulty": None, "number": None, "gasLimit": None, "gasUsed": None, "timestamp": None,
    "extraData": 0, "mixHash": 32, "nonce": 8, "baseFeePerGas": None,
}  # fmt: skip
_SINCE: tuple[dict[str, int | None], ...] = (
    {"withdrawalsRoot": 32},  # Shanghai
    {"blobGasUsed": None, "excessBlobGas": None, "parentBeaconBlockRoot": 32},  # Cancun
    {"requestsHash": 32},  # Prague
)
_BESIDE = {"hash", "size", "totalDifficulty", "transactions", "uncles", "withdrawals"}  # no part of a header


class UnknownFork(LedgerError):
    """The chain's headers have fields that this version does not know: nothing can be proven on it."""


@dataclass(frozen=True)
class Header:
    """As a chain node told it; time in seconds, base fee in wei (None: a chain without EIP-1559)."""

    number: int
    hash: bytes
    parent: bytes
    time: int
    base_fee: int | None
    logs: Logs | None = field(default=None, compare=False)  # as the chain node told them with it
    told: Any = field(default=None, compare=False, repr=False)  # all that the chain node said of it


@dataclass(frozen=True)
class Logs:
    """What a chain node says are a block's logs of some contracts."""

    of: tuple[str, ...]
    found: Any


@dataclass(frozen=True)
class ProvenHeader:
    """A header whose hash was computed here. Time in seconds, base fee in wei. That these are its transactions is only
    the chain node's word."""

    number: int
    hash: bytes
    parent: bytes
    time: int
    base_fee: int
    state_root: bytes
    receipts_root: bytes
    bloom: int
    transactions: tuple[str, ...]


def told_header(answer: Any) -> Header:
    """The header in an answer about a block. Raises LedgerError."""
    try:
        return Header(
            number=quantity(answer["number"], STORED),
            hash=octets(answer["hash"]),
            parent=octets(answer["parentHash"]),
            time=quantity(answer["timestamp"], STORED),
            base_fee=None if answer.get("baseFeePerGas") is None else quantity(answer["baseFeePerGas"]),
            told=answer,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise LedgerError(f"not a block: {error!r}") from None


def proven_header(answer: Any, expected: bytes, who: str) -> ProvenHeader:
    """The header in an answer about a block, if it has the expected hash.

    Raises Contradiction where it has another, UnknownFork where that may be for fields that are not known here.
    """
    try:
        fields = _fields(answer)
        hash_ = keccak(rlp.encode(fields))
        transactions = tuple(map(str, answer["transactions"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Contradiction(f"the chain node at {who} gave something else than a block: {error!r}"[:200]) from None
    if hash_ != expected:
        unknown = sorted(set(answer) - set(_LONDON) - {name for fork in _SINCE for name in fork} - _BESIDE)
        if unknown:
            raise UnknownFork(
                f"the header of block 0x{expected.hex()} cannot be hashed: this dlx-node does not know its fields "
                f"{printable(', '.join(unknown), 200)}; a newer one may, else audit without --head"
            )
        raise Contradiction(
            f"the chain node at {who} gave a header with hash 0x{hash_.hex()} where the block 0x{expected.hex()} is due"
        )
    by_name = dict(zip(_LONDON, fields, strict=False))
    return ProvenHeader(
        number=int.from_bytes(by_name["number"], "big"),
        hash=hash_,
        parent=by_name["parentHash"],
        time=int.from_bytes(by_name["timestamp"], "big"),
        base_fee=int.from_bytes(by_name["baseFeePerGas"], "big"),
        state_root=by_name["stateRoot"],
        receipts_root=by_name["receiptsRoot"],
        bloom=int.from_bytes(by_name["logsBloom"], "big"),
        transactions=transactions,
    )


def proven_bloom(answer: Any) -> int | None:
    """The bloom in an answer about a block, if the hash that the answer names is that of its header; None where that
    cannot be told."""
    try:
        fields = _fields(answer)
        if keccak(rlp.encode(fields)) != octets(answer["hash"], 32):
            return None
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return int.from_bytes(dict(zip(_LONDON, fields, strict=False))["logsBloom"], "big")


def bloom_of(values: Sequence[bytes]) -> int:
    """The bits that each of these (an address, a topic) sets in the bloom of logs that have them."""
    bits = 0
    for value in values:
        digest = keccak(value)
        for place in (0, 2, 4):
            bits |= 1 << (int.from_bytes(digest[place : place + 2], "big") & 2047)
    return bits


def rlp_quantity(text: Any) -> bytes:
    """A JSON-RPC number as RLP has it: big-endian without leading zeros. Raises ValueError, TypeError."""
    number = int(text, 16)
    if number < 0:
        raise ValueError(f"{number} is no quantity")
    return number.to_bytes((number.bit_length() + 7) // 8, "big")


def _fields(answer: Any) -> list[bytes]:
    """All that are hashed: those of each fork as far as the answer has them, none left out between."""
    kinds = dict(_LONDON)
    for fork in _SINCE:
        if not all(answer.get(name) is not None for name in fork):
            break
        kinds |= fork
    return [rlp_quantity(answer[name]) if size is None else octets(answer[name], size) for name, size in kinds.items()]
