"""Downloads: a stage's weights as they lie in a folder, and a whole version pulled and packed for one download."""

from __future__ import annotations

import hashlib
import tarfile
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import trio

from dlx.ground.blobs import BlobError
from dlx.ledger.client import LedgerClient
from dlx.node.audit.sources.places import Places
from dlx.node.runs.find import RunReader

_CHUNK = 1 << 20


async def checked(path: Path, name: str) -> AsyncIterator[bytes]:
    """The file's bytes. Raises BlobError before the last of them where they do not hash to `name`, so that nobody gets
    all of a file that is not the ledger's; OSError."""
    hasher, held = hashlib.sha256(), b""
    with await trio.to_thread.run_sync(path.open, "rb") as file:
        while chunk := await trio.to_thread.run_sync(file.read, _CHUNK):
            if held:
                yield held
            held = chunk
            await trio.to_thread.run_sync(hasher.update, chunk)
    if hasher.hexdigest() != name:
        raise BlobError(f"{path} does not hash to its name")
    yield held


def packed(client: LedgerClient, run: bytes, version: int, places: Places) -> tuple[tempfile.TemporaryDirectory, Path]:
    """The version as `dlx-node pull` writes it, in a tar file of a temporary folder, which is the caller's to remove.
    Raises Failure."""
    from dlx.node.checkpoints.pull import pull_run  # libp2p is slow to import, and no other part of the page needs it

    view = RunReader(client, run).view()
    folder = tempfile.TemporaryDirectory(prefix="dlx-web-")
    try:
        name, work = f"model-{version}", Path(folder.name)
        pull_run(client, view, version, work / name, places, _nothing, _nothing)
        with tarfile.open(work / "model.tar", "w") as archive:
            archive.add(work / name, name, filter=_plain)
    except BaseException:
        folder.cleanup()
        raise
    return folder, work / "model.tar"


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without what it says of this machine."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _nothing(line: str) -> None:
    """Nobody listens."""
