"""A fork server: imports what its forks are made of, and forks a process for whoever asks. See `ground.forks`.

A module that is one calls `serve` with the number that it was run with, of a listening Unix socket; it ends when its
standard input closes. It is safe because nothing that it imports may start a thread.

A connection asks for one process by a request, with descriptors. It gets the process id, and once the process has ended
its exit status (of `subprocess`: -9 after a SIGKILL). Who closes the connection ends the process.
"""

import contextlib
import gc
import logging
import os
import shutil
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable, Sequence
from multiprocessing import connection
from pathlib import Path
from typing import NoReturn

from dlx.ground.forks import NUMBER

Become = Callable[[bytes, Sequence[int]], None]  # (request, descriptors): what a fork does, all of it
_ASK_SECONDS = 10.0
_MOST_DESCRIPTORS = 3
_STDIN = 0


def serve(descriptor: int, load: Callable[[], None], become: Become) -> None:
    """Serves until standard input closes. `load` imports what the forks are made of."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C reaches us too; our owner decides
    with socket.socket(fileno=descriptor) as listener:
        try:
            gc.disable()  # next to nothing of it is garbage: to look for it takes a fifth of the time
            load()
            gc.freeze()  # what is shared is not written to by every fork's collections
            gc.enable()
            _Forks(listener, become).run()
        finally:
            shutil.rmtree(Path(listener.getsockname()).parent, ignore_errors=True)


def redirect(out: int, err: int) -> None:
    """From now on this process writes there; both are closed. Nobody talks to it."""
    with open(os.devnull, "rb") as nothing:
        for source, target in ((nothing.fileno(), 0), (out, 1), (err, 2)):
            os.dup2(source, target)
    for descriptor in {out, err}:
        os.close(descriptor)


class _Forks:
    """One thread, which forks and reaps."""

    def __init__(self, listener: socket.socket, become: Become) -> None:
        self._listener, self._become = listener, become
        self._askers: dict[int, socket.socket] = {}  # by the process id of what they asked for
        self._ending: dict[int, socket.socket] = {}  # the same, of processes that we killed for them
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)

    def run(self) -> None:
        signal.set_wakeup_fd(self._wake.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        try:
            self._serve()
        finally:  # a process that ends from here on wakes nobody
            signal.set_wakeup_fd(-1)

    def _serve(self) -> None:
        while True:
            ready = connection.wait([_STDIN, self._listener, self._woken, *self._askers.values()])
            if _STDIN in ready:
                return
            for pid in [pid for pid, asker in self._askers.items() if asker in ready]:
                os.kill(pid, signal.SIGKILL)  # not reaped yet, so the number is still its own
                self._ending[pid] = self._askers.pop(pid)
            if self._woken in ready:
                self._reap()
            if self._listener in ready:
                self._accept()

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._woken.recv(4096):
                pass
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = ended
                asker = self._askers.pop(pid, None) or self._ending.pop(pid, None)
                if asker is not None:
                    _report(asker, os.waitstatus_to_exitcode(status))

    def _accept(self) -> None:
        asker, _ = self._listener.accept()
        asker.settimeout(_ASK_SECONDS)
        descriptors: Sequence[int] = ()
        try:
            size, descriptors, _, _ = socket.recv_fds(asker, NUMBER.size, _MOST_DESCRIPTORS)
            request = _exactly(asker, *NUMBER.unpack(size))
            pid = os.fork()
        except (OSError, struct.error):  # it went away, or this machine has no room for a process
            asker.close()
        else:
            if pid == 0:
                self._fork(request, descriptors, asker)
            self._askers[pid] = asker
            with contextlib.suppress(OSError):  # it went away: its process is ended for that
                asker.sendall(NUMBER.pack(pid))
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _fork(self, request: bytes, descriptors: Sequence[int], asker: socket.socket) -> NoReturn:
        """Keep nothing of the server's, and be what was asked for."""
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for one in (self._listener, self._woken, self._wake, asker, *self._askers.values(), *self._ending.values()):
                one.close()
            self._become(request, descriptors)
            status = 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)


def _exactly(asker: socket.socket, size: int) -> bytes:
    """Raises OSError."""
    came = bytearray()
    while len(came) < size:
        if not (more := asker.recv(size - len(came))):
            raise ConnectionError("it hung up")
        came += more
    return bytes(came)


def _report(asker: socket.socket, status: int) -> None:
    with asker, contextlib.suppress(OSError):  # it may be gone
        asker.sendall(NUMBER.pack(status))
