"""The fork server: has torch and the model classes loaded, and forks a training process for whoever asks.

Run as `python -m dlx.node.trainer.server FD`, where FD is a listening Unix socket; it ends when its standard input
closes. A fork takes milliseconds where a fresh interpreter takes seconds of imports, and all forks share the memory of
what was imported. It is safe because nothing here starts a thread or computes with a tensor.

A connection asks for one process by a byte that says which kind, with its channel, standard output and standard error
as descriptors. It gets the process id, and once the process has ended its exit status (of `subprocess`: -9 after a
SIGKILL). Who closes the connection ends the process.
"""

import contextlib
import gc
import os
import shutil
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from multiprocessing import connection
from pathlib import Path
from typing import NoReturn

from dlx.node.trainer.spawn import CHECKER, NUMBER

_ASK_SECONDS = 10.0
_STDIN = 0


def main(descriptor: int) -> None:
    """Serves until standard input closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C reaches us too; our owner decides
    with socket.socket(fileno=descriptor) as listener:
        try:
            _load()
            Forks(listener).run()
        finally:
            shutil.rmtree(Path(listener.getsockname()).parent, ignore_errors=True)


def _load() -> None:
    """Import what the forks are made of."""
    gc.disable()  # next to nothing of it is garbage: to look for it takes a fifth of the time
    from dlx.node.trainer import checking, process  # noqa: F401
    from dlx.training.models.stages import preload

    preload()
    gc.freeze()  # what is shared is not written to by every fork's collections
    gc.enable()


class Forks:
    """One thread, which forks and reaps."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
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
            kind, descriptors, _, _ = socket.recv_fds(asker, 1, 3)
            channel, out, err = descriptors
            pid = os.fork()
            if pid == 0:
                self._become(kind, channel, out, err, asker)
            asker.sendall(NUMBER.pack(pid))
            self._askers[pid] = asker
        except (OSError, ValueError):  # it went away, or this machine has no room for a process
            asker.close()
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _become(self, kind: bytes, channel: int, out: int, err: int, asker: socket.socket) -> NoReturn:
        """In the fork: keep nothing of the server's, and be what was asked for."""
        from dlx.node.trainer import checking, process

        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for one in (self._listener, self._woken, self._wake, asker, *self._askers.values(), *self._ending.values()):
                one.close()
            with open(os.devnull, "rb") as nothing:
                for source, target in ((nothing.fileno(), 0), (out, 1), (err, 2)):
                    os.dup2(source, target)
            os.close(out)
            os.close(err)
            (checking if kind == CHECKER else process).main(channel)
        except BaseException:
            traceback.print_exc()
        os._exit(1)


def _report(asker: socket.socket, status: int) -> None:
    with asker, contextlib.suppress(OSError):  # it may be gone
        asker.sendall(NUMBER.pack(status))


if __name__ == "__main__":
    main(int(sys.argv[1]))
