"""What a transaction may cost, by the price of gas that the chain node names and the operator's limits; and what one
did cost."""

import contextlib
import statistics
from dataclasses import dataclass
from typing import Any

from dlx.ledger.errors import LedgerError, RpcError
from dlx.ledger.rpc.headers import Header
from dlx.ledger.rpc.json_rpc import Request, as_number, quantity
from dlx.ledger.rpc.rpc_client import RpcClient

GWEI, ETH = 10**9, 10**18
_BLOCKS, _PERCENTILE = 20, 40  # of eth_feeHistory


class FeeTooHigh(LedgerError):
    """The chain node names a price of gas above the operator's limit."""


@dataclass(frozen=True)
class Limits:
    """In wei: `max_fee` for a unit of gas, base fee and tip together; `max_tip` of that; `budget` in any 24 hours
    (None: no limit)."""

    max_fee: int = 100 * GWEI
    max_tip: int = 30 * GWEI
    budget: int | None = None


@dataclass(frozen=True)
class Price:
    """Of a unit of gas, in wei: EIP-1559's maxFeePerGas and maxPriorityFeePerGas."""

    max_fee: int
    tip: int


TIP: Request = ("eth_maxPriorityFeePerGas", ())  # what names one, where the chain node has it


def price(rpc: RpcClient, head: Header, limits: Limits, tip: Any = None) -> Price:
    """What takes a transaction into one of the next blocks, though the base fee may double; `tip`: the answer to TIP,
    where it was asked for already. Raises FeeTooHigh, LedgerError for a chain without EIP-1559."""
    if head.base_fee is None:
        raise LedgerError(
            f"the chain node at {rpc.name} gives blocks without a base fee: dlx-node signs EIP-1559 transactions only, "
            "use a chain that has them"
        )
    named = _named_tip(rpc, head.base_fee, tip)
    if named > limits.max_fee or head.base_fee > limits.max_fee:
        what, fee = ("tip", named) if named > head.base_fee else ("base fee", head.base_fee)
        raise FeeTooHigh(
            f"the chain node at {rpc.name} names a {what} of {gwei(fee)} gwei, above max_fee ({gwei(limits.max_fee)}): "
            "nothing is signed; wait, ask another --rpc-url, or raise max_fee"
        )
    tip = min(named, limits.max_tip)
    return Price(min(2 * head.base_fee + tip, limits.max_fee), min(tip, limits.max_fee))


def raised(old: Price, now: Price, limits: Limits) -> Price | None:
    """What replaces a transaction: an eighth more of both, or the present price; None where the limits forbid it."""
    more = Price(max(now.max_fee, _more(old.max_fee)), max(now.tip, _more(old.tip)))
    return more if more.max_fee <= limits.max_fee and more.tip <= limits.max_tip else None


def cost(receipt: dict[str, Any], cap: int) -> int:
    """What was paid, in wei: `cap` at most, and a rollup's fee for the layer below on top. A receipt that does not say
    counts as `cap`."""
    try:
        paid = quantity(receipt["gasUsed"]) * quantity(receipt["effectiveGasPrice"])
        return min(paid, cap) + quantity(receipt.get("l1Fee") or "0x0")
    except (KeyError, TypeError, ValueError):
        return cap


def gwei(wei: int) -> str:
    return _decimal(wei, GWEI)


def eth(wei: int) -> str:
    return _decimal(wei, ETH)


def _decimal(wei: int, unit: int) -> str:
    """Exactly: two amounts that differ look different."""
    whole, rest = divmod(wei, unit)
    return f"{whole:,}" + (f".{rest:0{len(str(unit)) - 1}d}".rstrip("0") if rest else "")


def _more(fee: int) -> int:
    return max(fee + 1, -(-fee * 9 // 8))  # an eighth of nothing is nothing


def _named_tip(rpc: RpcClient, base_fee: int, answer: Any) -> int:
    """By the first of three methods by which the chain node names one."""
    if not isinstance(answer, RpcError):
        with contextlib.suppress(RpcError):
            named = rpc.call(TIP[0]) if answer is None else answer
            if named is not None:
                return as_number(named)
    with contextlib.suppress(RpcError):
        usual = _usual_tip(rpc.call("eth_feeHistory", hex(_BLOCKS), "latest", [_PERCENTILE]))
        if usual is not None:
            return usual
    return max(0, rpc.number("eth_gasPrice") - base_fee)


def _usual_tip(history: Any) -> int | None:
    """None where the chain node knows of no tips, as where its blocks are empty."""
    try:
        tips = [quantity(of_block[0]) for of_block in (history or {}).get("reward") or () if of_block]
        return int(statistics.median_low(tips)) if tips else None
    except (KeyError, TypeError, ValueError, AttributeError):
        raise LedgerError("eth_feeHistory: the chain node answered something else than a history of fees") from None
