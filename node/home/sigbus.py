"""A mapped file that its disk does not give any more ends a command in one line.

Payloads are mapped. Whoever touches a page of a file that was cut short meanwhile, or lies on a bad sector, gets
SIGBUS, and cannot go on. A handler in Python would never run, one in C may call it.
"""

import ctypes
import os
import signal

from dlx.node.home.errors import NotReady

_LINE = (
    b"\ndlx-node: a blob was cut short while it was read, or the disk cannot read it: this says nothing about the run; "
    b"check the disk and its room, then start again\n"
)


def end_with_a_line() -> None:
    """From now on, in this process and none that it starts."""
    library = ctypes.CDLL(None)
    library.signal.restype = ctypes.c_void_p
    library.signal(signal.SIGBUS, _end)


@ctypes.CFUNCTYPE(None, ctypes.c_int)
def _end(number: int) -> None:
    os.write(2, _LINE)
    os._exit(NotReady.exit_code)
