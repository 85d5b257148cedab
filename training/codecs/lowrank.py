"""lowrank: a layer's matrix as the product of two thin ones (PowerSGD, arXiv 1905.13727), everything else as int4.

A matrix [m, n] that `factored` accepts becomes r = the plan's rank components. Component j has m codes of P, n codes of
Q, each -7..7, and one exponent; the matrix is the sum over j of 2^exponent[j] * P[:, j] * Q[:, j]^T. Its part holds the
r exponents (signed bytes), then the codes, component by component, P before Q, as two's complement nibbles, two a byte,
the earlier one in the low half. The last half byte is zero where their number is odd. In a tensor of experts [e, m, n]
each is such a matrix: the parts follow one another.

Each component has one form: of P and of Q some code is odd, and P's first code that is not zero is positive. Components
come with falling exponents, those of equal exponent with rising bytes (a code is a byte there), zero ones last.

Decoding is exact, so no machine can disagree about it. A product of codes has 6 bits, and as the exponents of one
matrix lie close enough together, every sum of r products, in whatever order, fits the 53 bits of a float64. It is
rounded once, to float32.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from dlx.training.codecs import int4
from dlx.training.codecs.base import Codec, CodecError, Decoder, Encoder, Examiner, count, spans, too_large
from dlx.training.codecs.packing import CODES, UNUSED, pack
from dlx.training.models.weights import array
from dlx.training.recipe import codec_info
from dlx.training.recipe.parameters import rule
from dlx.training.recipe.recipe import Plan

if TYPE_CHECKING:
    from torch import Tensor

_LARGEST = 7  # code
_MOST = float(np.finfo(np.float16).max)  # that a value may be, as in int4
_BITS = 4
_SUM_BITS = 52  # that the exponents' spread, 6 bits of a product and log2(rank) may take together
_LOWEST, _HIGHEST = -128, 100  # exponents; beyond the highest a sum might not fit a float32
MISFIT = 0.02  # that a payload's Q may be off the rounded fit to its P, relative to the fit
KEEPS = 0.5  # the least part of what a search from nothing keeps that an honest payload does
_BLOCK = 1 << 18  # values of a product worked on at a time

# Steps to try for each row of a factor, as parts of the one that its largest value needs. P's may be any: Q makes up
# for them. Q's are powers of two.
_P_STEPS = np.array([[1.0], [0.7], [0.5], [0.35]])
_Q_STEPS = np.array([[1.0], [0.5], [0.25]])


class LowRank(Codec):
    info = codec_info.LOWRANK

    def _size(self, name: str, shape: tuple[int, ...], plan: Plan) -> int:
        if not factored(name, shape, plan):
            return int4.part_size(shape, plan.level)
        *experts, rows, columns = shape
        return math.prod(experts) * _part_size((rows, columns), plan.rank)

    def _encode(
        self, name: str, tensor: np.ndarray, plan: Plan, out: np.ndarray, previous: tuple[np.ndarray, Plan] | None
    ) -> None:
        if not factored(name, tuple(tensor.shape), plan):
            int4.encode_part(name, tensor, plan.level, out)
            return
        if tensor.ndim == 3:
            old = _apart(name, tensor.shape, previous)
            for matrix, part, before in zip(tensor, out.reshape(len(tensor), -1), old, strict=True):
                self._encode(name, matrix, plan, part, before)
            return
        start = _start(name, tuple(tensor.shape), plan.rank, previous)
        exponents, codes = _factor(name, tensor, start)
        out[: plan.rank] = exponents.view(np.uint8)
        padded = np.zeros(codes.size + codes.size % 2, np.int8)
        padded[: codes.size] = codes.reshape(-1)
        out[plan.rank :] = pack(padded, _BITS)

    def _in_blocks(self, name: str, shape: tuple[int, ...], plan: Plan, out: np.ndarray) -> Encoder | None:
        return None if factored(name, shape, plan) else int4.Packer(name, shape, plan.level, out)

    def decoder(self, name: str, data: np.ndarray, shape: tuple[int, ...], plan: Plan) -> Decoder:
        if not factored(name, shape, plan):
            return int4.Groups(name, data, shape, plan.level)
        if len(shape) == 3:
            parts = data.reshape(shape[0], -1)
            return Experts(lambda index: self.decoder(name, parts[index], shape[1:], plan), count(shape[1:]))
        packed = data[plan.rank :]
        if UNUSED[_BITS][packed].any():
            raise CodecError(f"{name}: a code is -8")
        if plan.rank * sum(shape) % 2 and packed[-1] >> 4:
            raise CodecError(f"{name}: the padding is not zero")
        exponents, codes = _unpack(data, shape, plan.rank)
        _check(name, exponents, codes, shape[0])
        return Product(exponents, codes, shape)

    def examiner(self, plan: Plan) -> Examiner:
        return _Examiner(self, plan)


class Product(Decoder):
    """The float32 matrix that checked components make. Exact until its one rounding, so BLAS may sum as it likes."""

    def __init__(self, exponents: np.ndarray, codes: np.ndarray, shape: tuple[int, ...]) -> None:
        rows, self.columns = shape
        live = _common(codes) > 0
        self.p = np.ldexp(codes[live, :rows].astype(np.float64), exponents[live, None].astype(np.int32))
        self.q = codes[live, rows:].astype(np.float64)
        self.block = max(1, _BLOCK // self.columns) * self.columns

    def into(self, out: np.ndarray, start: int) -> None:
        first, rows = start // self.columns, len(out) // self.columns
        out.reshape(rows, self.columns)[...] = np.matmul(self.p[:, first : first + rows].T, self.q)
        out += np.float32(0)  # a zero may come out as -0.0 or not, depending on the order


class Experts(Decoder):
    """One matrix after the other; each is a block."""

    def __init__(self, decoder: Callable[[int], Decoder], size: int) -> None:
        self._decoder, self.block = decoder, size

    def into(self, out: Any, start: int) -> None:
        for first in range(0, len(out), self.block):
            matrix = self._decoder((start + first) // self.block)
            for place, length in spans(self.block, matrix.block):
                matrix.into(out[first + place : first + place + length], place)


class _Examiner(Examiner):
    """Machines multiply matrices in different orders, and a slot starts its search where its last one ended. What holds
    for all: Q is the fit to P, P keeps about what a search from nothing keeps, and the rest is int4."""

    def __init__(self, codec: Codec, plan: Plan) -> None:
        super().__init__(codec, plan)
        self._apart = self._fitted = self._kept = self._expected = 0.0

    def see(self, name: str, tensor: Tensor | np.ndarray, data: np.ndarray) -> None:
        shape, rank = tuple(tensor.shape), self._plan.rank
        if self._fault or not factored(name, shape, self._plan):
            super().see(name, tensor, data)
            return
        if len(shape) == 3:
            for matrix, part in zip(tensor, data.reshape(shape[0], -1), strict=True):
                self.see(name, matrix, part)
            return
        values, (exponents, codes) = array(tensor), _unpack(data, shape, rank)
        live = _common(codes) > 0
        apart, fitted = _misfit(values, exponents[live], codes[live])
        try:
            own_factors = _factor(name, values, _start(name, shape, rank, None))
        except CodecError as error:
            self._fault = str(error)
            return
        self._apart, self._fitted = self._apart + apart, self._fitted + fitted
        self._kept += _kept(values, _matrix(exponents, codes, shape))
        self._expected += _kept(values, _matrix(*own_factors, shape))

    def fault(self) -> str:
        if self._fault:
            return self._fault
        if self._apart > (MISFIT * MISFIT) * self._fitted:
            off = (self._apart / self._fitted) ** 0.5 if self._fitted else 1
            return f"a factor is {off:.2g} off the fit to the other one"
        if self._kept < KEEPS * self._expected:
            return f"it keeps {self._kept / self._expected:.2g} of what a search from nothing keeps"
        return ""


def factored(name: str, shape: tuple[int, ...], plan: Plan) -> bool:
    """Whether the tensor, a matrix or one for each expert, is sent as two factors each: where its rule allows it, and a
    matrix is smaller that way than as int4."""
    matrix = shape[-2:]
    if not rule(name).factored or len(shape) not in (2, 3) or plan.rank > min(matrix):
        return False
    return _part_size(matrix, plan.rank) < int4.part_size(matrix, plan.level)


def _apart(
    name: str, shape: tuple[int, ...], previous: tuple[np.ndarray, Plan] | None
) -> Sequence[tuple[np.ndarray, Plan] | None]:
    """The parts of each expert of an earlier payload."""
    if previous is None or not factored(name, shape, previous[1]):
        return [None] * shape[0]
    return [(part, previous[1]) for part in previous[0].reshape(shape[0], -1)]


def _part_size(shape: tuple[int, ...], rank: int) -> int:
    return rank + -(-rank * sum(shape) // 2)


def _unpack(data: np.ndarray, shape: tuple[int, ...], rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Exponents int8 [r] and codes int8 [r, m + n] of a part."""
    codes = CODES[_BITS][data[rank:]].reshape(-1)
    return data[:rank].view(np.int8), codes[: rank * sum(shape)].reshape(rank, -1)


