"""The chain's history without a chain node's word: from one block's hash down to the creation of a run.

A block's hash is that of its header, which names the block before, the root of its receipts and the bloom of their
logs. So from the hash of one block follow all headers before it, which of them may have logs of a run, and those logs,
none left out. docs/protocol/proof.md has the steps.
"""
