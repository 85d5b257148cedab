"""Sets of up to 64 numbers, as integers with a bit for each. As Bitmaps.sol."""


def members(bitmap: int) -> tuple[int, ...]:
    """Ascending."""
    return tuple(number for number in range(bitmap.bit_length()) if bitmap >> number & 1)


def lowest_free(bitmap: int) -> int:
    """The lowest number that is not in the set."""
    return (~bitmap & (bitmap + 1)).bit_length() - 1
