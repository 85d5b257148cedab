"""Removal of state nodes that no recent state has. Blocks, transactions, receipts and logs stay for ever.

Nodes are named by their content, which any later block may bring back, so only the states themselves tell which are
needed. The nodes of all states that are kept are marked, and the others removed, while blocks are mined.
"""

from __future__ import annotations

import logging
import sqlite3
import threading

from dlx.ledger.chain.evm import decode_header
from dlx.ledger.chain.state_tries import reachable
from dlx.ledger.chain.store import Store

KEPT_STATES = 256  # of the newest blocks
_SECONDS = 60.0  # between looks at how many nodes there are
_GARBAGE = 20_000  # nodes that are worth a search, beside as many as the last one left: its cost is a fixed share

log = logging.getLogger(__name__)


def prune_forever(store: Store, stop: threading.Event) -> None:
    """Prunes whenever there is enough to remove, until `stop` is set."""
    left = 0
    while not stop.wait(_SECONDS):
        if store.nodes < 2 * left + _GARBAGE:
            continue
        try:
            left = prune(store, stop)
        except _Stopped:
            return
        except sqlite3.Error:  # a full disk, say
            log.exception("cannot remove old states, trying again")


def prune(store: Store, stop: threading.Event) -> int:
    """Removes what the newest KEPT_STATES states do not have; returns how many nodes are left."""

    def read(name: bytes) -> bytes:
        if stop.is_set():
            raise _Stopped
        return store.node(name)

    removed = 0
    with store.sweeping():
        live = reachable(read, [decode_header(header).state_root for header in store.last_headers(KEPT_STATES)])
        for names in store.node_names():
            if stop.is_set():
                raise _Stopped
            removed += store.remove_nodes([name for name in names if name not in live])
    log.info("removed %d nodes of old states, kept %d", removed, store.nodes)
    return store.nodes


class _Stopped(Exception):
    pass
