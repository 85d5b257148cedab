"""Does this machine compute the bits that all others do? Asked once, when a process that trains or audits starts."""

import hashlib
import sys
from collections.abc import Sequence

import numpy as np

from dlx.ground.errors import DlxError
from dlx.training.codecs import codec
from dlx.training.models import weights
from dlx.training.outer.inner_products import Copied
from dlx.training.outer.step import Arrays, outer_step
from dlx.training.recipe.recipe import Outer, Plan

# Odd sizes exercise the ends of vectors, the large one several threads.
_SHAPES = {"bias": (7,), "embed": (1030, 129), "norm": (130,), "proj": (3, 100)}
_PLAN = Plan()
_PARTS = [0.625, np.float32(1 / 3).item()]
_OUTER = Outer(lr=0.7, momentum=0.9, nesterov=True)

# Whose encoders give the same bytes everywhere.
_ENCODERS = [
    ("int4", Plan(4)),
    ("int4", Plan(8)),
    ("ternary", Plan(2)),
    ("topk", Plan(2, rank=33)),
    ("topk", Plan(2, rank=256)),
]

GOLDEN = {
    "decoding": "34602b001f575d08e03926fa746dd7007fcaea6b48f3a18605e97ac18f9495dd",
    "encoding": "530d4f2a68ad7b893b83dceb16326baa99941b246a1dfa05f6df8f2caf8fb4fe",
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
    if wrong := differs():
        raise SelfTestError(f"self-test failed: {wrong} gives other bits here than on other machines; reinstall numpy")


def arithmetic_device(device: str) -> tuple[str | None, str]:
    """Where canonical arithmetic and codecs compute in a process that trains on this torch device: there, where they
    give the golden bits there; else None, for numpy. And a line for the operator, where that is so though it trains on
    an accelerator."""
    if device == "cpu":
        return None, ""
    if wrong := differs(device):
        return None, f"{device} is not used for canonical arithmetic: {wrong} gives other bits there; the CPU does it"
    return device, ""


def differs(device: str | None = None) -> str:
    """What gives other bits than the golden hashes say, with numpy or on a torch device; empty: nothing does. What the
    device cannot do at all counts."""
    try:
        found = digests(device)
    except (NotImplementedError, RuntimeError, TypeError) as error:
        if device is None:
            raise
        return f"an operation is missing ({str(error).splitlines()[0]}), which"
    return next((what for what, digest in found.items() if digest != GOLDEN[what]), "")


def digests(device: str | None = None) -> dict[str, str]:
    """What the golden hashes are compared with."""
    version, *gradients = (_decoded(seed, device) for seed in range(7))
    decoding = weights.weights_hash(version)
    momentum = {name: np.zeros_like(values) for name, values in version.items()}
    for first in range(0, 6, 2):
        _step(version, momentum, gradients[first : first + 2], device)
    values = {"b": [[0, 1, 2], [3, 4, 5]], "a.weight": [1.5], "scalar": -2.0}
    layout = {name: np.array(one, np.float32) for name, one in values.items()}
    return {
        "decoding": decoding.hex(),
        "encoding": _encoded(device),
        "the low-rank product": weights.weights_hash(_product(device)).hex(),
        "the outer step": hashlib.sha256(weights.weights_hash(version) + weights.weights_hash(momentum)).hexdigest(),
        "the file layout": hashlib.sha256(weights.serialise(layout)).hexdigest(),
    }


def _step(version: Arrays, momentum: Arrays, gradients: Sequence[Arrays], device: str | None) -> None:
    if device is None:
        outer_step(version, momentum, gradients, _PARTS, _OUTER)
        return
    from dlx.training.outer import on_device

    for name, values in version.items():
        piece = values.reshape(-1), momentum[name].reshape(-1)
        decoders = [Copied(one[name]) for one in gradients]
        on_device.step(piece, decoders, _PARTS, _OUTER, 0, device)


def _encoded(device: str | None) -> str:
    """Of payloads of whole numbers from a hash, which tie, times powers of two down to those that no scale holds."""
    tensors, digest = dict[str, np.ndarray](), hashlib.sha256()
    for name, shape in _SHAPES.items():
        size = int(np.prod(shape))
        values = np.frombuffer(hashlib.shake_128(f"encoded {name}".encode()).digest(2 * size), "<i2") // 64
        tensors[name] = np.ldexp(values.astype(np.float32), -(np.arange(size) // 97 % 32)).reshape(shape)
    for name, plan in _ENCODERS:
        payload = codec(name, device).encode(tensors, plan)
        digest.update(payload)
        digest.update(weights.weights_hash(codec(name, device).decode_arrays(payload, _SHAPES, plan)))
    return digest.hexdigest()


def _decoded(seed: int, device: str | None) -> dict[str, np.ndarray]:
    """An int4 payload from a hash's bits (scales of every exponent), decoded."""
    int4 = codec("int4", device)
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


def _product(device: str | None) -> dict[str, np.ndarray]:
    """A lowrank payload from a hash's bits, whose sums need every bit of a float64, decoded."""
    rows, columns, rank = 300, 129, 9
    bits = np.frombuffer(hashlib.shake_128(b"product").digest(rank * (rows + columns)), np.uint8)
    codes = (bits.astype(np.int64) % 15 - 7).reshape(rank, -1)
    codes[:, [0, rows]] = 1  # the canonical form of each component
    nibbles = np.append(codes.ravel() % 16, 0).astype(np.uint8)
    exponents = np.linspace(10, 10 - 42, rank).astype(np.int8)  # 42 + 6 + log2(9) bits are the most allowed
    payload = exponents.tobytes() + (nibbles[0::2] | (nibbles[1::2] << 4)).tobytes()
    name = "up_proj.weight"  # whose rule allows factors
    return {"w": codec("lowrank", device).decode_arrays(payload, {name: (rows, columns)}, Plan(rank=rank))[name]}


def _flushes_to_zero() -> bool:
    small = np.full(1000, 1e-30, np.float32)
    return bool((small * np.float32(1e-10) == 0).any())
