"""The block before which a contract cannot have emitted anything, so that no history is read from block 0 on."""

from collections.abc import Sequence

from dlx.ledger.errors import RpcError
from dlx.ledger.rpc import Rpc

_ONE_PAGE = 5_000  # blocks; a chain as short is read whole


def birth(rpc: Rpc, addresses: Sequence[str]) -> int:
    """The first block in which one of the addresses has code; 0 where the chain node does not know its old states.

    Asks some 25 questions of a chain with 20 million blocks. Raises LedgerUnavailable.
    """
    low, high = 0, rpc.head().number  # code is there at `high`, and not below `low`
    if high < _ONE_PAGE:
        return 0
    while low < high:
        middle = (low + high) // 2
        try:
            there = any(rpc.data("eth_getCode", address, hex(middle)) for address in addresses)
        except RpcError:
            return 0
        low, high = (low, middle) if there else (middle + 1, high)
    return low
