"""topk: of each chunk of 4,096 values the k = the plan's rank largest, two bits each (SparseLoCo, arXiv 2508.15706).

A tensor is flattened and cut into chunks; a last, shorter one of length l keeps ceil(k * l / 4096) values. Layout of a
tensor's part: for each chunk its two magnitudes, low and high (little-endian fp16); then the places of the kept values
inside their chunks, ascending, 12 bits each; then two bits for each of them: bit 0 chooses the high magnitude, bit 1 is
the sign. Numbers fill bytes from the lowest bits up; what the last byte of places and of values has left over is zero.

Low is below high. Where a chunk needs only one magnitude, or has fewer than k values to send, low is zero; it then
lists, as low and positive, the first places that hold nothing, and a chunk of zeros has both magnitudes zero.
"""

from collections.abc import Iterator

import numpy as np

from dlx.training.codecs.base import Codec, CodecError, Decoder, count, row_sums, too_large
from dlx.training.codecs.packing import CODES, pack, pack12, packed12, unpack12
from dlx.training.recipe import codec_info
from dlx.training.recipe.recipe import Plan

_CHUNK = 4096
_BITS = 2
_SMALLEST = np.float32(2**-24)  # an fp16: what is smaller counts as zero, and the residual keeps it
_INFINITE = 0x7C00  # fp16 bits; those of NaN and of negative numbers are higher


