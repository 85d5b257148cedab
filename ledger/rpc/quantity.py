"""Numbers as JSON-RPC has them."""

from typing import Any

from dlx.ledger.errors import LedgerError

STORED = 63  # bits of what SQLite holds: of blocks, times, indices and chain ids


def quantity(text: Any, bits: int = 256) -> int:
    """A number of at most so many bits, from its hex digits. Raises TypeError, ValueError."""
    number = int(text, 16)
    if number < 0 or number.bit_length() > bits:
        raise ValueError(f"{text[:40]!r} is no number of at most {bits} bits")
    return number


def as_number(text: Any, bits: int = 256) -> int:
    """What a chain node answers as a quantity. Raises LedgerError."""
    try:
        return quantity(text, bits)
    except (TypeError, ValueError):
        raise LedgerError(f"not a number: {str(text)[:40]!r}") from None
