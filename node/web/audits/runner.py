"""Audits that the page starts: each in a process of its own, one at a time."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import dataclass, field, replace
from signal import SIGTERM
from typing import Any

import msgspec

from dlx.ledger.abi import checksum
from dlx.node.audit.report import Report
from dlx.node.audit.sources.places import Places
from dlx.node.home.datadir import DataDir
from dlx.node.home.extras import MissingExtra, require
from dlx.node.home.ledgers import index_folder
from dlx.node.home.program import Called
from dlx.node.home.settings import Settings
from dlx.node.web.audits.process import STOPPED, Task, Where

_REMEMBERED = 32  # runs whose last audit is remembered
_STOP_SECONDS = 10.0  # that a process may take to remove what it wrote


@dataclass(frozen=True)
class AuditState:
    """How far an audit is. `report` as in Report.json, of what was checked so far."""

    line: str = "starting"
    report: dict[str, Any] = field(default_factory=lambda: Report(b"").json())
    done: bool = False
    error: str | None = None  # why it could not look
    number: int = 0  # of this state: another one is newer


def where(settings: Settings, folder: DataDir, places: Places, called: Called) -> Where:
    """What an audit with these looks at. `called`: what the lines in its report repeat."""
    ledger = checksum(bytes.fromhex(settings.ledger[2:]))
    return Where(
        settings.rpc_url, ledger, settings.chain_id, index_folder(folder), places, settings.rpc_timeout, called
    )


class Auditing:
    """May be called from any thread."""

    def __init__(self, where: Where) -> None:
        self._where = where
        self._lock = threading.RLock()
        self._states: dict[bytes, AuditState] = {}
        self._running: tuple[bytes, subprocess.Popen[bytes], threading.Thread] | None = None

    def replays(self) -> bool:
        """Whether this installation can train again what was drawn (level 3)."""
        try:
            require("train")
        except MissingExtra:
            return False
        return True

    def start(self, run: bytes, level: int) -> bool:
        """Whether it was started: not while another one runs. Raises OSError where no process can be."""
        with self._lock:
            if self._running is not None:
                return False
            task = Task(self._where, run, level).line()
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "dlx.node.web.audits.process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # why it could not look is in its last line
                start_new_session=True,  # a terminal's Ctrl-C is ours alone; it ends with our end of its input
            )
            self._states.pop(run, None)
            while len(self._states) >= _REMEMBERED:
                del self._states[next(iter(self._states))]
            self._states[run] = AuditState()
            thread = threading.Thread(target=self._follow, args=(run, process, task), name="audit", daemon=True)
            self._running = run, process, thread
            thread.start()
            return True

    def state(self, run: bytes) -> AuditState | None:
        """Of the run's last audit since the page was started."""
        with self._lock:
            return self._states.get(run)

    def busy(self) -> bytes | None:
        """The run that is being audited."""
        with self._lock:
            return None if self._running is None else self._running[0]

    def stop(self, run: bytes | None = None) -> None:
        """Ends the audit of the run, or whichever runs, and waits for that."""
        with self._lock:
            if self._running is None or run not in (None, self._running[0]):
                return
            _, process, thread = self._running
            process.terminate()
        thread.join(_STOP_SECONDS)
        process.kill()
        thread.join(_STOP_SECONDS)

    def _follow(self, run: bytes, process: subprocess.Popen[bytes], task: bytes) -> None:
        last: dict[str, Any] = {}
        with process:
            assert process.stdin is not None and process.stdout is not None
            try:
                process.stdin.write(task)
                process.stdin.flush()
                for line in process.stdout:
                    last = msgspec.json.decode(line)
                    if "done" not in last:
                        self._tell(run, last)
            except (OSError, msgspec.DecodeError):
                pass  # it was killed in the middle
        if "done" not in last:
            code = process.returncode
            ended = "it was stopped" if code in (STOPPED, -SIGTERM) else f"its process ended (exit status {code})"
            last = {"line": "", "done": True, "error": ended}
        with self._lock:  # who sees that it is done can start another one
            self._tell(run, last)
            self._running = None

    def _tell(self, run: bytes, changes: dict[str, Any]) -> None:
        with self._lock:
            self._states[run] = replace(self._states[run], number=self._states[run].number + 1, **changes)
