"""The codecs in torch's operations, on any device: the same bytes and bits as those in numpy, where the self-test says
so (`training.selftest.arithmetic_device`).

Every operation is a single IEEE one, element by element, or exact: comparisons, shifts, maxima, sums of whole numbers,
float64 products that fit. Nothing is divided by a number that lies on the host: CUDA multiplies by its reciprocal.
Arrays come from the host and go back to it; decoded blocks may stay on the device.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from dlx.training.codecs import int4, lowrank, ternary, topk
from dlx.training.codecs.base import Codec, CodecError, Decoder, Encoder, count, too_large
from dlx.training.recipe.recipe import Plan

_BLOCK = 1 << 20  # values decoded or encoded at a time


def codec_on(name: str, device: str) -> Codec:
    """The codec of that name, computing on a torch device."""
    kinds: dict[str, type[Codec]] = {"int4": _Int4, "lowrank": _LowRank, "ternary": _Ternary, "topk": _TopK}
    found = kinds[name]()
    found.device = device
    return found


class _OnDevice(Codec):
    device: str

    def _in_blocks(self, name: str, shape: tuple[int, ...], plan: Plan, out: np.ndarray) -> Encoder | None:
        return None  # fewer transfers


class _Int4(_OnDevice, int4.Int4):
    def _encode(
        self, name: str, tensor: np.ndarray, plan: Plan, out: np.ndarray, previous: tuple[np.ndarray, Plan] | None
    ) -> None:
        _encode_int4(name, tensor, plan.level, out, self.device)

    def decoder(self, name: str, data: np.ndarray, shape: tuple[int, ...], plan: Plan) -> Decoder:
        return _Groups(name, data, shape, plan.level, self.device)


class _LowRank(_OnDevice, lowrank.LowRank):
    """What it sends as factors it encodes on the host: by a search, whose bits are nobody else's."""

    def _encode(
        self, name: str, tensor: np.ndarray, plan: Plan, out: np.ndarray, previous: tuple[np.ndarray, Plan] | None
    ) -> None:
        if lowrank.factored(name, tuple(tensor.shape), plan):
            super()._encode(name, tensor, plan, out, previous)
        else:
            _encode_int4(name, tensor, plan.level, out, self.device)

    def decoder(self, name: str, data: np.ndarray, shape: tuple[int, ...], plan: Plan) -> Decoder:
        found = super().decoder(name, data, shape, plan)
        if isinstance(found, lowrank.Experts):
            return found  # it asks us for each
        if isinstance(found, lowrank.Product):
            return _Product(found, self.device)
        return _Groups(name, data, shape, plan.level, self.device)


class _Ternary(_OnDevice, ternary.Ternary):
    def _encode(
        self, name: str, tensor: np.ndarray, plan: Plan, out: np.ndarray, previous: tuple[np.ndarray, Plan] | None
    ) -> None:
        packer, flat = _Packer(name, tuple(tensor.shape), out, self.device), tensor.reshape(-1)
        block = _BLOCK // ternary.GROUP * ternary.GROUP
        for start in range(0, len(flat), block):
            packer.take(flat[start : start + block], start)

    def decoder(self, name: str, data: np.ndarray, shape: tuple[int, ...], plan: Plan) -> Decoder:
        return _Trits(name, data, shape, self.device)


