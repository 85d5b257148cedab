"""The fork server of a liar: its training processes do honest work and publish the opposite of it.

Run as the honest one is: `python -m tests.e2e.flipper FD`.
"""

import sys

from dlx.node.trainer import server
from dlx.training.slot import slot


def flipped(start, end, *rest):  # type: ignore[no-untyped-def]
    return {name: -tensor for name, tensor in honest(start, end, *rest).items()}


if __name__ == "__main__":
    honest = slot.pseudo_gradient
    slot.pseudo_gradient = flipped
    server.main(int(sys.argv[1]))
