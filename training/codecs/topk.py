"""topk: of each chunk of 4,096 values the k = the plan's rank largest, two bits each (SparseLoCo, arXiv 2508.15706).

A tensor is flattened and cut into chunks; a last, shorter one of length l keeps ceil(k * l / 4096) values. Their places
inside a chunk, ascending, are coded as Elias and Fano did. The low b = floor(log2(4096 / k)) bits as they are, the
others as marks in a row of bits, one at (place >> b) + i for place i. All counted that is a twentieth more than Rice
codes of the gaps would take, and always the same. Payloads of a plan have one size, no chunk has to be looked for, and
no place costs more to decode than another.

Layout of a tensor's part: for each chunk its two magnitudes, low and high (little-endian fp16). Then each chunk's
marks, whole bytes; then the low bits of all places; then two bits for each kept value: bit 0 chooses the high
magnitude, bit 1 is the sign. Numbers fill bytes from the lowest bits up; what a last byte has left over is zero.

Low is below high. Where a chunk needs only one magnitude, or has fewer than k values to send, low is zero. It then
lists, as low and positive, the first places that hold nothing, and a chunk of zeros has both magnitudes zero.
"""

from collections.abc import Iterator

import numpy as np

from dlx.training.codecs.base import Codec, CodecError, Decoder, count, row_sums, too_large
from dlx.training.codecs.packing import CODES, pack, pack_numbers, packed_size, unpack_numbers
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
        return _Layout(count(shape), plan.rank).size

    def _encode(
        self, name: str, tensor: np.ndarray, plan: Plan, out: np.ndarray, previous: tuple[np.ndarray, Plan] | None
    ) -> None:
        flat = tensor.reshape(-1)
        layout = _Layout(len(flat), plan.rank)
        magnitudes = np.empty((layout.chunks, 2), "<f2")
        places, codes = np.empty(layout.kept, np.uint16), np.zeros(-(-layout.kept // 4) * 4, np.int8)
        for chunks, kept, k, length in layout.pieces(0, len(flat)):
            for start in range(chunks.start, chunks.stop, self.at_once):
                here = slice(start, min(start + self.at_once, chunks.stop))
                block = flat[start * _CHUNK : here.stop * _CHUNK].reshape(-1, length)
                first = kept.start + (start - chunks.start) * k
                there = slice(first, first + len(block) * k)
                magnitudes[here], places[there], codes[there] = self.encode_chunks(name, block, k)
                out[layout.marks(here)] = _marked(places[there].reshape(-1, k), length, layout.low_bits)
        out[: 4 * layout.chunks] = magnitudes.view(np.uint8).reshape(-1)
        everything = slice(0, layout.kept)
        out[layout.lows(everything)] = pack_numbers(places & (2**layout.low_bits - 1), layout.low_bits)
        out[layout.codes(everything)] = pack(codes, _BITS)

    def encode_chunks(self, name: str, values: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Magnitudes fp16 [n, 2], places [n * k] and codes int8 [n * k] of float32 chunks [n, length]."""
        return _encode_chunks(name, values, k)

    def decoder(self, name: str, data: np.ndarray, shape: tuple[int, ...], plan: Plan) -> Decoder:
        return Chunks(name, data, shape, plan)

    def evidence(self, shape: tuple[int, ...], plan: Plan, data: np.ndarray, index: int) -> list[slice]:
        layout, (chunk, place) = _Layout(count(shape), plan.rank), divmod(index, _CHUNK)
        before, marks = chunk * plan.rank, layout.marks(slice(chunk, chunk + 1))
        kept = min(plan.rank, layout.kept - before)
        highs, high = _highs("chunk", data[marks].reshape(1, -1), kept)[0], place >> layout.low_bits
        first, end = (before + int(np.searchsorted(highs, high, side)) for side in ("left", "right"))
        if first == end:
            return [marks]
        width, start = layout.low_bits, layout.lows(slice(0, 0)).start
        lows = slice(start + width * first // 8, start - (-width * end // 8))
        bits = np.unpackbits(data[lows], bitorder="little")[width * first % 8 :][: width * (end - first)]
        same = np.flatnonzero(bits.reshape(-1, width) @ (1 << np.arange(width)) == place % (1 << width))
        if not len(same):
            return [marks, lows]
        code = layout.codes(slice(0, 0)).start + (first + int(same[0])) // 4
        return [marks, lows, slice(code, code + 1), slice(4 * chunk, 4 * chunk + 4)]


class Chunks(Decoder):
    """A tensor's part (uint8) that has the right size."""

    block = 64 * _CHUNK

    def __init__(self, name: str, data: np.ndarray, shape: tuple[int, ...], plan: Plan) -> None:
        self._name, self._data, self._layout = name, data, _Layout(count(shape), plan.rank)
        self._magnitudes = np.frombuffer(data[: 4 * self._layout.chunks].tobytes(), "<u2").reshape(-1, 2)

    def into(self, out: np.ndarray, start: int) -> None:
        out[...] = 0
        for here, length, places, values in self.kept_values(start, len(out)):
            np.put_along_axis(out[here].reshape(-1, length), places.astype(np.int64), values, axis=1)

    def square(self, start: int, length: int) -> float:
        return sum(float(np.square(one[3], dtype=np.float64).sum()) for one in self.kept_values(start, length))

    def kept_values(self, start: int, length: int) -> Iterator[tuple[slice, int, np.ndarray, np.ndarray]]:
        """Of so many values, the chunks of each length: where they are, that length, and places uint16 [n, k] and
        values float32 [n, k] of what they keep."""
        layout, first = self._layout, start // _CHUNK
        pieces = list(layout.pieces(start, length))
        kept = slice(pieces[0][1].start, pieces[-1][1].stop)  # in whole bytes
        number = kept.stop - kept.start
        lows = unpack_numbers(self._data[layout.lows(kept)], number, layout.low_bits)
        codes = CODES[_BITS][self._data[layout.codes(kept)]].reshape(-1).view(np.uint8) & 3
        if lows[number:].any() or codes[number:].any():
            raise CodecError(f"{self._name}: the padding is not zero")
        for chunks, which, k, size in pieces:
            mine = slice(which.start - kept.start, which.stop - kept.start)
            marks = self._data[layout.marks(chunks)].reshape(chunks.stop - chunks.start, -1)
            places = _highs(self._name, marks, k) << layout.low_bits | lows[mine].reshape(-1, k)
            values = _values(self._name, self._magnitudes[chunks], places, codes[mine].reshape(-1, k), size)
            begin = (chunks.start - first) * _CHUNK
            yield slice(begin, begin + len(places) * size), size, places, values


class _Layout:
    """Where what is in a tensor's part of so many values. A block's low bits and codes fill whole bytes."""

    def __init__(self, values: int, rank: int) -> None:
        self._values, self._rank = values, rank
        self._full, self._rest = divmod(values, _CHUNK)
        self.chunks, self.kept = -(-values // _CHUNK), -(-values * rank // _CHUNK)
        self.low_bits = (_CHUNK // rank).bit_length() - 1
        self._mark_bytes = _mark_bytes(rank, _CHUNK, self.low_bits)
        self._lows = self.marks(slice(0, self.chunks)).stop
        self._codes = self._lows + packed_size(self.kept, self.low_bits)
        self.size = self._codes + packed_size(self.kept, _BITS)

    def pieces(self, start: int, length: int) -> Iterator[tuple[slice, slice, int, int]]:
        """Of so many values from one that begins a block: the full chunks, then the short one. Which chunks and which
        kept values they are, and k and length of each."""
        first, last = start // _CHUNK, min((start + length) // _CHUNK, self._full)
        if last > first:
            yield slice(first, last), slice(first * self._rank, last * self._rank), self._rank, _CHUNK
        if start + length == self._values and self._rest:
            begin = self._full * self._rank
            yield slice(self._full, self.chunks), slice(begin, self.kept), self.kept - begin, self._rest

    def marks(self, chunks: slice) -> slice:
        """The bytes of some chunks' marks."""
        return slice(self._marks_before(chunks.start), self._marks_before(chunks.stop))

    def lows(self, kept: slice) -> slice:
        """The bytes of some places' low bits."""
        low, high = (self._lows + packed_size(end, self.low_bits) for end in (kept.start, kept.stop))
        return slice(low, high)

    def codes(self, kept: slice) -> slice:
        """The bytes of some kept values' codes."""
        low, high = (self._codes + packed_size(end, _BITS) for end in (kept.start, kept.stop))
        return slice(low, high)

    def _marks_before(self, chunk: int) -> int:
        found = 4 * self.chunks + min(chunk, self._full) * self._mark_bytes
        if chunk > self._full:
            found += _mark_bytes(self.kept - self._full * self._rank, self._rest, self.low_bits)
        return found


def _mark_bytes(k: int, length: int, low_bits: int) -> int:
    """Of a chunk's marks: the last place there may be has its own at k - 1 beyond its high bits."""
    return packed_size(k + (length - 1 >> low_bits), 1)


def _marked(places: np.ndarray, length: int, low_bits: int) -> np.ndarray:
    """The marks uint8 [n * bytes] of the high bits of ascending places [n, k]."""
    n, k = places.shape
    marks = np.zeros((n, 8 * _mark_bytes(k, length, low_bits)), np.uint8)
    np.put_along_axis(marks, (places >> low_bits).astype(np.int64) + np.arange(k), 1, axis=1)
    return np.packbits(marks, axis=1, bitorder="little").reshape(-1)


def _highs(name: str, marks: np.ndarray, k: int) -> np.ndarray:
    """The high bits uint16 [n, k] that marks [n, bytes] say, ascending. Raises CodecError for more or fewer than k."""
    bits = np.unpackbits(marks, axis=1, bitorder="little")
    if (np.count_nonzero(bits, axis=1) != k).any():
        raise CodecError(f"{name}: a chunk has not {k} marks")
    at = np.flatnonzero(bits).reshape(len(marks), k) - bits.shape[1] * np.arange(len(marks))[:, None]
    return (at - np.arange(k)).astype(np.uint16)


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
