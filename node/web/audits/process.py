"""The process of an audit that the page starts.

It reads a line of JSON that says what to audit, and writes others that say how far it is. It ends when its standard
input does.
"""

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
from dlx.node.audit.sources.places import Places
from dlx.node.home.program import Called, called_with
from dlx.node.home.settings import Settings

STOPPED = 128 + signal.SIGTERM  # its exit status when it was told to end
_SNAPSHOT_SECONDS = 0.2  # between two that are told
_END_SECONDS = 5.0  # to remove its working copies
_NICE = 10  # the machine may be training


class Where(msgspec.Struct, frozen=True):
    """A ledger, and where blobs of its runs lie."""

    rpc_url: tuple[str, ...]
    ledger: str
    chain_id: int | None = None
    index: Path | None = None  # the folder with the index of events
    places: Places = Places()
    rpc_timeout: float = Settings().rpc_timeout  # seconds
    called: Called = Called()  # what the lines that it prints repeat


class Task(msgspec.Struct, frozen=True):
    where: Where
    run: bytes
    level: int

    def line(self) -> bytes:
        """What the process is told."""
        return msgspec.json.encode(self, enc_hook=str) + b"\n"

    @classmethod
    def of_line(cls, line: str) -> Task:
        return msgspec.json.decode(line, type=cls, dec_hook=lambda kind, value: kind(value))


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

        task = Task.of_line(line)
        called_with(task.where.called)
        perform(task, tell)


def perform(task: Task, tell: Callable[[dict[str, Any]], None]) -> None:
    """`tell` gets the fields of AuditState that change, the last time with `done`."""
    from dlx.ledger.client import LedgerClient
    from dlx.node.audit.replay_choice import ReplayChoice
    from dlx.node.audit.report import Report
    from dlx.node.audit.request import AuditRequest
    from dlx.node.audit.run import audit

    where, report, last = task.where, Report(task.run), 0.0

    def show(line: str) -> None:
        nonlocal last
        if time.monotonic() >= last + _SNAPSHOT_SECONDS:
            tell({"line": line, "report": report.json()})
            last = time.monotonic()

    error = None
    try:
        client = LedgerClient(
            where.rpc_url, where.ledger, chain_id=where.chain_id, folder=where.index, rpc_timeout=where.rpc_timeout
        )
        request = AuditRequest(task.run, where.places, replay=ReplayChoice() if task.level == 3 else None)
        audit(client, request, show, report=report)
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
