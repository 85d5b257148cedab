"""Mailboxes: where members publish blobs, each under the hex of its sha256, for those who cannot connect to them.

The address of one is among its owner's on the ledger. A stranger wrote it: it is asked by https, and leads to public
hosts only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from dlx.ground.durable import file_hash
from dlx.node.home import remote
from dlx.node.home.errors import Failure

MOST = 64  # mailboxes of a run that are asked
LONGEST_ADDRESS = 256  # characters, as the registry takes them
BLOB_SECONDS, SLOWEST = 30.0, 16 * 1024  # and bytes a second besides, that a blob of a stranger's may take


class WrongBytes(Failure):
    """A mailbox has something else under a blob's name."""


def mailbox_of(addresses: Sequence[str]) -> str | None:
    """The mailbox among the addresses that the ledger has of a node, of whom a stranger wrote them; None: there is
    none."""
    found = (one.rstrip("/") for one in addresses if one.startswith("https://") and len(one) <= LONGEST_ADDRESS)
    return next((one for one in found if one.isascii() and one.isprintable() and not set(one) & set("?#@ \\")), None)


def have_blob(
    mailbox: str,
    is_strangers: bool,
    hash_: bytes,
    sizes: range,
    into: Path,
    came: Callable[[int], None] = lambda count: None,
) -> None:
    """Write the blob to `into`, which is not there where that raises: remote.Absent where the mailbox has none, Failure
    where it is not what its name says, or has another size, OSError of our disk.

    `came` is told the bytes as they come, or that none do; what it raises ends it. A stranger's mailbox is too slow
    once it is behind SLOWEST by more than BLOB_SECONDS."""
    uri, began, bytes_ = f"{mailbox}/{hash_.hex()}", time.monotonic(), 0

    def moved(count: int) -> None:
        nonlocal bytes_
        bytes_ += count
        if is_strangers and time.monotonic() > began + BLOB_SECONDS + bytes_ / SLOWEST:
            raise Failure(f"{uri}: too slow")
        came(count)

    try:
        seconds = BLOB_SECONDS + sizes.stop / SLOWEST if is_strangers else None
        remote.fetch(uri, into, sizes, seconds, moved)
        if file_hash(into) != hash_:
            raise WrongBytes(f"{uri}: other bytes than its name says")
    except BaseException:
        into.unlink(missing_ok=True)
        raise
