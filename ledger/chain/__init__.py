"""The embedded chain: one EVM chain in one process and one directory, for runs that need no public chain.

    store.py        SQLite: state, blocks, receipts, logs and waiting transactions; one SQL transaction per block
    on_disk.py      the newest block, for whoever only reads the folder
    state_tries.py  Merkle-Patricia tries: roots, proofs, which nodes a state has
    evm.py          the state transition (py-evm, Prague rules): decode, execute a block, call, estimate
    pool.py         which transactions may wait, and which go into the next block
    blockchain.py   the chain itself: accepts transactions, mines, knows the head
    calls.py        calls and estimates, which change nothing, in processes of their own
    prune.py        removal of states that are old
    filters.py      log queries and installed filters
    wire.py         JSON forms of parameters, blocks, transactions and logs
    methods.py      the Ethereum JSON-RPC methods
    server.py       loopback HTTP in front of them, start and shutdown

Everything that py-evm needs is imported when `serve` is called, so that importing this package costs nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from dlx.ground.errors import DlxError

BLOCK_TIME = 0.1  # seconds


class ChainError(DlxError, RuntimeError):
    """The chain cannot be opened; the message is one line that says why and what to do."""


def serve(
    directory: Path,
    host: str = "127.0.0.1",
    port: int = 0,
    chain_id: int = 31337,
    block_time: float = BLOCK_TIME,
    empty_block_time: float = 3.0,
    heartbeat: float = 30.0,
    time_lapse: bool = False,
    on_ready: Callable[[str], None] | None = None,
    stop: threading.Event | None = None,
) -> None:
    """Serves the chain kept in `directory` (created if absent) over HTTP JSON-RPC; blocks until stopped.

    A waiting transaction is mined `block_time` seconds after the last block at the latest. While none waits, eight
    empty blocks follow, `empty_block_time` seconds apart, then one each `heartbeat` seconds.
    Blocks faster than one a second share seconds, as on Arbitrum, so that timeouts stay as long as they are; slower
    ones are each a second later than the last, as on Ethereum. With `time_lapse` all are: the chain's time then runs
    ahead of the clock, and tests need not wait for timeouts.
    `on_ready` gets the URL once requests are answered (port 0: any free port).
    Stops when `stop` is set and, when called in the main thread, on SIGINT, SIGTERM or SIGHUP.
    Raises ChainError if the directory is in use, belongs to another chain id, or the port is taken.
    """
    from dlx.ledger.chain.blockchain import Blockchain
    from dlx.ledger.chain.server import run

    chain = Blockchain(directory, chain_id, block_time, empty_block_time, heartbeat, time_lapse)
    run(chain, host, port, on_ready, stop or threading.Event())
