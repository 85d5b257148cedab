"""Evidence against accounts, a file each, of the folder's node and of `dlx-node prove`: what `dlx-node evidence` lists
and sends."""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

from dlx.ground.durable import write_bytes
from dlx.ledger.bonds import Evidence, decode_evidence
from dlx.ledger.typed import TypedError
from dlx.node.home.datadir import DataDir
from dlx.node.home.errors import Failure

_MOST_BYTES = 1 << 20


def directory_of(datadir: DataDir, run: bytes, stage: int) -> Path:
    """Where the folder keeps what it has against accounts of a stage, as its node does."""
    return datadir.state_of(run) / f"stage-{stage}" / "evidence"


def keep(directory: Path, account: str, evidence: Evidence) -> Path:
    """Write it, for good: the account and the round are in the file's name, which it returns. Raises OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    data = evidence.encode()
    path = directory / f"{evidence.place[2]}-{account}-{hashlib.sha256(data).hexdigest()[:16]}"
    write_bytes(path, data)
    return path


def kept(datadir: DataDir, passed_over: Callable[[str], None]) -> Iterator[tuple[Path, Evidence]]:
    """All that is kept, of every run and stage, by path. `passed_over` is told of files that hold none, and why."""
    for path in sorted(datadir.state.glob("*/stage-*/evidence/[!.]*")):
        try:
            yield path, read(path)
        except Failure as error:
            passed_over(str(error))


def read(path: Path) -> Evidence:
    """The evidence in a file, whoever wrote it. Raises Failure."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise TypedError(f"more than {_MOST_BYTES} bytes")
        return decode_evidence(path.read_bytes())
    except (OSError, TypedError) as error:
        raise Failure(f"{path} holds no evidence ({error})") from None
