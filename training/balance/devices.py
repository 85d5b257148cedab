"""What kinds of devices can compute at most, as their vendors' data sheets say; docs/plan.md names the sheets."""

from __future__ import annotations

from msgspec import Struct

from dlx.ground.limits import cores
from dlx.training.recipe.recipe import Precision

TERA, GB = 1e12, 1e9
UTILISATION = 0.4  # of a GPU, in large dense models: what is usually reported lies between 0.3 and 0.5
CORE, CORE_UTILISATION = 0.1 * TERA, 0.6  # of a CPU with AVX-512, in either precision
EXACT = 5.0  # times as long as float32 takes a CPU for an exact step: benchmarks/exact.py


class Device(Struct, frozen=True):
    name: str
    bfloat16: float  # FLOP/s of dense matrices, summed in float32
    float32: float  # FLOP/s without TF32, which changes the bits
    memory: int  # bytes; 0 where it is not known
    utilisation: float  # the part of that which a training step is assumed to reach

    def speed(self, precision: Precision) -> float:
        return self.bfloat16 if precision == "bfloat16" else self.float32


def _gpu(name: str, bfloat16: float, float32: float, gigabytes: float) -> Device:
    return Device(name, bfloat16 * TERA, float32 * TERA, round(gigabytes * GB), UTILISATION)


DEVICES: dict[str, Device] = {
    "b200": _gpu("NVIDIA B200", 2250, 75, 180),
    "h200": _gpu("NVIDIA H200 SXM", 989, 67, 141),
    "h100": _gpu("NVIDIA H100 SXM", 989, 67, 80),
    "h100-pcie": _gpu("NVIDIA H100 PCIe", 756, 51, 80),
    "a100": _gpu("NVIDIA A100 80 GB", 312, 19.5, 80),
    "l40s": _gpu("NVIDIA L40S", 362, 91.6, 48),
    "a6000": _gpu("NVIDIA RTX A6000", 154.8, 38.7, 48),
    "rtx5090": _gpu("NVIDIA GeForce RTX 5090", 209.5, 104.8, 32),
    "rtx4090": _gpu("NVIDIA GeForce RTX 4090", 165.2, 82.6, 24),
    "rtx3090": _gpu("NVIDIA GeForce RTX 3090", 71, 35.6, 24),
    "mi300x": _gpu("AMD Instinct MI300X", 1307.4, 163.4, 192),
}

DEVICE_KINDS = f"cpu, {', '.join(DEVICES)} or FLOP/s such as 2e14"


def device_of(kind: str) -> Device | None:
    """One of DEVICE_KINDS, `cpu` being this machine's; None for anything else."""
    if kind == "cpu":
        here = cores()
        return Device(f"CPU of {here} cores", here * CORE, here * CORE, 0, CORE_UTILISATION)
    if kind in DEVICES:
        return DEVICES[kind]
    try:
        flops = float(kind)
    except ValueError:
        return None
    return Device("device", flops, flops, 0, UTILISATION) if 1 <= flops < 1e21 else None
