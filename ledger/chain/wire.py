"""Ethereum's JSON forms: reading parameters (hex strings, all hostile) and writing blocks, transactions and logs."""

from __future__ import annotations

from typing import Any

import rlp
from eth_utils import to_checksum_address

from dlx.ledger.chain.evm import Outcome, Transaction, created_address, decode_mined
from dlx.ledger.chain.state_tries import Proved
from dlx.ledger.chain.store import Mined, MinedLog

INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR = -32600, -32601, -32602, -32603
SERVER_ERROR, LIMIT_EXCEEDED, REVERTED = -32000, -32005, 3
_MAX_VALUES = 256  # addresses or topic values in one place of a filter


class RpcError(Exception):
    """An answer in the response's `error` member."""

    def __init__(self, code: int, message: str, data: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.data = code, message, data


# Reading parameters.


def parse_bytes(value: Any, size: int | None = None) -> bytes:
    try:
        if not value.startswith("0x"):
            raise ValueError
        result = bytes.fromhex(value[2:])
    except (AttributeError, ValueError):
        shown = str(value)[:80]
        raise RpcError(INVALID_PARAMS, f"invalid argument: a hex string with 0x is needed, not {shown!r}") from None
    if size is not None and len(result) != size:
        raise RpcError(INVALID_PARAMS, f"invalid argument: {size} bytes are needed, not {len(result)}")
    return result


def parse_quantity(value: Any, bits: int = 64) -> int:
    try:
        result = int(value, 16) if value.startswith("0x") else -1
    except (AttributeError, ValueError):
        result = -1
    if not 0 <= result < 1 << bits:
        raise RpcError(INVALID_PARAMS, f"invalid argument: a hex quantity is needed, not {str(value)[:80]!r}")
    return result


def parse_values(value: Any, size: int) -> list[bytes]:
    """One value or a list of alternatives; an empty list stands for any."""
    if value is None:
        return []
    values = value if isinstance(value, list) else [value]
    if len(values) > _MAX_VALUES:
        raise RpcError(INVALID_PARAMS, f"at most {_MAX_VALUES} values in one place of a filter")
    return [parse_bytes(item, size) for item in values]


# Writing results.


def to_hex(value: bytes) -> str:
    return "0x" + value.hex()


def header_json(header: Any) -> dict[str, Any]:
    return {
        "number": hex(header.block_number),
        "parentHash": to_hex(header.parent_hash),
        "nonce": to_hex(header.nonce),
        "sha3Uncles": to_hex(header.uncles_hash),
        "logsBloom": to_hex(header.bloom.to_bytes(256, "big")),
        "transactionsRoot": to_hex(header.transaction_root),
        "stateRoot": to_hex(header.state_root),
        "receiptsRoot": to_hex(header.receipt_root),
        "miner": to_checksum_address(header.coinbase),
        "difficulty": "0x0",
        "extraData": to_hex(header.extra_data),
        "gasLimit": hex(header.gas_limit),
        "gasUsed": hex(header.gas_used),
        "timestamp": hex(header.timestamp),
        "mixHash": to_hex(header.mix_hash),
        "baseFeePerGas": hex(header.base_fee_per_gas),
        "withdrawalsRoot": to_hex(header.withdrawals_root),
        "withdrawals": [],
        "blobGasUsed": hex(header.blob_gas_used),
        "excessBlobGas": hex(header.excess_blob_gas),
        "parentBeaconBlockRoot": to_hex(header.parent_beacon_block_root),
        "requestsHash": to_hex(header.requests_hash),
        "uncles": [],
    }


def news_json(header: Any) -> dict[str, Any]:
    """The answer of dlx_waitForBlock: all that the hash is of, so that it proves the bloom."""
    return {"hash": to_hex(header.hash), **header_json(header)}


def waiting_json(transaction: Transaction) -> dict[str, Any]:
    place = {"blockHash": None, "blockNumber": None, "transactionIndex": None}
    return _signed_json(transaction.hash, transaction.sender, transaction.evm, transaction.max_fee) | place


def mined_json(mined: Mined) -> dict[str, Any]:
    place = {"blockHash": to_hex(mined.block_hash), "blockNumber": hex(mined.block)}
    signed = _signed_json(mined.hash, mined.sender, decode_mined(mined.raw), mined.price)
    return signed | place | {"transactionIndex": hex(mined.position)}


def _signed_json(transaction_hash: bytes, sender: bytes, evm: Any, price: int) -> dict[str, Any]:
    kind = evm.type_id or 0
    result: dict[str, Any] = {
        "hash": to_hex(transaction_hash),
        "type": hex(kind),
        "from": to_checksum_address(sender),
        "to": to_checksum_address(evm.to) if evm.to else None,
        "nonce": hex(evm.nonce),
        "value": hex(evm.value),
        "gas": hex(evm.gas),
        "gasPrice": hex(price),
        "input": to_hex(evm.data),
        "chainId": hex(evm.chain_id),
        "v": hex(evm.y_parity if kind else evm.v),
        "r": hex(evm.r),
        "s": hex(evm.s),
    }
    if kind:
        result["yParity"] = hex(evm.y_parity)
        result["accessList"] = [
            {"address": to_checksum_address(a), "storageKeys": [to_hex(s.to_bytes(32, "big")) for s in slots]}
            for a, slots in evm.access_list
        ]
    if kind == 2:
        fees = {"maxFeePerGas": hex(evm.max_fee_per_gas), "maxPriorityFeePerGas": hex(evm.max_priority_fee_per_gas)}
        result |= fees
    return result


def receipt_json(mined: Mined, logs: list[MinedLog]) -> dict[str, Any]:
    evm = decode_mined(mined.raw)
    created = None if evm.to else to_checksum_address(created_address(mined.sender, evm.nonce))
    receipt = evm.make_receipt(
        b"", 0, [(x.log.address, [int.from_bytes(t, "big") for t in x.log.topics], x.log.data) for x in logs]
    )
    return {
        "transactionHash": to_hex(mined.hash),
        "transactionIndex": hex(mined.position),
        "blockHash": to_hex(mined.block_hash),
        "blockNumber": hex(mined.block),
        "from": to_checksum_address(mined.sender),
        "to": to_checksum_address(evm.to) if evm.to else None,
        "cumulativeGasUsed": hex(mined.cumulative_gas),
        "gasUsed": hex(mined.gas_used),
        "effectiveGasPrice": hex(mined.price),
        "contractAddress": created,
        "logs": [log_json(log) for log in logs],
        "logsBloom": to_hex(receipt.bloom.to_bytes(256, "big")),
        "status": hex(mined.status),
        "type": hex(evm.type_id or 0),
    }


def log_json(mined: MinedLog) -> dict[str, Any]:
    return {
        "address": to_checksum_address(mined.log.address),
        "topics": [to_hex(topic) for topic in mined.log.topics],
        "data": to_hex(mined.log.data),
        "blockNumber": hex(mined.block),
        "blockHash": to_hex(mined.block_hash),
        "transactionHash": to_hex(mined.transaction),
        "transactionIndex": hex(mined.transaction_position),
        "logIndex": hex(mined.index),
        "removed": False,
    }


def proof_json(address: str, slots: list[str], account: Any, proved: Proved, storage: list[Proved]) -> dict[str, Any]:
    """As EIP-1186 has it, with the slots as they were asked."""
    return {
        "address": to_checksum_address(address),
        "balance": hex(account.balance),
        "codeHash": to_hex(account.code_hash),
        "nonce": hex(account.nonce),
        "storageHash": to_hex(account.storage_root),
        "accountProof": [to_hex(node) for node in proved.proof],
        "storageProof": [
            {
                "key": slot,
                "value": hex(int.from_bytes(rlp.decode(at.value), "big") if at.value else 0),
                "proof": [to_hex(node) for node in at.proof],
            }
            for slot, at in zip(slots, storage, strict=True)
        ],
    }


def execution_error(outcome: Outcome) -> RpcError:
    """As geth reports it: code 3 with the revert data, so that clients decode custom errors."""
    message = outcome.error or ""
    if not outcome.reverted:
        return RpcError(SERVER_ERROR, message)
    if outcome.output[:4] == bytes.fromhex("08c379a0"):  # Error(string)
        length = int.from_bytes(outcome.output[36:68], "big")
        message += f": {outcome.output[68 : 68 + min(length, 1024)].decode('utf-8', 'replace')}"
    return RpcError(REVERTED, message, to_hex(outcome.output))
