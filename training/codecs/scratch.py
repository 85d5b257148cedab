"""Memory that a thread uses again and again: fresh memory costs more than the arithmetic in it, and giving it back
stops all threads of the process."""

import threading
from typing import Any

import numpy as np


class _Local(threading.local):
    def __init__(self) -> None:
        self.arrays: dict[tuple[str, Any], np.ndarray] = {}


_local = _Local()


def scratch(purpose: str, count: int, dtype: Any = np.float32) -> np.ndarray:
    """A flat array of this thread's, with anything in it, until the thread asks again for the same purpose and type."""
    found = _local.arrays.get((purpose, dtype))
    if found is None or len(found) < count:
        found = _local.arrays[purpose, dtype] = np.empty(count, dtype)
    return found[:count]
