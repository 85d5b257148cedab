"""Numbers that people read and copy, with few digits."""


def two_digits(number: int) -> int:
    """The number (0 or more) rounded up to two digits: 3,194 gives 3,200."""
    digit = 10 ** max(0, len(str(number)) - 2)
    return -(-number // digit) * digit