class TopK(Codec):
    info = codec_info.TOPK
    at_once = 32  # chunks encoded: the temporaries stay in the cache

    def _size(self, name: str, shape: tuple[int, ...], plan: Plan) -> int:
        chunks, kept = -(-count(shape) // _CHUNK), _kept(shape, plan)
        return 4 * chunks + packed12(kept) + -(-kept // 4)

    def _encode(
        self, name: str, tensor: np.ndarray, plan: Plan, out: np.ndarray, previous: tuple[np.ndarray, Plan] | None
    ) -> None:
        shape = tuple(tensor.shape)
        flat = tensor.reshape(-1)
        kept = _kept(shape, plan)
        magnitudes = np.empty((-(-count(shape) // _CHUNK), 2), "<f2")
        places, codes = np.empty(kept, np.uint16), np.zeros(-(-kept // 4) * 4, np.int8)
        for chunks, values, k, length in _pieces(len(flat), plan.rank, kept):
            for start in range(chunks.start, chunks.stop, self.at_once):
                here = slice(start, min(start + self.at_once, chunks.stop))
                block = flat[start * _CHUNK : here.stop * _CHUNK].reshape(-1, length)
                first = values.start + (start - chunks.start) * k
                there = slice(first, first + len(block) * k)
                magnitudes[here], places[there], codes[there] = self.encode_chunks(name, block, k)
        parts = (magnitudes.view(np.uint8).reshape(-1), pack12(places), pack(codes, _BITS))
        np.concatenate(parts, out=out)

    def encode_chunks(self, name: str, values: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Magnitudes fp16 [n, 2], places [n * k] and codes int8 [n * k] of float32 chunks [n, length]."""
        return _encode_chunks(name, values, k)

    def decoder(self, name: str, data: np.ndarray, shape: tuple[int, ...], plan: Plan) -> Decoder:
        return Chunks(name, data, shape, plan)


class Chunks(Decoder):
    """A tensor's part (uint8) that has the right size."""

    block = 64 * _CHUNK

    def __init__(self, name: str, data: np.ndarray, shape: tuple[int, ...], plan: Plan) -> None:
        self._name, self._rank, self._count, self._kept = name, plan.rank, count(shape), _kept(shape, plan)
        chunks = -(-self._count // _CHUNK)
        self._magnitudes = np.frombuffer(data[: 4 * chunks].tobytes(), "<u2").reshape(-1, 2)
        packed = data[4 * chunks :]
        self._places, self._codes = packed[: packed12(self._kept)], packed[packed12(self._kept) :]
        half, spare = self._kept % 2, self._kept % 4  # what the last bytes have left over is zero
        if (half and self._places[-1] >> 4) or (spare and self._codes[-1] >> _BITS * spare):
            raise CodecError(f"{name}: the padding is not zero")

    def into(self, out: np.ndarray, start: int) -> None:
        out[...] = 0
        for here, length, places, values in self.kept_values(start, len(out)):
            np.put_along_axis(out[here].reshape(-1, length), places.astype(np.int64), values, axis=1)

    def kept_values(self, start: int, length: int) -> Iterator[tuple[slice, int, np.ndarray, np.ndarray]]:
        """Of so many values, the chunks of each length: where they are, that length, and places uint16 [n, k] and
        values float32 [n, k] of what they keep."""
        first, (full, rest) = start // _CHUNK, divmod(length, _CHUNK)
        begin = first * self._rank  # of the kept values: a block's places and codes fill whole bytes
        end = self._kept if rest else begin + full * self._rank
        places = unpack12(self._places[packed12(begin) : packed12(end)], end - begin)
        codes = CODES[_BITS][self._codes[begin // 4 : -(-end // 4)]].reshape(-1).view(np.uint8) & 3
        for chunks, kept, k, size in _pieces(length, self._rank, end - begin):
            magnitudes = self._magnitudes[first + chunks.start : first + chunks.stop]
            found = places[kept].reshape(-1, k), codes[kept].reshape(-1, k)
            here = slice(chunks.start * _CHUNK, chunks.start * _CHUNK + len(magnitudes) * size)
            yield here, size, found[0], _values(self._name, magnitudes, *found, size)


def _kept(shape: tuple[int, ...], plan: Plan) -> int:
    """The values that are kept of a tensor."""
    return -(-count(shape) * plan.rank // _CHUNK)


def _pieces(length: int, rank: int, kept: int) -> Iterator[tuple[slice, slice, int, int]]:
    """Of so many values, of which `kept` are kept: the full chunks, then the short one. Which chunks and which kept
    values they are, and k and length of each."""
    full, rest = divmod(length, _CHUNK)
    if full:
        yield slice(0, full), slice(0, full * rank), rank, _CHUNK
    if rest:
        yield slice(full, full + 1), slice(full * rank, kept), kept - full * rank, rest


def _encode_chunks(name: str, values: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    sizes = np.abs(values)
    if not sizes.max() <= np.finfo(np.float16).max:  # nor NaN
        raise too_large(name)
    sizes[sizes < _SMALLEST] = 0
    kept = np.flatnonzero(_largest(sizes, k))
    places = kept % values.shape[1]
    sizes, negative = sizes.reshape(-1)[kept].reshape(-1, k), values.reshape(-1)[kept].reshape(-1, k) < 0
    live = sizes > 0
    full = live.all(axis=1, keepdims=True)
    # Two magnitudes: the means of what is above the mean and of the rest. One where zeros have to be told apart.
    high = np.where(full, sizes > (row_sums(sizes) / np.float32(k))[:, None], live)
    high |= full & ~high.any(axis=1, keepdims=True)  # all are of one size
    magnitudes = np.stack([_means(sizes, ~high), _means(sizes, high)], axis=1).astype(np.float16)
    same = magnitudes[:, 0] == magnitudes[:, 1]
    magnitudes[same, 0] = 0
    high |= full & same[:, None]
    return magnitudes, places, (high | (negative & live) << 1).astype(np.int8).reshape(-1)


def _largest(sizes: np.ndarray, k: int) -> np.ndarray:
    """The k largest of each row [n, length] as booleans; of equal ones the first."""
    length = sizes.shape[1]
    lowest = np.partition(sizes, length - k, axis=1)[:, length - k, None]
    chosen = sizes >= lowest
    tied = np.flatnonzero(np.count_nonzero(chosen, axis=1) > k)
    if len(tied):
        above, equal = sizes[tied] > lowest[tied], sizes[tied] == lowest[tied]
        left = k - np.count_nonzero(above, axis=1)[:, None]
        chosen[tied] = above | (equal & (np.cumsum(equal, axis=1, dtype=np.int16) <= left))
    return chosen


def _means(sizes: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """The mean [n] of those chosen in each row; 0 where none is."""
    return row_sums(sizes * chosen) / np.maximum(np.count_nonzero(chosen, axis=1), 1).astype(np.float32)


def _values(name: str, bits: np.ndarray, places: np.ndarray, codes: np.ndarray, length: int) -> np.ndarray:
    """The kept values float32 [n, k] of chunks: the bits of their magnitudes uint16 [n, 2], places uint16 [n, k] and
    codes uint8 [n, k]. Raises CodecError unless that is canonical."""
    low, high = bits[:, :1], bits[:, 1:]
    if (high >= _INFINITE).any() or ((low >= high) & (high != 0)).any() or (low > high).any():
        raise CodecError(f"{name}: a magnitude is negative or not finite, or low is not below high")
    if (places[:, 1:] <= places[:, :-1]).any() or (places[:, -1] >= length).any():
        raise CodecError(f"{name}: places are not ascending or outside their chunk")
    is_low = (codes & 1) == 0
    if (is_low.all(axis=1, keepdims=True) != (high == 0)).any() or (
        (low != 0) & ~is_low.any(axis=1, keepdims=True)
    ).any():
        raise CodecError(f"{name}: a magnitude is not used, or used and zero")
    empty = is_low & (low == 0)
    if (empty & ((codes != 0) | (places != np.arange(places.shape[1])))).any():
        raise CodecError(f"{name}: a place without a value is not one of the first")
    magnitudes = bits.astype(np.uint16).view(np.float16).astype(np.float32)
    signed = np.concatenate([magnitudes, -magnitudes], axis=1)
    return np.take_along_axis(signed, codes, axis=1)
