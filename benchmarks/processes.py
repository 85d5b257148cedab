"""The processes of a devnet's nodes."""

import re

import psutil

from dlx.node.devnet.devnet import Devnet


def trainer(devnet: Devnet, name: str) -> psutil.Process | None:
    """The node's training process, a child of whichever fork server; None while there is none."""
    started = re.findall(r"training process started pid=(\d+)", devnet.log(name).read_text())
    try:
        return psutil.Process(int(started[-1])) if started else None
    except psutil.NoSuchProcess:
        return None
