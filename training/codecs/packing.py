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


def packed_size(count: int, bits: int) -> int:
    """The bytes of so many numbers of that many bits."""
    return -(-bits * count // 8)


def pack_numbers(numbers: np.ndarray, bits: int) -> np.ndarray:
    """Numbers [n] below 2^bits as uint8 [packed_size(n, bits)]; 1 to 8 bits."""
    eights = np.zeros((-(-len(numbers) // 8), 8), np.uint64)
    eights.reshape(-1)[: len(numbers)] = numbers
    eights <<= np.arange(0, 8 * bits, bits, dtype=np.uint64)
    words = np.bitwise_or.reduce(eights, axis=1).astype("<u8", copy=False)
    return words.view(np.uint8).reshape(-1, 8)[:, :bits].reshape(-1)[: packed_size(len(numbers), bits)]


def unpack_numbers(packed: np.ndarray, count: int, bits: int) -> np.ndarray:
    """The uint16 numbers of uint8 [packed_size(count, bits)], and after them what the last bytes have left over, up to
    a multiple of 8."""
    padded = np.zeros((-(-count // 8), 8), np.uint8)
    whole, rest = divmod(len(packed), bits)
    padded[:whole, :bits] = packed[: whole * bits].reshape(whole, bits)
    padded[whole:, :rest] = packed[whole * bits :]
    words = padded.view("<u8").astype(np.uint64, copy=False)
    numbers = words >> np.arange(0, 8 * bits, bits, dtype=np.uint64)
    numbers &= np.uint64(2**bits - 1)
    return numbers.astype(np.uint16).reshape(-1)
