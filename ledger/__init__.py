"""The ledger: typed signatures, events, the run as the contract sees it, the chain client and the embedded chain."""

import sys

# It raises the process's recursion limit to 100,000. web3 and eth_account import it: so it is imported before them.
_limit = sys.getrecursionlimit()
import py_ecc  # noqa: E402, F401

sys.setrecursionlimit(_limit)
