"""A process of its own that answers lines with lines: for computations of strangers, which may never end.

`python -m MODULE SECONDS ARGUMENTS` is such a process, whose module calls `answer_lines`. Its standard input is a
socket. On that it says an empty line once it has loaded, then a line to each line, until the other end is closed. The
kernel ends it in the midst of an answer that takes more than `SECONDS` of processor time, whatever the interpreter is
busy with. On a busy machine an answer takes longer by the clock, and is no other answer for that.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence

import psutil

_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # each reserves memory
_LONGEST = 300.0  # seconds by the clock, to load and to answer: a process that stands still is given up


class NoAnswer(Exception):
    """The process is of no more use; the message says why."""


class Overtime(NoAnswer):
    """It computed for longer than it may."""


class Stuck(NoAnswer):
    """It neither answers nor ends."""


class Ended(NoAnswer):
    """It ended by itself."""

    def __init__(self, status: int, said: str, has_loaded: bool) -> None:
        super().__init__(f"it ended with status {status}: {said or 'it said nothing'}")
        self.status, self.has_loaded = status, has_loaded


class Answering:
    """One such process. It loads as soon as it is made, while nobody waits for it yet; it ends with us, however we
    end."""

    def __init__(self, module: str, seconds: float, arguments: Sequence[str] = ()) -> None:
        self._seconds, self._has_loaded = seconds, False
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `kill`; a terminal is for us to write to
        self._channel, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(seconds), *arguments],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=self._said,
                env={**os.environ, **_ONE_THREAD},
                start_new_session=True,  # a terminal's Ctrl-C is not for it
            )
        self._channel.settimeout(_LONGEST)
        self._lines = self._channel.makefile("rb")

    def ask(self, line: bytes) -> bytes:
        """The answer, without its end of line. Raises Overtime, Stuck, Ended."""
        try:
            self._has_loaded = self._has_loaded or bool(self._lines.readline())
            if self._has_loaded:
                self._channel.sendall(line + b"\n")
                if answer := self._lines.readline():
                    return answer.removesuffix(b"\n")
        except TimeoutError:
            raise Stuck("it does not answer") from None
        except OSError:
            pass  # it ends
        try:
            status = self._process.wait(_LONGEST)
        except subprocess.TimeoutExpired:
            raise Stuck("it does not end") from None
        if status == -signal.SIGPROF:
            raise Overtime(f"it took more than {self._seconds:g} s of processor time")
        self._said.seek(0)
        last = self._said.read().decode(errors="replace").strip().rpartition("\n")[2]
        raise Ended(status, last, self._has_loaded)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._lines.close()
        self._channel.close()
        self._said.close()


def in_words(error: NoAnswer, seconds: float, memory: int) -> str:
    """What the computation did that had these bounds, to follow its name."""
    if isinstance(error, Overtime):
        return f"takes more than {seconds:g} s"
    if isinstance(error, Ended) and error.has_loaded:
        return too_large(memory)
    return f"cannot be run: of its process, {error}"


def too_large(memory: int) -> str:
    return f"takes more than {memory >> 20} MiB"


def answer_lines(seconds: float, answer: Callable[[bytes], bytes], memory: int | None = None) -> None:
    """Answers each line of our standard input, until that ends. `memory`: bytes that answers may take, beside what we
    have loaded by now; None: as many as there are."""
    if memory is not None:
        _limit_memory(memory)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    with socket.socket(fileno=sys.stdin.fileno()) as channel, channel.makefile("rb") as lines:
        channel.sendall(b"\n")
        for line in lines:
            signal.setitimer(signal.ITIMER_PROF, seconds)
            answered = answer(line)
            signal.setitimer(signal.ITIMER_PROF, 0.0)
            channel.sendall(answered + b"\n")


def _limit_memory(memory: int) -> None:
    """Where the system counts the memory that a process may address; others would refuse to start anything."""
    if sys.platform == "linux":
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        wanted = psutil.Process().memory_info().vms + memory
        resource.setrlimit(resource.RLIMIT_AS, (wanted if most == resource.RLIM_INFINITY else min(wanted, most), most))