class _TopK(_OnDevice, topk.TopK):
    at_once = _BLOCK // 4096

    def encode_chunks(self, name: str, values: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return _encode_chunks(name, torch.from_numpy(values).to(self.device), k)

    def decoder(self, name: str, data: np.ndarray, shape: tuple[int, ...], plan: Plan) -> Decoder:
        return _Chunks(name, data, shape, plan, self.device)


# ---- decoding


class _Groups(Decoder):
    """int4: groups of 128."""

    block = _BLOCK

    def __init__(self, name: str, data: np.ndarray, shape: tuple[int, ...], bits: int, device: str) -> None:
        groups = -(-count(shape) // int4.GROUP)
        self._name, self._bits, self._device = name, bits, device
        self._scales = data[: 2 * groups].view("<i2")
        self._packed = data[2 * groups :].reshape(groups, int4.GROUP * bits // 8)

    def into(self, out: Any, start: int) -> None:
        first, groups = start // int4.GROUP, -(-len(out) // int4.GROUP)
        half, here = 2 ** (self._bits - 1), slice(first, first + groups)
        scale_bits = _uploaded(self._scales[here], self._device)
        packed = _uploaded(self._packed[here], self._device)
        shifts = torch.arange(0, 8, self._bits, dtype=torch.uint8, device=self._device)
        codes = ((packed[..., None] >> shifts) & (2 * half - 1)).view(groups, int4.GROUP).to(torch.int16)
        codes = (codes ^ half) - half
        scales = scale_bits.view(torch.float16).float()
        largest, live = codes.abs().amax(dim=1), scales != 0
        values = (codes.float() * scales[:, None]).view(-1)
        wrong = torch.stack(
            [
                ((scale_bits < 0) | (scale_bits >= int4.INFINITE)).any(),
                (largest == half).any(),
                ((largest == half - 1) != live).any() | (codes[~live] != 0).any(),
                (values[len(out) :] != 0).any(),
            ]
        ).tolist()
        for is_so, what in zip(wrong, int4.faults(self._bits), strict=True):
            if is_so:
                raise CodecError(f"{self._name}: {what}")
        _hand_over(values[: len(out)], out)


class _Trits(ternary.Groups):
    """ternary: groups of 640."""

    block = _BLOCK // ternary.GROUP * ternary.GROUP

    def __init__(self, name: str, data: np.ndarray, shape: tuple[int, ...], device: str) -> None:
        super().__init__(name, data, shape)
        self._device = device

    def into(self, out: Any, start: int) -> None:
        """Scales and bytes are checked on the host: they are few."""
        scales, packed = self.checked(start, len(out))
        rest, digits = _uploaded(packed, self._device).to(torch.int16), []
        for _ in range(ternary.DIGITS):
            digits.append(rest % 3)
            rest = rest // 3
        codes = torch.stack(digits, dim=-1).view(len(scales), -1)
        codes = (codes & 1) - (codes >> 1)
        _hand_over((codes.float() * _uploaded(scales, self._device)[:, None]).view(-1)[: len(out)], out)


class _Chunks(topk.Chunks):
    block = _BLOCK

    def __init__(self, name: str, data: np.ndarray, shape: tuple[int, ...], plan: Plan, device: str) -> None:
        super().__init__(name, data, shape, plan)
        self._device = device

    def into(self, out: Any, start: int) -> None:
        """What is kept is checked and scaled on the host: it is little."""
        values = torch.zeros(len(out), device=self._device)
        for here, length, places, kept in self.kept_values(start, len(out)):
            at = _uploaded(places.astype(np.int64), self._device)
            values[here].view(-1, length).scatter_(1, at, _uploaded(kept, self._device))
        _hand_over(values, out)


class _Product(Decoder):
    """lowrank: exact until its one rounding."""

    def __init__(self, host: lowrank.Product, device: str) -> None:
        self._p, self._q = (_uploaded(factor, device) for factor in (host.p, host.q))
        self._columns = host.columns
        self.block = max(1, _BLOCK // self._columns) * self._columns

    def into(self, out: Any, start: int) -> None:
        first, rows = start // self._columns, len(out) // self._columns
        product = (self._p[:, first : first + rows].T @ self._q).float()
        _hand_over((product + 0).view(-1), out)  # a zero may come out as -0.0 or not


def _uploaded(values: np.ndarray, device: str) -> Tensor:
    return torch.from_numpy(np.array(values)).to(device)  # a copy: payloads are mapped, and not to be written


def _hand_over(values: Tensor, out: Any) -> None:
    (out if isinstance(out, Tensor) else torch.from_numpy(out)).copy_(values)


# ---- encoding


def _encode_int4(name: str, tensor: np.ndarray, bits: int, out: np.ndarray, device: str) -> None:
    flat = tensor.reshape(-1)
    groups = -(-len(flat) // int4.GROUP)
    scales, packed = out[: 2 * groups].reshape(groups, 2), out[2 * groups :].reshape(groups, -1)
    for start in range(0, len(flat), _BLOCK):
        piece = torch.from_numpy(flat[start : start + _BLOCK]).to(device)
        piece = torch.nn.functional.pad(piece, (0, -len(piece) % int4.GROUP)).view(-1, int4.GROUP)
        here = slice(start // int4.GROUP, start // int4.GROUP + len(piece))
        scale = _scales(name, piece, bits)
        scales[here] = scale.view(torch.uint8).view(-1, 2).cpu().numpy()
        packed[here] = _codes(piece, scale.float(), bits).cpu().numpy()


class _Packer(ternary.Packer):
    def __init__(self, name: str, shape: tuple[int, ...], out: np.ndarray, device: str) -> None:
        super().__init__(name, shape, out)
        self._device = device

    def encode(self, values: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        groups = torch.from_numpy(values).to(self._device)
        scales = _ternary_scales(self._name, groups, length)
        half = scales.float()[:, None] * 0.5
        half = torch.where(half == 0, torch.inf, half)
        digits = ((groups > half).to(torch.uint8) + 2 * (groups < -half).to(torch.uint8)).view(-1, ternary.DIGITS)
        packed = torch.zeros_like(digits[:, 0])
        for index in reversed(range(ternary.DIGITS)):
            packed = packed * 3 + digits[:, index]
        return scales.cpu().numpy(), packed.cpu().numpy()


def _ternary_scales(name: str, values: Tensor, length: int) -> Tensor:
    """As `ternary._scales`."""
    sizes = values.abs()
    largest = sizes.amax(dim=1)  # NaN if any value is
    if not bool((largest <= float(ternary.LARGEST)).all()):
        raise too_large(name)
    root = (_row_sums(sizes * sizes) / _number(length, values)).sqrt()
    counted = sizes >= (root * float(ternary.LEAST))[:, None]
    counted[:, length:] = False
    numbers = counted.sum(dim=1).float()
    return torch.minimum(_row_sums(sizes * counted) / numbers, largest).half()


def _codes(values: Tensor, scales: Tensor, bits: int) -> Tensor:
    """uint8 [n, 16 * bits] of float32 groups [n, 128] and their scales [n]."""
    largest = 2 ** (bits - 1) - 1
    divisors = torch.where(scales == 0, torch.inf, scales)[:, None]
    codes = torch.round(values / divisors).clamp(-largest, largest).to(torch.int8).view(torch.uint8)
    codes = (codes & (2**bits - 1)).view(len(values), -1, 8 // bits)
    packed = torch.zeros_like(codes[..., 0])
    for index in range(8 // bits):
        packed |= codes[..., index] << bits * index
    return packed


def _scales(name: str, values: Tensor, bits: int) -> Tensor:
    """As `int4._scales`."""
    largest = values.abs().amax(dim=1)  # NaN if any value is
    highest = largest / _number(2 ** (bits - 1) - 1, values)
    step = float(np.finfo(np.float16).smallest_subnormal)
    coarse = (highest * (1 / step)).floor() * step  # a power of two: exact
    highest = torch.where(highest < float(np.finfo(np.float16).tiny), coarse, highest).half()
    if not highest.isfinite().all():
        raise too_large(name)
    return highest


def _encode_chunks(name: str, values: Tensor, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """As `topk._encode_chunks`."""
    sizes = values.abs()
    if not bool(sizes.max() <= float(np.finfo(np.float16).max)):  # nor NaN
        raise too_large(name)
    sizes = torch.where(sizes < 2**-24, 0, sizes)
    places = _largest(sizes, k).nonzero()[:, 1].view(-1, k)
    sizes, negative = sizes.gather(1, places), values.gather(1, places) < 0
    live = sizes > 0
    full = live.all(dim=1, keepdim=True)
    high = torch.where(full, sizes > (_row_sums(sizes) / _number(k, values))[:, None], live)
    high |= full & ~high.any(dim=1, keepdim=True)
    magnitudes = torch.stack([_means(sizes, ~high), _means(sizes, high)], dim=1).half()
    same = magnitudes[:, 0] == magnitudes[:, 1]
    magnitudes[:, 0] = torch.where(same, 0, magnitudes[:, 0])
    high |= full & same[:, None]
    codes = high.to(torch.int8) | (negative & live).to(torch.int8) << 1
    return magnitudes.cpu().numpy(), places.view(-1).cpu().numpy().astype(np.uint16), codes.view(-1).cpu().numpy()


def _largest(sizes: Tensor, k: int) -> Tensor:
    """The k largest of each row as booleans; of equal ones the first."""
    lowest = sizes.topk(k, dim=1).values[:, -1:]
    above, equal = sizes > lowest, sizes == lowest
    left = k - above.sum(dim=1, keepdim=True)
    return above | (equal & (equal.cumsum(dim=1) <= left))


def _means(sizes: Tensor, chosen: Tensor) -> Tensor:
    return _row_sums(sizes * chosen) / chosen.sum(dim=1).clamp(min=1).float()


def _row_sums(values: Tensor) -> Tensor:
    """As `base.row_sums`."""
    while (width := values.shape[1]) > 1:
        half = width // 2
        left_over = values[:, 2 * half :]
        values = values[:, :half] + values[:, half : 2 * half]
        values[:, : left_over.shape[1]] += left_over
    return values[:, 0]


def _number(value: float, beside: Tensor) -> Tensor:
    """On the device, where a division by it is one."""
    return torch.full((), value, dtype=torch.float32, device=beside.device)
