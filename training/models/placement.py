"""Where and how a stage is trained on this machine: what its operator chose, and what that comes to.

It changes rounding, speed and memory, and nothing that others have to repeat: a replay may take another device and
another number of threads, and compiles nothing.
"""

import os
import re
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

Checkpoint = Literal["none", "layers", "selective"]

MOST_THREADS = 1024


class PlacementError(ValueError):
    """This machine, or its torch, has no such device."""


class Placement(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    device: str = "auto"  # auto, cpu, cuda, cuda:N, mps
    threads: int = 0  # of the CPU; 0: as many as this process may use
    compile: bool = False  # the layers, as they are trained
    checkpoint: Checkpoint = "none"  # which activations are computed again in the backward pass

    def __str__(self) -> str:
        extra = ["compiled"] * self.compile + [f"checkpoints {self.checkpoint}"] * (self.checkpoint != "none")
        return ", ".join((self.device, f"{self.threads} thread{'' if self.threads == 1 else 's'}", *extra))


ONE_THREAD = Placement(device="cpu", threads=1)


def wrong_device(name: str) -> str | None:
    """What is wrong with such a setting, whatever the machine; None: nothing."""
    known = re.fullmatch(r"auto|cpu|mps|cuda(:\d{1,3})?", name, re.ASCII)
    return None if known else "expected auto, cpu, cuda, cuda:N or mps"


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def settle(placement: Placement) -> Placement:
    """With a device that is here and a number of threads. Asks the drivers: not in a process that forks later.

    Raises PlacementError.
    """
    return replace(placement, device=_device(placement.device), threads=placement.threads or cores())


def _device(name: str) -> str:
    import torch

    if name == "auto":
        return "cuda:0" if torch.cuda.is_available() else "mps" if torch.mps.is_available() else "cpu"
    if name == "mps" and not torch.mps.is_available():
        raise PlacementError("device mps: this machine, or its torch, has no Metal: choose another, or auto")
    if name.startswith("cuda"):
        count, index = torch.cuda.device_count() if torch.cuda.is_available() else 0, int(name[5:] or 0)
        if index >= count:
            have = f"{count} CUDA device{'' if count == 1 else 's'}" if torch.version.cuda else "a torch without CUDA"
            raise PlacementError(f"device {name}: this machine has {have}: choose another, or auto")
        return f"cuda:{index}"
    return name
