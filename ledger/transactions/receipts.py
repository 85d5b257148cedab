"""Receipts of transactions, as a chain node gives them."""

from typing import Any

from dlx.ledger.abi import TypedError
from dlx.ledger.errors import LedgerUnavailable
from dlx.ledger.events import parse_log
from dlx.ledger.rpc.json_rpc import STORED, quantity


def checked(receipt: Any, name: str) -> dict[str, Any]:
    """The receipt, if it is of this transaction and says all that is read of one. Raises LedgerUnavailable."""
    try:
        for number in ("blockNumber", "gasUsed", "status"):
            quantity(receipt[number], STORED)
        if receipt["transactionHash"].lower() == name and len(bytes.fromhex(receipt["blockHash"][2:])) == 32:
            for log in receipt["logs"]:
                parse_log(log)
            return receipt
    except (KeyError, TypeError, ValueError, AttributeError, TypedError):
        pass
    raise LedgerUnavailable(f"the chain node gave something else than the receipt of {name}")


def block(receipt: dict[str, Any]) -> int:
    """The number of the block that has it; of a checked receipt."""
    return quantity(receipt["blockNumber"], STORED)


def cost(receipt: dict[str, Any], cap: int) -> int:
    """What was paid, in wei: `cap` at most, and a rollup's fee for the layer below on top. A receipt that does not say
    counts as `cap`."""
    try:
        paid = quantity(receipt["gasUsed"]) * quantity(receipt["effectiveGasPrice"])
        return min(paid, cap) + quantity(receipt.get("l1Fee") or "0x0")
    except (KeyError, TypeError, ValueError):
        return cap
