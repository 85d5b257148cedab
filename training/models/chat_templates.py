"""Chat templates, run in a process of their own: a template is a program of whoever made the model, and may never end.

    python -m dlx.training.models.chat_templates DESCRIPTOR SECONDS

is such a process. On that socket it says an empty line once it has loaded, and then answers each line with a line.
The kernel ends it where one takes too much time, and refuses it more memory, whatever the interpreter is busy with.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import psutil

from dlx.training.recipe.huggingface import first_line

SECONDS = 5.0  # of computing, that a text may take
MAX_CHARACTERS = 2 << 20  # of a text
_MEMORY = 512 << 20  # bytes, beside what the process is made of
_LOAD_SECONDS = 120.0  # by the clock: a machine may be busy
_ANSWER_SECONDS = 60.0

_LARGE = f"takes more than {_MEMORY >> 20} MiB"


class TemplateError(ValueError):
    """What a chat template does that it should not, in words that follow its name."""


class Question(msgspec.Struct):
    template: str
    tokens: Mapping[str, Any]  # special ones, by the names that the template has for them
    messages: Sequence[dict[str, Any]]
    tools: Any = None


class _Answer(msgspec.Struct):
    text: str = ""
    refused: str | None = None


class Renderer:
    """Makes texts of conversations, one after the other. Its process starts when it is first needed, and ends with
    us."""

    def __init__(self) -> None:
        self._process: _Process | None = None

    def text(self, question: Question) -> str:
        """The text, which asks for an assistant's answer. Raises TemplateError; no later text suffers from it."""
        process, self._process = self._process or _Process(), None
        try:
            answer = process.ask(question)
        except BaseException:
            process.kill()
            raise
        self._process = process
        if answer.refused is not None:
            raise TemplateError(answer.refused)
        return answer.text


class _Process:
    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno()), str(SECONDS)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},  # each reserves memory
                start_new_session=True,  # a terminal's Ctrl-C is not for it: it ends with our end of the socket
            )
        self._lines = self._channel.makefile("rb")
        self._has_loaded = False

    def ask(self, question: Question) -> _Answer:
        """Raises TemplateError where no answer comes."""
        long = f"takes more than {SECONDS:g} s"
        try:
            self._channel.settimeout(_LOAD_SECONDS)
            if not self._has_loaded and not self._lines.readline():
                raise TemplateError("cannot be run: its process ended while it loaded")
            self._has_loaded = True
            self._channel.settimeout(_ANSWER_SECONDS)
            self._channel.sendall(msgspec.json.encode(question) + b"\n")
            if line := self._lines.readline():
                return msgspec.json.decode(line, type=_Answer)
            ended = self._process.wait(_ANSWER_SECONDS)
        except TimeoutError:
            raise TemplateError(long if self._has_loaded else "cannot be run: its process does not load") from None
        except (OSError, subprocess.TimeoutExpired):
            raise TemplateError("ended the process that ran it") from None
        raise TemplateError(long if ended == -signal.SIGPROF else _LARGE)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._lines.close()
        self._channel.close()


def _answer_questions(channel: socket.socket, seconds: float) -> None:
    """Until the other end is closed."""
    import transformers.utils.chat_template_utils  # noqa: F401 - now, so that no text pays for it

    _limit_memory()
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    with channel.makefile("rb") as lines:
        channel.sendall(b"\n")
        for line in lines:
            question = msgspec.json.decode(line, type=Question)
            signal.setitimer(signal.ITIMER_PROF, seconds)
            answer = msgspec.json.encode(_rendered(question))
            signal.setitimer(signal.ITIMER_PROF, 0.0)
            channel.sendall(answer + b"\n")


def _limit_memory() -> None:
    """Where the system counts the memory that a process may address; others would refuse to start anything."""
    if sys.platform == "linux":
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        wanted = psutil.Process().memory_info().vms + _MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (wanted if most == resource.RLIM_INFINITY else min(wanted, most), most))


def _rendered(question: Question) -> _Answer:
    from transformers.utils.chat_template_utils import render_jinja_template

    try:
        found: Any = render_jinja_template(
            [list(question.messages)],
            tools=question.tools,
            chat_template=question.template,
            add_generation_prompt=True,
            **question.tokens,
        )
        text = str(found[0][0])
        text.encode()  # half a character is no text
    except MemoryError:
        return _Answer(refused=_LARGE)
    except Exception as error:  # a template may do anything that a program can
        return _Answer(refused=f"refuses this ({first_line(error)})")
    if len(text) > MAX_CHARACTERS:
        return _Answer(refused=f"writes more than {MAX_CHARACTERS:,} characters")
    return _Answer(text)


if __name__ == "__main__":
    _answer_questions(socket.socket(fileno=int(sys.argv[1])), float(sys.argv[2]))
