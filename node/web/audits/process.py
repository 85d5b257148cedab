"""The process of an audit that the page starts: it reads a line of JSON that says what to look at, writes others that
say how far it is, and ends when its standard input does."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from dlx.ground.errors import DlxError, cause

STOPPED = 128 + signal.SIGTERM  # its exit status when it was told to end
_SNAPSHOT_SECONDS = 0.2  # between two that are told
_END_SECONDS = 5.0  # to remove its working copies
_NICE = 10  # the machine may be training


class Where(msgspec.Struct, frozen=True):
    """A ledger, and where blobs of its runs lie: folders of the user's own, those that nodes wrote, and more peers."""

    rpc_url: tuple[str, ...]
    ledger: str
    chain_id: int | None = None
    index: str | None = None  # the folder with the index of events
    own: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    bootstrap: tuple[str, ...] = ()


class Task(msgspec.Struct, frozen=True):
    where: Where
    run: str  # hex
    level: int


def main() -> None:
    line = sys.stdin.readline()
    if not line:
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(STOPPED))
    threading.Thread(target=_end_with_input, daemon=True).start()
    os.nice(_NICE)
    with open(os.dup(1), "wb") as answers:
        os.dup2(2, 1)  # what a library prints is no answer

        def tell(changes: dict[str, Any]) -> None:
            answers.write(msgspec.json.encode(changes) + b"\n")
            answers.flush()

        audit(msgspec.json.decode(line, type=Task), tell)


def audit(task: Task, tell: Callable[[dict[str, Any]], None]) -> None:
    """`tell` gets the fields of AuditState that change, the last time with `done`."""
    from dlx.ledger.client import LedgerClient
    from dlx.node.audit import audit_run
    from dlx.node.audit.report import Report
    from dlx.node.audit.sources.places import Places

    where, run = task.where, bytes.fromhex(task.run)
    report, last = Report(run), 0.0

    def show(line: str) -> None:
        nonlocal last
        if time.monotonic() >= last + _SNAPSHOT_SECONDS:
            tell({"line": line, "report": report.json()})
            last = time.monotonic()

    error = None
    try:
        index = None if where.index is None else Path(where.index)
        client = LedgerClient(where.rpc_url, where.ledger, chain_id=where.chain_id, folder=index)
        choice = None
        if task.level == 3:
            from dlx.node.audit.inner import Choice

            choice = Choice()
        places = Places(tuple(map(Path, where.own)), tuple(map(Path, where.nodes)), where.bootstrap)
        audit_run(client, run, places, show, lambda line: None, choice=choice, report=report)
    except Exception as raised:
        found = cause(raised)
        error = str(found) if isinstance(found, DlxError | OSError) else f"a fault of dlx-node: {found!r}"
    tell({"line": "", "report": report.json(), "done": True, "error": error})


def _end_with_input() -> None:
    """Whoever started this wants no more of it, or is gone."""
    os.read(sys.stdin.fileno(), 1)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_END_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    main()
