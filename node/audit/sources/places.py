"""Which places are searched for blobs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Places:
    """Where to look for blobs, beside the peers that the ledger names."""

    own: tuple[Path, ...] = ()  # the user's folders
    nodes: tuple[Path, ...] = ()  # folders that nodes wrote
    bootstrap: tuple[str, ...] = ()  # multiaddrs (with /p2p/...) of more peers
    mailboxes: tuple[str, ...] = ()  # addresses of more of them than the ledger names
