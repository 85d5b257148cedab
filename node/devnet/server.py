"""The fork server of a devnet's nodes: has what `dlx-node start` needs imported.

Run as `python -m dlx.node.devnet.server FD`; see `ground.forking`. A request is a `Wanted`, with standard output and
standard error as descriptors.
"""

import ctypes
import importlib
import os
import signal
import sys
from collections.abc import Sequence

import msgspec

from dlx.ground import forking, forks

PROGRAM = ("dlx.node.cli.app",)  # a Python module and its first arguments
NODES = "DLX_NODE_SERVER"  # names the socket of a fork server that somebody else runs for us


class Wanted(msgspec.Struct, frozen=True):
    """A process that does what `dlx-node` does with these arguments, in this environment."""

    name: str  # that `ps` shows
    arguments: list[str]
    environment: dict[str, str]


class NodeServer(forks.ForkServer):
    MODULE = "dlx.node.devnet.server"


def end_with_parent() -> None:
    """On Linux a child gets SIGTERM when its parent dies, however it dies."""
    _prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def _load() -> None:
    for module in (*PROGRAM, "dlx.node.daemon.node", "dlx.node.home.ledgers", "dlx.node.runs.find"):
        importlib.import_module(module)  # by name: the program is above this floor


def _become(request: bytes, descriptors: Sequence[int]) -> None:
    wanted = msgspec.json.decode(request, type=Wanted)
    forking.redirect(*descriptors)
    os.setsid()  # a terminal's Ctrl-C is for the devnet to pass on, in the right order
    end_with_parent()
    _prctl(15, wanted.name.encode())  # PR_SET_NAME
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the server ignores it
    os.environ.clear()
    os.environ.update(wanted.environment)
    sys.argv = ["dlx-node", *wanted.arguments]
    importlib.import_module(PROGRAM[0]).main(wanted.arguments)


def _prctl(option: int, value: int | bytes) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value)


if __name__ == "__main__":
    forking.serve(int(sys.argv[1]), _load, _become)
