"""Does this machine compute the bits that all others do? Asked once, when a process that trains or audits starts."""

import hashlib
import sys

import numpy as np

from dlx.ground.errors import DlxError
from dlx.training.codecs import codec
from dlx.training.models import weights
from dlx.training.outer.step import outer_step
from dlx.training.recipe.recipe import Outer, Plan

# Odd sizes exercise the ends of vectors, the large one several threads.
_SHAPES = {"bias": (7,), "embed": (1030, 129), "norm": (130,), "proj": (3, 100)}
_PLAN = Plan()
_PARTS = [0.625, np.float32(1 / 3).item()]
_OUTER = Outer(lr=0.7, momentum=0.9, nesterov=True)

_GOLDEN = {
    "decoding": "34602b001f575d08e03926fa746dd7007fcaea6b48f3a18605e97ac18f9495dd",
    "the low-rank product": "de2004742d107dcd56ce239955aeec56d0b7da4a9adb2aef6b3738c2f0221010",
    "the outer step": "c1700036badcbfc6d633ba92e2c78f5f72fee532af81d6ebb7e749290ce02c0c",
    "the file layout": "34cc963aeb4c4ebb1b651c0f3be3e765123929bf11f4949279a4bf29adb00e27",
}


class SelfTestError(DlxError, RuntimeError):
    """This machine or installation computes other bits than the network: it can neither train nor audit."""


def run() -> None:
    """Raises SelfTestError naming what differs."""
    if sys.byteorder != "little":
        raise SelfTestError("self-test failed: this machine is not little-endian")
    if _flushes_to_zero():
        raise SelfTestError("self-test failed: denormal numbers become zero; leave torch.set_flush_denormal off")
    for what, digest in digests().items():
        if digest != _GOLDEN[what]:
            raise SelfTestError(
                f"self-test failed: {what} gives other bits here than on other machines; reinstall numpy"
            )


def digests() -> dict[str, str]:
    """What the golden hashes are compared with."""
    version, *gradients = (_decoded(seed) for seed in range(7))
    decoding = weights.weights_hash(version)
    momentum = None
    for first in range(0, 6, 2):
        momentum = outer_step(version, momentum, gradients[first : first + 2], _PARTS, _OUTER)
    assert momentum is not None
    values = {"b": [[0, 1, 2], [3, 4, 5]], "a.weight": [1.5], "scalar": -2.0}
    layout = {name: np.array(one, np.float32) for name, one in values.items()}
    return {
        "decoding": decoding.hex(),
        "the low-rank product": weights.weights_hash(_product()).hex(),
        "the outer step": hashlib.sha256(weights.weights_hash(version) + weights.weights_hash(momentum)).hexdigest(),
        "the file layout": hashlib.sha256(weights.serialise(layout)).hexdigest(),
    }


def _decoded(seed: int) -> dict[str, np.ndarray]:
    """An int4 payload from a hash's bits (scales of every exponent), decoded."""
    int4 = codec("int4")
    payload = b""
    for name, shape in sorted(_SHAPES.items()):
        count = int(np.prod(shape))
        groups = -(-count // 128)
        bits = np.frombuffer(hashlib.shake_128(f"{seed} {name}".encode()).digest(groups * 66), np.uint8)
        scales = np.maximum(bits[: 2 * groups].view("<u2") % 0x7C00, 1)
        nibbles = np.stack([bits[2 * groups :] % 16, bits[2 * groups :] // 16], axis=1).ravel()
        nibbles[nibbles == 8] = 1
        nibbles[::128] = 7  # the canonical form of each group
        nibbles[count:] = 0
        payload += scales.astype("<u2").tobytes() + (nibbles[0::2] | (nibbles[1::2] << 4)).tobytes()
    return int4.decode_arrays(payload, _SHAPES, _PLAN)


def _product() -> dict[str, np.ndarray]:
    """A lowrank payload from a hash's bits, whose sums need every bit of a float64, decoded."""
    rows, columns, rank = 300, 129, 9
    bits = np.frombuffer(hashlib.shake_128(b"product").digest(rank * (rows + columns)), np.uint8)
    codes = (bits.astype(np.int64) % 15 - 7).reshape(rank, -1)
    codes[:, [0, rows]] = 1  # the canonical form of each component
    nibbles = np.append(codes.ravel() % 16, 0).astype(np.uint8)
    exponents = np.linspace(10, 10 - 42, rank).astype(np.int8)  # 42 + 6 + log2(9) bits are the most allowed
    payload = exponents.tobytes() + (nibbles[0::2] | (nibbles[1::2] << 4)).tobytes()
    name = "up_proj.weight"  # whose rule allows factors
    return {"w": codec("lowrank").decode_arrays(payload, {name: (rows, columns)}, Plan(rank=rank))[name]}


def _flushes_to_zero() -> bool:
    small = np.full(1000, 1e-30, np.float32)
    return bool((small * np.float32(1e-10) == 0).any())
