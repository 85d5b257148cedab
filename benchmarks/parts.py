"""The fork server of nodes, whose training processes also note what their processor time goes into.

`python -m benchmarks.parts FD` in place of `dlx.node.trainer.server`, with the folder of the notes in FOLDER: each
process keeps one there, named by its id: {part: seconds so far}. A part's threads other than the one it runs in are
left out.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dlx.node.trainer import server
from dlx.node.trainer.process import Server
from dlx.training.inner.loop import InnerLoop
from dlx.training.slot.slot import Slot

FOLDER = "OVERHEAD_FOLDER"  # of the environment
STEPS, ROUNDS, ANSWERS = "inner steps", "rounds", "answers"  # parts; rounds have the inner steps in them
_spent: dict[str, float] = {}


def main(descriptor: int) -> None:
    """Serves like the other."""
    for part, owner, name in ((STEPS, InnerLoop, "step"), (ROUNDS, Slot, "train"), (ANSWERS, Server, "_answer")):
        setattr(owner, name, _timed(part, getattr(owner, name)))
    server.main(descriptor)


def spent(folder: Path, pid: int) -> dict[str, float]:
    """What a process has noted; nothing yet: {}."""
    try:
        return dict(json.loads((folder / str(pid)).read_text()))
    except FileNotFoundError:
        return {}


def _timed(part: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def timed(*args: Any, **options: Any) -> Any:
        began = time.thread_time()
        try:
            return call(*args, **options)
        finally:
            _spent[part] = _spent.get(part, 0.0) + time.thread_time() - began
            _note()

    return timed


def _note() -> None:
    draft = Path(os.environ[FOLDER], f"{os.getpid()}.{time.thread_time_ns()}")
    draft.write_text(json.dumps(_spent.copy()))
    draft.replace(draft.with_suffix(""))


if __name__ == "__main__":
    main(int(sys.argv[1]))
