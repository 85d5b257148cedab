"""Processes that are forked by a server which has everything imported: the side of who asks for them.

A fork takes milliseconds where a fresh interpreter takes seconds of imports, and all forks share the memory of what was
imported. `ground.forking` is the server's side.

`multiprocessing.forkserver` does not serve here, in three ways. Its server is its owner's alone, where the nodes of a
devnet share one by the path of its socket. Its forks outlive whoever asked for them and was killed. And its forks write
where the server writes, where each of ours has a log of its own.
"""

import contextlib
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from dlx.ground import machine

LOAD_SECONDS = 600.0  # what is imported loads slowly on a busy machine; a server that ends is noticed at once
STOP_SECONDS = 10.0
NUMBER = struct.Struct(">i")  # a request's length, a process id, an exit status


class ForkServer:
    """A fork server of ours: it ends with us, however we end."""

    MODULE = ""  # a Python module that is run with the number of a listening socket

    def __init__(self, environment: Mapping[str, str] | None = None, errors: IO[bytes] | None = None) -> None:
        """`environment`: our own, if none is given; likewise where its `errors` go. Raises OSError. Whoever connects
        before it has loaded waits."""
        self._folder = machine.for_sockets("dlx-")
        self.path = self._folder / "forks"
        try:
            self._process = self._started(os.environ if environment is None else environment, errors)
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    def _started(self, environment: Mapping[str, str], errors: IO[bytes] | None) -> subprocess.Popen[bytes]:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(self.path))
            listener.listen(64)
            return subprocess.Popen(
                [sys.executable, "-m", self.MODULE, str(listener.fileno())],
                pass_fds=[listener.fileno()],
                # a server with threads must not fork
                env={**environment, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
                stdin=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,  # a terminal's Ctrl-C is ours alone; it ends with our end of its input
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        """End it, and remove what it leaves."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


class Forked:
    """A process of a fork server's, used as a `subprocess.Popen`; who forgets it ends it."""

    def __init__(self, server: Path, request: bytes, descriptors: Sequence[int]) -> None:
        """The server at this path makes it, for `request` and with copies of these descriptors. Raises OSError."""
        self.returncode: int | None = None  # as `subprocess` has it
        self._control = socket.socket(socket.AF_UNIX)
        try:
            self._control.settimeout(LOAD_SECONDS)
            self._control.connect(str(server))
            socket.send_fds(self._control, [NUMBER.pack(len(request))], list(descriptors))
            self._control.sendall(request)
            if (pid := self._number()) is None:
                raise OSError("the fork server ended, or the machine has no room for another process")
            self._control.settimeout(None)
        except BaseException:
            self._control.close()
            raise
        self.pid = pid

    def poll(self) -> int | None:
        """Its exit status, once it has ended."""
        return self.wait() if self._has_ended() else None

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            if timeout is not None and not self._has_ended(timeout):
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            status = self._number()
            self.returncode = -signal.SIGKILL if status is None else status  # the server ended: its forks do too
            self._control.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Also where a signal's handler asks for it, while `wait` waits."""
        if not self._has_ended():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def end(self) -> int | None:
        """Kill it, unless it has ended by itself; its exit status, None where none came."""
        with self._control, contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)
            self._control.settimeout(STOP_SECONDS)
            self.returncode = self._number()
        return self.returncode

    def _has_ended(self, seconds: float = 0.0) -> bool:
        """By then."""
        if self.returncode is not None:
            return True
        ending = select.poll()
        ending.register(self._control, select.POLLIN)
        return bool(ending.poll(1000 * seconds))

    def _number(self) -> int | None:
        """None where the server hangs up."""
        try:
            came = self._control.recv(NUMBER.size)
        except ConnectionError:
            return None
        return NUMBER.unpack(came)[0] if len(came) == NUMBER.size else None
