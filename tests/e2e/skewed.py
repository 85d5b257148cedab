"""A member on a machine with a wrong clock: `python -m tests.e2e.skewed SECONDS start ...` is `dlx-node start ...` on a
machine whose wall clock is ahead by so much. Its monotonic clock is right, as everybody's is."""

from __future__ import annotations

import sys
import time


def skew(seconds: float) -> None:
    """Change the wall clock of this process, for good: before anything has taken its functions."""
    right, right_ns = time.time, time.time_ns
    time.time = lambda: right() + seconds
    time.time_ns = lambda: right_ns() + int(seconds * 1e9)


if __name__ == "__main__":
    skew(float(sys.argv.pop(1)))
    from dlx.node.cli.app import main

    main()
