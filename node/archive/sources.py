"""Which places a command looks for blobs in, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dlx.ledger.client import LedgerClient
from dlx.ledger.typed import Domain
from dlx.node.archive.blobs import Folder, Source
from dlx.node.archive.peers import Peers
from dlx.node.home.datadir import DataDir
from dlx.node.home.errors import UsageFailure


@contextmanager
def open_sources(
    client: LedgerClient,
    run: bytes,
    own: Sequence[Path],
    datadir: DataDir,
    bootstrap: Sequence[str],
    say: Callable[[str], None],
) -> Iterator[list[Source]]:
    """The user's own folders, then those that nodes in the data folder wrote, then the run's peers.

    Nodes of one folder (`blobs`, and a demo's `nodes/*/blobs`) are peers that need no network: a wrong blob there is
    as little a finding as wrong bytes from afar. Raises UsageFailure for an own folder that is none.
    """
    for path in own:
        if not path.is_dir():
            raise UsageFailure(f"--blobs {path}: no such folder")
    nodes = [Folder(path, own=False) for path in datadir.blob_folders]
    folders = [*(Folder(path, own=True) for path in own), *nodes]
    domain = Domain(client.rpc.number("eth_chainId"), client.ledger)
    with Peers(domain, run, lambda: client.nodes().nodes, bootstrap, say) as peers:
        yield [*folders, peers]
