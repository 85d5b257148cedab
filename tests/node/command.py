"""`dlx-node` called inside the test's process: as fast as a function, with what a user would see."""

import contextlib
import io
import os
import re
import shlex
import sys
from dataclasses import dataclass
from unittest import mock

import pytest

from dlx.node.cli.app import main
from dlx.node.home.program import program


@dataclass(frozen=True)
class Done:
    stdout: str
    stderr: str


def dlx(*arguments: object, code: int = 0, **environ: str) -> Done:
    """Run `dlx-node` and check its exit code; a failure must be one line, or what was found, on stdout."""
    plain = {key: value for key, value in os.environ.items() if not key.startswith("DLX_")}
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.dict(os.environ, {**plain, **environ}, clear=True),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as ended,
    ):
        main([str(argument) for argument in arguments])
    assert ended.value.code == code, out.getvalue() + err.getvalue()
    if code in (1, 3) and (err.getvalue() or not out.getvalue()):
        assert err.getvalue().splitlines()[-1].startswith("dlx-node: ")
    return Done(out.getvalue(), err.getvalue())


def pasted(said: str, **filled: object) -> list[str]:
    """The only line for a shell in what was said, as the shell gives it to `dlx-node`. `filled`: what a person writes
    for a word in capitals."""
    (found,) = re.findall(f"(?:`|mend: |(?:first|next) +){re.escape(program())} ([^`\n]+)", said)
    return [str(filled.get(word, word)) for word in shlex.split(found)]


class Terminal(io.StringIO):
    """What a person at a terminal types, which it echoes."""

    def isatty(self) -> bool:
        return True

    def readline(self, *size: int) -> str:  # type: ignore[override]
        line = super().readline(*size)
        sys.stderr.write(line)
        return line
