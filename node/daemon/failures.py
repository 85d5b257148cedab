"""Errors of the disk, the training process, other nodes and the chain, in the round machine's words."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import trio

from dlx.ground.blobs import BlobStore, Kind
from dlx.ground.errors import in_words
from dlx.ledger.errors import LedgerError
from dlx.node.home.keys.slashing_protection import Contradiction
from dlx.node.round.actions import ActionFailed, LocalFault
from dlx.node.trainer.client import BlobTrouble, LocalTrouble, UnusableInput
from dlx.p2p.exchange import BlobError, BlobExchange, BlobTooLarge, Tree


@contextmanager
def action_failures() -> Iterator[None]:
    """Raises LocalFault for what this machine is at fault for, ActionFailed for what may go better later."""
    try:
        yield
    except (LocalTrouble, Contradiction, OSError) as error:
        raise LocalFault(in_words(error)) from error
    except (BlobError, BlobTrouble, UnusableInput, LedgerError) as error:
        raise ActionFailed(in_words(error)) from error


async def fetch(
    exchange: BlobExchange,
    store: BlobStore,
    name: bytes,
    limit: int,
    peers: list[str] | None,
    seconds: float,
    kind: Kind,
    tree: Tree | None = None,
    sharers: Sequence[str] = (),
) -> Path:
    """As `exchange.fetch`, but what lies here with other bytes than its name says is no reason to refuse it."""
    try:
        return await exchange.fetch(name, limit, peers, seconds, kind, tree, sharers)
    except BlobTooLarge:
        if await trio.to_thread.run_sync(store.sound, name):
            raise
        return await exchange.fetch(name, limit, peers, seconds, kind, tree, sharers)
