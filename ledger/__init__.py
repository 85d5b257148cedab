"""The ledger: typed signatures, events, the run as the contract sees it, the chain client and the embedded chain."""
