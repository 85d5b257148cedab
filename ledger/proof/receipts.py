"""A block's receipts: encoded anew, so that their root is the header's, and their logs are all that the block has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import rlp

from dlx.ledger.abi import checksum
from dlx.ledger.errors import Contradiction, LedgerError, LedgerUnavailable, RpcError
from dlx.ledger.proof.tries import list_root
from dlx.ledger.rpc.headers import ProvenHeader, bloom_of, rlp_quantity
from dlx.ledger.rpc.json_rpc import octets
from dlx.ledger.rpc.rpc_client import RpcClient

_BLOCKS_AT_ONCE = 20  # whose receipts are asked for together; a full block of mainnet has a megabyte of them
_RECEIPTS_AT_ONCE = 100
_DEPOSIT = 0x7E  # of OP-stack chains: the first transaction of each of their blocks
_TYPES = (*range(5), _DEPOSIT)  # legacy, access list, dynamic fee, blob, set code


class UnknownReceipt(LedgerError):
    """The chain has transactions of a type that this version does not know."""


class NotGiven(LedgerUnavailable):
    """The chain node has no receipts of an old block."""


@dataclass(frozen=True)
class Log:
    """A log and its index in the block."""

    address: str
    topics: tuple[bytes, ...]
    data: bytes
    index: int


def logs_of(rpc: RpcClient, headers: Sequence[ProvenHeader]) -> Iterator[tuple[ProvenHeader, list[Log]]]:
    """Every log of each block, in order, proven by the root of its receipts.

    Raises Contradiction, UnknownReceipt, NotGiven.
    """
    for header, answer in zip(headers, _receipts(rpc, headers), strict=True):
        yield header, _proven(answer, header, rpc.name)


def _proven(answer: Any, header: ProvenHeader, who: str) -> list[Log]:
    logs: list[Log] = []
    encoded = []
    try:
        for receipt in answer:
            own = [_log(log) for log in receipt["logs"]]
            encoded.append(_encoded(receipt, own))
            logs += [Log(checksum(a), tuple(topics), data, len(logs) + i) for i, (a, topics, data) in enumerate(own)]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Contradiction(
            f"the chain node at {who} gave something else than receipts of block {header.number}: {error!r}"[:300]
        ) from None
    root = list_root(encoded)
    if root != header.receipts_root:
        raise Contradiction(
            f"the chain node at {who} gave receipts of block {header.number} with root 0x{root.hex()}, "
            f"the block's is 0x{header.receipts_root.hex()}"
        )
    return logs


def _log(log: Any) -> tuple[bytes, list[bytes], bytes]:
    return octets(log["address"], 20), [octets(topic, 32) for topic in log["topics"]], octets(log["data"])


def _encoded(receipt: Any, logs: list[tuple[bytes, list[bytes], bytes]]) -> bytes:
    kind = int(receipt.get("type") or "0x0", 16)
    if kind not in _TYPES:
        raise UnknownReceipt(
            f"a receipt of type {kind} cannot be proven: this dlx-node knows the types {', '.join(map(str, _TYPES))}; "
            "a newer one may know more, else audit without --head"
        )
    bloom = bloom_of([value for address, topics, _ in logs for value in (address, *topics)])
    status, gas = rlp_quantity(receipt["status"]), rlp_quantity(receipt["cumulativeGasUsed"])
    fields: list[Any] = [status, gas, bloom.to_bytes(256, "big"), logs]
    if kind == _DEPOSIT and receipt.get("depositReceiptVersion") is not None:  # before Canyon the nonce is left out
        fields += [rlp_quantity(receipt["depositNonce"]), rlp_quantity(receipt["depositReceiptVersion"])]
    return (bytes([kind]) if kind else b"") + rlp.encode(fields)


def _receipts(rpc: RpcClient, headers: Sequence[ProvenHeader]) -> Iterator[Any]:
    """By block where the chain node can, else transaction by transaction."""
    places = [(hex(header.number),) for header in headers]
    done = 0
    try:
        for answer in rpc.batch("eth_getBlockReceipts", places, _BLOCKS_AT_ONCE):
            if answer is None:
                break
            yield answer
            done += 1
    except RpcError:
        pass
    for header in headers[done:]:
        yield list(_one_by_one(rpc, header))


def _one_by_one(rpc: RpcClient, header: ProvenHeader) -> Iterator[Any]:
    hashes = [(name,) for name in header.transactions]
    try:
        for answer in rpc.batch("eth_getTransactionReceipt", hashes, _RECEIPTS_AT_ONCE):
            if answer is None:
                raise NotGiven("it has none")
            yield answer
    except (NotGiven, RpcError) as error:
        raise NotGiven(
            f"the chain node at {rpc.name} does not give the receipts of block {header.number} ({error}): "
            "name another with --rpc-url"
        ) from None
