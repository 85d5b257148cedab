"""How a training or checking process comes to be: forked by a server that has torch loaded, our own or a shared one."""

import contextlib
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

SHARED = "DLX_TRAINER_SERVER"  # names the socket of a fork server that somebody else runs for us
LOAD_SECONDS = 600.0  # torch and transformers load slowly on a busy machine; a server that ends is noticed at once
STOP_SECONDS = 10.0
NUMBER = struct.Struct(">i")
TRAINER, CHECKER = b"t", b"c"  # what a process is to be


@dataclass(frozen=True)
class Spawned:
    """A process and its channel. All methods block."""

    pid: int
    channel: socket.socket
    _control: socket.socket

    def end(self) -> int | None:
        """Kill it, unless it has ended by itself; its exit status as `subprocess` has it, None where none came."""
        self.channel.close()
        with self._control as control:
            status = b""
            with contextlib.suppress(OSError):
                control.shutdown(socket.SHUT_WR)
                control.settimeout(STOP_SECONDS)
                status = control.recv(NUMBER.size)
        return NUMBER.unpack(status)[0] if len(status) == NUMBER.size else None


class ForkServer:
    """A fork server of ours: it ends with us, however we end."""

    MODULE = "dlx.node.trainer.server"

    def __init__(self) -> None:
        """Raises OSError. Whoever connects before it has loaded waits."""
        self._folder = Path(tempfile.mkdtemp(prefix="dlx-"))  # only we may enter it
        self.path = self._folder / "trainer"
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",  # a server with threads must not fork
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(self.path))
            listener.listen(64)
            self._process = subprocess.Popen(
                [sys.executable, "-m", self.MODULE, str(listener.fileno())],
                pass_fds=[listener.fileno()],
                env=environment,
                stdin=subprocess.PIPE,
                start_new_session=True,  # a terminal's Ctrl-C is ours alone; it ends with our end of its input
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        """End it, and remove what it leaves; training processes end with their channels."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


_own: ForkServer | None = None
_starting = threading.Lock()


def spawn(kind: bytes = TRAINER) -> Spawned:
    """A new process, of the shared server that the environment names, else of our own. Raises OSError."""
    global _own
    if shared := os.environ.get(SHARED):
        with contextlib.suppress(OSError):  # its owner is gone
            return _ask(Path(shared), kind)
    with _starting:
        if _own is not None and not _own.alive:
            _own.stop()
            _own = None
        _own = _own or ForkServer()
    return _ask(_own.path, kind)


def _ask(path: Path, kind: bytes) -> Spawned:
    ours, theirs = socket.socketpair()
    control = socket.socket(socket.AF_UNIX)
    try:
        with theirs:
            control.settimeout(LOAD_SECONDS)
            control.connect(str(path))
            socket.send_fds(control, [kind], [theirs.fileno(), 1, 2])
        if len(answer := control.recv(NUMBER.size)) < NUMBER.size:
            raise OSError("the fork server ended, or the machine has no room for another process")
    except BaseException:
        ours.close()
        control.close()
        raise
    return Spawned(NUMBER.unpack(answer)[0], ours, control)


def in_words(status: int | None) -> str:
    """How a process ended, by its exit status as `subprocess` has it."""
    if status is None or status >= 0:
        return "no exit status" if status is None else f"exit status {status}"
    perhaps = {signal.SIGKILL: ", perhaps for want of memory", signal.SIGBUS: ", over a file that it cannot read"}
    ended = signal.Signals(-status)
    return f"killed by {ended.name}" + perhaps.get(ended, "")
