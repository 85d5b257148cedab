"""The file of gossip messages in a mailbox: each behind its length, 2 bytes, big-endian."""

from collections.abc import Iterable
from pathlib import Path

import trio

from dlx.node.home import remote
from dlx.p2p.wire import WireError

MESSAGES = "messages"  # the name of the file
MOST_BYTES = 256 * 1024  # of it
MOST_BYTES_OF_ONE = 8192
SECONDS = 20.0  # that a stranger's may take


def pack(messages: Iterable[bytes]) -> bytes:
    """The file of as many of these, from the first on, as there is room for."""
    found = bytearray()
    for message in messages:
        if len(found) + 2 + len(message) > MOST_BYTES:
            break
        found += len(message).to_bytes(2, "big") + message
    return bytes(found)


def unpack(data: bytes) -> list[bytes]:
    """The messages of a stranger's file. Raises WireError."""
    found, at = list[bytes](), 0
    while at < len(data):
        end = at + 2 + int.from_bytes(data[at : at + 2], "big")
        if not at + 2 < end <= len(data) or end - at - 2 > MOST_BYTES_OF_ONE:
            raise WireError("malformed", "no file of messages")
        found.append(data[at + 2 : end])
        at = end
    return found


def read(mailbox: str, is_strangers: bool, into: Path) -> list[bytes]:
    """The messages of a mailbox, in a thread of trio's; by way of the new file `into`, which is gone afterwards. Raises
    remote.Absent where it has none, Failure, WireError, OSError of our disk."""
    seconds = SECONDS if is_strangers else None
    goes_on = trio.from_thread.check_cancelled
    remote.fetch(f"{mailbox}/{MESSAGES}", into, range(MOST_BYTES + 1), seconds, lambda count: goes_on())
    try:
        return unpack(into.read_bytes())
    finally:
        into.unlink(missing_ok=True)
