"""A member on a slow machine: `python -m tests.e2e.slow SECONDS start ...` is `dlx-node start ...` whose inner steps
take so much longer each. So which machine is slower does not depend on what else this one does."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from dlx.node.cli.app import main
from dlx.node.trainer import server, spawn
from dlx.training.inner.loop import InnerLoop

STEP_SECONDS = "DLX_TEST_STEP_SECONDS"


def slow_down(seconds: float) -> None:
    """Change the class of this process, for good."""
    honest = InnerLoop.step

    def step(self: Any, *known: Any, **named: Any) -> float | None:
        time.sleep(seconds)
        return honest(self, *known, **named)

    InnerLoop.step = step  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    if STEP_SECONDS in os.environ:  # the node's training processes
        slow_down(float(os.environ[STEP_SECONDS]))
        server.main(int(sys.argv[1]))
    else:
        os.environ[STEP_SECONDS] = sys.argv.pop(1)
        spawn.ForkServer.MODULE = "tests.e2e.slow"
        main()
