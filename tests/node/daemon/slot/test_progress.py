import os
import signal
import subprocess
import sys
import time

from dlx.node.daemon.slot.progress import Progress
from dlx.node.trainer.stuck import stuck
from tests.patience import PATIENCE


def test_a_step_that_takes_far_longer_than_usual_is_told() -> None:
    progress = Progress()
    progress.begin(3, 10)
    now = time.monotonic()
    assert progress.stalled(now + 1000) is None, "the first steps of a node may take long"
    progress._first = now
    progress.step, progress._newest = 3, now + 4
    assert progress.stalled(now + 4 + 19) is None
    assert progress.stalled(now + 4 + 25) == "inner step 4, for 25 s by now: 2 s are usual"
    progress.begin(4, 10)
    progress._started = now + 100
    assert progress.stalled(now + 110) is None
    assert progress.stalled(now + 130) == "inner step 1, for 30 s by now: 2 s are usual"


def test_a_rank_that_is_stopped_is_named() -> None:
    child = "import time; print(1, flush=True); time.sleep(600)"
    script = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    environ = {**os.environ, "RANK": "1"}
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, env=environ, start_new_session=True
    )
    try:
        assert parent.stdout is not None and parent.stdout.readline() and stuck(parent.pid) == []
        os.killpg(parent.pid, signal.SIGSTOP)
        until = time.monotonic() + PATIENCE
        while len(stuck(parent.pid)) < 2 and time.monotonic() < until:
            time.sleep(0.05)
        first, second = stuck(parent.pid)
        assert first == f"process {parent.pid}, rank 1, is stopped" and second.endswith(", rank 1, is stopped")
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
        parent.wait()
    assert stuck(parent.pid) == []
