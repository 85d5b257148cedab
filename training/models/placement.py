"""Where and how a stage is trained on this machine: what its operator chose, and what that comes to.

It changes rounding, speed and memory, and nothing that others have to repeat: a replay may take another device and
another number of threads, and compiles nothing.
"""

import platform
import re
from glob import glob
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from dlx.ground.limits import cores
from dlx.training.recipe.recipe import Recipe

Checkpoint = Literal["none", "layers", "selective"]

MOST_THREADS = 1024
MOST_RANKS = 64


class PlacementError(ValueError):
    """This machine, or its torch, has no such device."""


class Placement(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    device: str = "auto"  # auto, cpu, cuda, cuda:N, mps
    threads: int = 0  # of the CPU; 0: as many as this process may use
    compile: bool = False  # the layers, as they are trained
    checkpoint: Checkpoint = "none"  # which activations are computed again in the backward pass
    ranks: int = 1  # processes that share the stage
    devices: tuple[str, ...] = ()  # one for each rank; none: as many like `device`, or that one
    machines: int = 1  # that have such ranks
    rendezvous: str = ""  # HOST:PORT of the first, where several meet
    tensor_parallel: int = 1  # ranks that compute each matrix product together

    @property
    def is_shared(self) -> bool:
        return self.ranks > 1 or len(self.devices) > 1 or self.machines > 1

    def __str__(self) -> str:
        extra = ["compiled"] * self.compile + [f"checkpoints {self.checkpoint}"] * (self.checkpoint != "none")
        where = self.device
        if self.is_shared:
            ranks = f"{self.ranks} rank{'' if self.ranks == 1 else 's'} on {' '.join(dict.fromkeys(self.devices))}"
            where = ranks + f", one of {self.machines} machines" * (self.machines > 1)
            where += f", {self.tensor_parallel} to a matrix" * (self.tensor_parallel > 1)
        return ", ".join((where, f"{self.threads} thread{'' if self.threads == 1 else 's'}", *extra))


ONE_THREAD = Placement(device="cpu", threads=1)


def arithmetic_threads(settled: Placement) -> int:
    """Of codec and outer step: arithmetic beside hashing."""
    return max(settled.threads, 2)


def wrong_device(name: str) -> str | None:
    """What is wrong with such a setting, whatever the machine; None: nothing."""
    known = re.fullmatch(r"auto|cpu|mps|cuda(:\d{1,3})?", name, re.ASCII)
    return None if known else "expected auto, cpu, cuda, cuda:N or mps"


def address(rendezvous: str) -> tuple[str, int]:
    """Host and port. Raises ValueError."""
    host, _, port = rendezvous.rpartition(":")
    if not host or not re.fullmatch(r"\d{1,5}", port, re.ASCII) or not 0 < int(port) < 1 << 16:
        raise ValueError("expected HOST:PORT")
    return host.strip("[]"), int(port)


def wrong_address(rendezvous: str) -> str | None:
    """What is wrong with such a setting; None: nothing, or it is not set."""
    try:
        address(rendezvous or "none:1")
    except ValueError as error:
        return str(error)
    return None


def check(placement: Placement) -> None:
    """What fits no machine at all: asks no driver, and imports no torch. Raises PlacementError."""
    ranks, named = max(placement.ranks, len(placement.devices)), placement.devices
    if placement.machines > 1 and not placement.rendezvous:
        raise PlacementError(
            f"{placement.machines} machines: say where they meet, HOST:PORT of the node's (rendezvous)"
        )
    if placement.ranks > 1 and len(named) not in (0, placement.ranks):
        raise PlacementError(f"{len(named)} devices for {placement.ranks} ranks: name one for each, or none")
    if placement.machines == 1 and ranks % placement.tensor_parallel:
        raise PlacementError(
            f"tensor_parallel {placement.tensor_parallel}: it has to divide the number of ranks ({ranks})"
        )


def of_run(recipe: Recipe, placement: Placement) -> Placement:
    """As the run's arithmetic takes it: an exact one on the CPU, by one rank, not compiled. Raises PlacementError."""
    if not recipe.is_exact:
        return placement
    if placement.is_shared:
        raise PlacementError("several ranks: a stage of an exact run is trained by one; use 1")
    (device,) = placement.devices or (placement.device,)
    if device not in ("auto", "cpu"):
        raise PlacementError(f"device {device}: an exact run is computed on the CPU: choose cpu, or auto")
    return replace(placement, device="cpu", devices=(), compile=False)


def settle(placement: Placement) -> Placement:
    """With devices that are here, a number of threads for each rank, and compiled only where there is a compiler. Asks
    the drivers: not in a process that forks later. Raises PlacementError.
    """
    check(placement)
    if not placement.is_shared:
        device = _device(*placement.devices or (placement.device,))
        settled = replace(placement, device=device, threads=placement.threads or cores(), devices=())
    else:
        devices = _devices(placement)
        threads = placement.threads or max(1, cores() // len(devices))
        settled = replace(placement, device=devices[0], threads=threads, ranks=len(devices), devices=devices)
    return replace(settled, compile=placement.compile and not placement.is_shared and lacking(settled.device) is None)


def take(settled: Placement) -> None:
    """Have torch use these threads, and in this thread this device."""
    import torch

    torch.set_num_threads(settled.threads)
    if settled.device.startswith("cuda"):
        torch.cuda.set_device(settled.device)  # else pinned memory would be the first GPU's, and take a part of that


def lacking(device: str) -> str | None:
    """What torch needs to compile for the device, and does not find."""
    from torch._inductor import cpp_builder, exc
    from torch.utils._triton import has_triton

    if device.startswith("cuda") and not has_triton():
        return "Triton"
    try:
        cpp_builder.get_cpp_compiler()
    except exc.InvalidCxxCompiler:
        return "C++ compiler"
    return None


def unused_gpu() -> str | None:
    """Why a GPU that this machine has cannot be used, where one is here and torch finds none."""
    import torch

    nvidia, amd = (bool(glob(pattern)) for pattern in ("/dev/nvidia[0-9]*", "/dev/kfd"))
    if not (nvidia or amd) or torch.cuda.is_available():
        return None
    what = "an NVIDIA GPU" if nvidia else "an AMD GPU"
    if (torch.version.cuda if nvidia else torch.version.hip) is None:
        return f"this machine has {what}, and torch {torch.__version__} was built without support for it"
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return f"this machine has {what}, and torch cannot use it: {str(error).splitlines()[0]}"
    return None


def hardware(device: str) -> str:
    """What it is, in words that a stranger can compare: "cuda NVIDIA H100", "x86_64 cpu". `device` is settled."""
    if device.startswith("cuda"):
        import torch

        return f"cuda {torch.cuda.get_device_name(device)}"
    return f"{platform.machine()} {device}"


def _devices(placement: Placement) -> tuple[str, ...]:
    """One for each of several ranks."""
    named = placement.devices
    if not named:
        first = _device(placement.device)
        named = tuple(f"cuda:{index}" if first.startswith("cuda") else first for index in range(placement.ranks))
    devices = tuple(_device(one) for one in named)
    kinds = {one.partition(":")[0] for one in devices}
    if len(kinds) > 1 or "mps" in kinds:
        raise PlacementError(f"devices {','.join(devices)}: the ranks of a stage are on the CPU or on CUDA devices")
    if kinds == {"cuda"} and len(set(devices)) < len(devices):
        raise PlacementError(f"devices {','.join(devices)}: each rank needs a device of its own")
    _need_backends(kinds == {"cuda"})
    return devices


def _need_backends(cuda: bool) -> None:
    import torch.distributed as dist

    for name in ("gloo", *(["nccl"] if cuda else [])):
        if not dist.is_available() or not dist.is_backend_available(name):
            raise PlacementError(f"several ranks need a torch with {name}: this one has none; use one rank")


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
