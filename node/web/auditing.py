"""Audits that the page starts: levels 1 and 2, one at a time, watched while they look."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field, replace
from typing import Any

from dlx.ground.errors import DlxError, cause
from dlx.ledger.client import LedgerClient
from dlx.node.archive.sources import Places
from dlx.node.audit import audit_run
from dlx.node.audit.report import Report

_SNAPSHOT_SECONDS = 0.2  # between two that are taken
_KEPT = 32  # runs whose last audit is remembered


@dataclass(frozen=True)
class AuditState:
    """How far an audit is. `report` as in Report.json, of what was checked so far."""

    run: bytes
    started: float  # Unix seconds
    line: str = "starting"
    report: dict[str, Any] = field(default_factory=lambda: Report(b"").json())
    done: bool = False
    error: str | None = None  # why it could not look
    number: int = 0  # of this state: another one is newer


class _Stopped(Exception):
    """The page ends."""


class Auditing:
    """May be called from any thread."""

    def __init__(self, client: LedgerClient, places: Places) -> None:
        self._client, self._places = client, places
        self._lock = threading.Lock()
        self._states: dict[bytes, AuditState] = {}
        self._running: threading.Thread | None = None
        self._stopping = False

    def start(self, run: bytes) -> bool:
        """Whether it was started: not while another one runs."""
        with self._lock:
            if self._running is not None and self._running.is_alive():
                return False
            self._states.pop(run, None)
            while len(self._states) >= _KEPT:
                del self._states[next(iter(self._states))]
            self._states[run] = AuditState(run, time.time())
            self._running = threading.Thread(target=self._audit, args=(run,), name="audit", daemon=True)
            self._running.start()
            return True

    def state(self, run: bytes) -> AuditState | None:
        """Of the run's last audit since the page was started."""
        with self._lock:
            return self._states.get(run)

    def busy(self) -> bytes | None:
        """The run that is being audited."""
        with self._lock:
            return next((run for run, state in self._states.items() if not state.done), None)

    def stop(self, seconds: float) -> None:
        """Has the audit that runs end at its next step, and waits so long for that."""
        self._stopping = True
        if self._running is not None:
            self._running.join(seconds)

    def _audit(self, run: bytes) -> None:
        report, last = Report(run), 0.0

        def show(line: str) -> None:
            nonlocal last
            if self._stopping:
                raise _Stopped
            if time.monotonic() >= last + _SNAPSHOT_SECONDS:
                self._tell(run, line=line, report=report.json())
                last = time.monotonic()

        try:
            audit_run(self._client, run, self._places, show, _nothing, report=report)
        except Exception as raised:
            found = cause(raised)
            said = str(found) if isinstance(found, DlxError | OSError) else f"a fault of dlx-node: {found!r}"
            self._tell(run, line="", report=report.json(), done=True, error=said)
        else:
            self._tell(run, line="", report=report.json(), done=True)

    def _tell(self, run: bytes, **changes: Any) -> None:
        with self._lock:
            self._states[run] = replace(self._states[run], number=self._states[run].number + 1, **changes)


def _nothing(line: str) -> None:
    """What is worth keeping is in the report."""
