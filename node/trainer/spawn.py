"""How a training or checking process comes to be: forked by a server that has torch loaded, our own or a shared one."""

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from dlx.ground import forks

SHARED = "DLX_TRAINER_SERVER"  # names the socket of a fork server that somebody else runs for us
TRAINER, CHECKER, EVALUATOR = b"t", b"c", b"e"  # what a process is to be
# So often a thread of OpenMP looks for others before it sleeps, where the operator does not say. The library's own
# number lasts for milliseconds: where something else uses the cores too, most of the time goes into that.
SPINS = "5000"


class Spawned(forks.Forked):
    """A process with a channel to it."""

    def __init__(self, server: Path, kind: bytes) -> None:
        self.channel, theirs = socket.socketpair()
        try:
            with theirs, _opened_log() as log:
                out, err = (1, 2) if log is None else (log.fileno(), log.fileno())
                super().__init__(server, kind, [theirs.fileno(), out, err])
        except BaseException:
            self.channel.close()
            raise

    def end(self) -> int | None:
        self.channel.close()
        return super().end()


class ForkServer(forks.ForkServer):
    MODULE = "dlx.node.trainer.server"

    def __init__(self, errors: IO[bytes] | None = None) -> None:
        super().__init__(environment(os.environ), errors)


def environment(ours: Mapping[str, str]) -> dict[str, str]:
    """A fork server's environment, which its processes have too; `ours`: this process's."""
    spins = {} if "OMP_WAIT_POLICY" in ours else {"GOMP_SPINCOUNT": SPINS}
    return spins | {**ours, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


_own: ForkServer | None = None
_starting = threading.Lock()
_log: Path | None = None


def log_to(path: Path) -> None:
    """From now on what our processes and their server say, and what they die of, goes there; else where we write."""
    global _log
    _log = path


def _opened_log() -> contextlib.AbstractContextManager[IO[bytes] | None]:
    return contextlib.nullcontext() if _log is None else _log.open("ab")


def spawn(kind: bytes = TRAINER) -> Spawned:
    """A new process, of the shared server that the environment names, else of our own. Raises OSError."""
    global _own
    if shared := os.environ.get(SHARED):
        with contextlib.suppress(OSError):  # its owner is gone
            return Spawned(Path(shared), kind)
    with _starting:
        if _own is not None and not _own.alive:
            _own.stop()
            _own = None
        if _own is None:
            with _opened_log() as log:
                _own = ForkServer(log)
    return Spawned(_own.path, kind)


def in_words(status: int | None) -> str:
    """How a process ended, by its exit status as `subprocess` has it."""
    if status is None or status >= 0:
        return "no exit status" if status is None else f"exit status {status}"
    perhaps = {signal.SIGKILL: ", perhaps for want of memory", signal.SIGBUS: ", over a file that it cannot read"}
    ended = signal.Signals(-status)
    return f"killed by {ended.name}" + perhaps.get(ended, "")
