"""Small whole numbers packed without gaps, and back. A byte holds its values from the lowest bits up."""

from typing import Any

import numpy as np

WIDTHS = (2, 4, 8)  # bits of a signed code


def _signed(bits: int) -> np.ndarray:
    """Each byte's codes, int8 [256, 8 / bits], in two's complement."""
    codes = np.stack([(np.arange(256) >> low) % 2**bits for low in range(0, 8, bits)], axis=1)
    return ((codes ^ 2 ** (bits - 1)) - 2 ** (bits - 1)).astype(np.int8)


CODES = {bits: _signed(bits) for bits in WIDTHS}
# Whether a byte holds the most negative code, which no codec uses: it has no positive counterpart.
UNUSED = {bits: (codes == -(2 ** (bits - 1))).any(axis=1) for bits, codes in CODES.items()}
# Whether a byte holds the largest code or its negative.
LARGEST = {bits: (abs(codes) == 2 ** (bits - 1) - 1).any(axis=1) for bits, codes in CODES.items()}


def pack(codes: np.ndarray, bits: int) -> np.ndarray:
    """int8 codes [.., n], n a multiple of 8 / bits, as uint8 [.., n * bits / 8]; the array is used up."""
    if bits == 8:
        return codes.view(np.uint8)
    words: Any = codes.view("<u2" if bits == 4 else "<u4")
    words &= 0x0F0F if bits == 4 else 0x03030303
    for shift in (4,) if bits == 4 else (6, 12):
        words |= words >> shift
    return words.astype(np.uint8)  # the lowest byte


def packed12(count: int) -> int:
    """The bytes of `count` 12-bit numbers."""
    return -(-12 * count // 8)


def pack12(numbers: np.ndarray) -> np.ndarray:
    """Numbers [n] of 0 .. 4095 as uint8: two in three bytes, the earlier in the lower bits."""
    pairs = np.zeros((-(-len(numbers) // 2), 2), np.uint16)
    pairs.reshape(-1)[: len(numbers)] = numbers
    packed = np.empty((len(pairs), 3), np.uint8)
    packed[:, 0] = pairs[:, 0] & 255
    packed[:, 1] = (pairs[:, 0] >> 8) | (pairs[:, 1] & 15) << 4
    packed[:, 2] = pairs[:, 1] >> 4
    return packed.reshape(-1)[: packed12(len(numbers))]


def unpack12(packed: np.ndarray, count: int) -> np.ndarray:
    """The uint16 numbers of uint8 [packed12(count)], and where `count` is odd one more from the last bits left over."""
    triples = np.zeros((-(-count // 2), 3), np.uint8)
    triples.reshape(-1)[: len(packed)] = packed
    wide = triples.astype(np.uint16)
    return np.stack([wide[:, 0] | (wide[:, 1] & 15) << 8, wide[:, 1] >> 4 | wide[:, 2] << 4], axis=1).reshape(-1)
