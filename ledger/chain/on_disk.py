"""What a chain's folder says of it to whoever only reads, also while another process serves it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from dlx.ledger.chain import ChainError

FILE = "chain.sqlite"


def newest_block(directory: Path) -> tuple[int, bytes]:
    """The number and the hash of the newest block. Raises ChainError where the folder has no chain that can be read."""
    path = directory / FILE
    try:
        if not path.is_file():
            raise ChainError(f"{path} is no file")
        with closing(sqlite3.connect(path.absolute().as_uri() + "?mode=ro", timeout=10, uri=True)) as db:
            found = db.execute("SELECT number, hash FROM blocks ORDER BY number DESC LIMIT 1").fetchone()
    except (OSError, sqlite3.Error) as error:
        raise ChainError(f"{path} cannot be read: {error}") from None
    if found is None:
        raise ChainError(f"{path} has no block")
    return found
