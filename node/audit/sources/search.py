"""In which order places are searched for blobs, and members' verdicts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol, runtime_checkable

from dlx.ledger.client import LedgerClient
from dlx.ledger.typed import Domain
from dlx.node.audit.sources.blobs import Folder, Source
from dlx.node.audit.sources.mailboxes import Mailboxes
from dlx.node.audit.sources.peers import Peers
from dlx.node.audit.sources.places import Places
from dlx.node.audit.verdict_store import verdicts_beside
from dlx.node.home import remote
from dlx.node.home.errors import NotReady, UsageFailure
from dlx.node.round.challenges.verdicts import ReportedVerdict, VerdictError


@runtime_checkable
class Witness(Protocol):
    """A source that has members' verdicts too."""

    def verdicts(self, first: int) -> list[tuple[bytes, bytes]]:
        """(report, signature) of what it keeps of round `first` and later ones: nothing of it is verified."""
        ...


def member_verdicts(
    client: LedgerClient, run: bytes, places: Places, sources: Sequence[Source], say: Callable[[str], None]
) -> list[ReportedVerdict]:
    """The members' verdicts that nodes' folders and the sources keep, each with a good signature. `say` is told of
    a folder's that cannot be read."""
    domain = Domain(client.rpc.chain_id(), client.ledger)
    found = verdicts_beside(places.nodes, run, domain, say)
    for source in sources:
        for report, signature in source.verdicts(0) if isinstance(source, Witness) else ():
            with suppress(VerdictError):
                found.append(ReportedVerdict.read(report, signature, run, domain))
    return list(dict.fromkeys(found))


@contextmanager
def open_sources(
    client: LedgerClient,
    run: bytes,
    places: Places,
    say: Callable[[str], None],
    show: Callable[[str], None] = lambda line: None,
) -> Iterator[list[Source]]:
    """The user's own folders, then those that nodes wrote, the run's peers, then their mailboxes.

    `show` is told how far a download is.

    Nodes' folders are peers that need no network: a wrong blob there is as little a finding as wrong bytes from afar.
    Raises UsageFailure for an own folder that is none, NotReady for one that may not be looked into.
    """
    for path in places.own:
        if not path.is_dir():
            raise UsageFailure(f"{path}: no such blob folder")
        if not os.access(path, os.X_OK):
            raise NotReady(f"{path}: this user may not look into the blob folder")
    folders = [*(Folder(path, own=True) for path in places.own), *(Folder(path, own=False) for path in places.nodes)]
    domain = Domain(client.rpc.chain_id(), client.ledger)
    with Peers(domain, run, lambda: client.nodes().nodes, places.bootstrap, say, show) as peers:
        named = [remote.address(text, "--mailboxes") for text in places.mailboxes]
        yield [*folders, peers, Mailboxes(named, lambda: client.nodes().nodes, show)]