# Encoding: whatever it finds is right, because error feedback keeps the rest.


def _start(name: str, shape: tuple[int, ...], rank: int, previous: tuple[np.ndarray, Plan] | None) -> Tensor:
    """Directions [n, r] to begin with, float32: the previous payload's Q, and signs from a hash for what it lacks."""
    import torch

    rows, columns = shape
    bits = hashlib.shake_128(name.encode()).digest(-(-columns * rank // 8))
    signs = np.unpackbits(np.frombuffer(bits, np.uint8), count=columns * rank).reshape(rank, columns)
    start = signs.astype(np.float32) * 2 - 1
    if previous is not None and factored(name, shape, previous[1]):
        codes = _unpack(previous[0], shape, previous[1].rank)[1][:rank, rows:]
        known = codes.any(axis=1)
        start[: len(codes)][known] = codes[known]
    return torch.from_numpy(start).T


def _factor(name: str, values: np.ndarray, start: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Exponents int8 [r] and codes int8 [r, m + n] for a float32 matrix [m, n], after one power iteration."""
    import torch

    matrix = torch.from_numpy(values)
    low, high = (float(end) for end in torch.aminmax(matrix))
    if not max(-low, high) <= _MOST:  # nor NaN
        raise too_large(name)
    p = torch.linalg.qr(matrix @ start).Q.T.contiguous().numpy()
    p_codes, _ = _quantise(p, _largest(p) / _LARGEST * _P_STEPS)
    # Q is fitted to the codes of P, not to P itself, so that only its own rounding is lost.
    q_codes, steps = _quantise_fit(_fit(p_codes, matrix))
    return _canonical(np.concatenate([p_codes, q_codes], axis=1), np.frexp(steps)[1] - 1, len(matrix))


def _fit(p_codes: np.ndarray, matrix: Tensor) -> np.ndarray:
    """Q [r, n] with which P's codes [r, m] come nearest to the matrix [m, n]."""
    import torch

    codes = torch.from_numpy(p_codes.astype(np.float32))
    gram = (codes @ codes.T).double()
    gram.diagonal().mul_(1 + 1e-6)  # codes of a small P may depend on each other
    return torch.linalg.solve(gram, (codes @ matrix).double()).float().numpy()


def _quantise_fit(q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return _quantise(q, np.ldexp(1.0, np.frexp(_largest(q) / _LARGEST)[1]) * _Q_STEPS)


def _misfit(values: np.ndarray, exponents: np.ndarray, codes: np.ndarray) -> tuple[float, float]:
    """Of live components: squared norms of what their Q is off the rounded fit to their P, and of that fit. Each row
    weighs as P's does, so both are in the matrix's unit but for the angles between P's rows."""
    import torch

    if not len(codes):
        return 0.0, 0.0
    rows = len(values)
    p, q = codes[:, :rows], np.ldexp(codes[:, rows:].astype(np.float64), exponents[:, None].astype(np.int32))
    fit_codes, steps = _quantise_fit(_fit(p, torch.from_numpy(values)))
    fit = fit_codes * steps[:, None].astype(np.float64)
    weight = np.square(p.astype(np.float64)).sum(axis=1)
    return float(weight @ np.square(q - fit).sum(axis=1)), float(weight @ np.square(fit).sum(axis=1))


def _kept(values: np.ndarray, decoded: np.ndarray) -> float:
    """How much of the squared norm of a matrix a payload takes away."""
    whole = values.astype(np.float64)
    return float(np.square(whole).sum() - np.square(whole - decoded).sum())


def _largest(factor: np.ndarray) -> np.ndarray:
    """The largest size [r] in each row; what is below any use counts as a little more than zero."""
    return np.maximum(np.maximum(factor.max(axis=1), -factor.min(axis=1)), np.float32(1e-30))


def _quantise(factor: np.ndarray, steps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Codes int8 [r, n] of float32 rows and each row's step [r]: of its `steps` [tries, r] the one that loses least.

    The first fits the largest value; smaller ones clip it, and are often worth it.
    """
    codes, chosen = np.zeros(factor.shape, np.int8), np.zeros(len(factor), np.float32)
    least = np.full(len(factor), np.inf, np.float32)
    for step in steps.astype(np.float32):
        scaled = factor / step[:, None]
        rounded = np.rint(scaled)
        np.clip(rounded, -_LARGEST, _LARGEST, out=rounded)
        scaled -= rounded
        lost = np.einsum("ij,ij->i", scaled, scaled) * step * step
        better = lost < least
        codes[better] = rounded[better]
        chosen[better], least[better] = step[better], lost[better]
    return codes, chosen


def _canonical(codes: np.ndarray, exponents: np.ndarray, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """The one form of each component that `_check` lets through, in the one order; what has none is left out."""
    for factor in (codes[:, :rows], codes[:, rows:]):
        powers = np.frexp(np.maximum(_common(factor), 1))[1] - 1
        factor >>= powers[:, None].astype(np.int8)
        exponents = exponents + powers
    codes *= _signs(codes, rows)[:, None]
    live = (_common(codes[:, :rows]) > 0) & (_common(codes[:, rows:]) > 0)
    live &= exponents >= exponents[live].max(initial=_LOWEST) - _most_spread(len(codes))
    found = {_key(exponents[j], codes[j]): j for j in np.flatnonzero(live)}  # equal ones once
    order = [found[key] for key in sorted(found)]
    sorted_exponents, sorted_codes = np.zeros(len(codes), np.int8), np.zeros_like(codes)
    sorted_exponents[: len(order)], sorted_codes[: len(order)] = exponents[order], codes[order]
    return sorted_exponents, sorted_codes


# Decoding: every step is a check or exact.


def _check(name: str, exponents: np.ndarray, codes: np.ndarray, rows: int) -> None:
    """Raises CodecError unless the components (exponents int8 [r], codes int8 [r, m + n]) have their canonical form."""
    p, q = codes[:, :rows], codes[:, rows:]
    live = _common(p) > 0
    number = int(live.sum())
    if (live != (_common(q) > 0)).any() or live[number:].any() or exponents[number:].any():
        raise CodecError(f"{name}: a component is zero and not all of it, or not at the end")
    if (_common(p) > 1).any() or (_common(q) > 1).any() or (_signs(codes, rows) < 0).any():
        raise CodecError(f"{name}: a component has another sign or power of two than its canonical form")
    if any(one >= next for one, next in pairwise(_key(exponents[j], codes[j]) for j in range(number))):
        raise CodecError(f"{name}: the components are not in their order")
    if number and int(exponents[0]) > _HIGHEST:
        raise CodecError(f"{name}: an exponent is above {_HIGHEST}")
    if number and int(exponents[0]) - int(exponents[number - 1]) > _most_spread(len(codes)):
        raise CodecError(f"{name}: the exponents lie more than {_most_spread(len(codes))} apart")


def _most_spread(rank: int) -> int:
    """The largest spread with which spread + 6 + log2(rank) is within the bits of an exact sum."""
    return _SUM_BITS - 6 - (rank - 1).bit_length()


def _key(exponent: int, codes: np.ndarray) -> tuple[int, bytes]:
    """What the components are ordered by."""
    return -int(exponent), codes.tobytes()


def _common(factor: np.ndarray) -> np.ndarray:
    """The largest power of two [r] in all codes of each row: 1, 2 or 4; 0 for a row of zeros."""
    bits = np.bitwise_or.reduce(factor, axis=1)
    return bits & -bits


def _signs(codes: np.ndarray, rows: int) -> np.ndarray:
    """The sign [r] of each component's first code of P that is not zero."""
    first = (codes[:, :rows] != 0).argmax(axis=1)
    return np.sign(codes[np.arange(len(codes)), first])


def _matrix(exponents: np.ndarray, codes: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The float32 matrix that checked components make."""
    decoder, values = Product(exponents, codes, shape), np.empty(count(shape), np.float32)
    for start, length in spans(len(values), decoder.block):
        decoder.into(values[start : start + length], start)
    return values.reshape(shape)
