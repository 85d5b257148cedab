"""The address book: where ledgers are and since when, so that nobody looks for the block of their deployment twice."""

import re
from pathlib import Path

import msgspec

from dlx.ground import durable

NAME = "ledgers.json"
_LEDGERS = 256  # kept, the newest last


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One deployment. It holds while the chain has the same block there: chains for tests begin anew."""

    chain_id: int
    ledger: str  # addresses in EIP-55 spelling
    registry: str
    block: int  # before which nothing happened to either
    block_hash: str  # 64 hex digits
    ledger_code: str  # keccak of the runtime code, 64 hex digits
    registry_code: str


def find(folder: Path, chain_id: int, ledger: str) -> Entry | None:
    """What the folder's book says of a ledger."""
    return next((one for one in _read(folder) if (one.chain_id, one.ledger) == (chain_id, ledger)), None)


def add(folder: Path, entry: Entry) -> None:
    """Puts a deployment into the folder's book, in place of an earlier one of the same ledger. Raises OSError."""
    others = [one for one in _read(folder) if (one.chain_id, one.ledger) != (entry.chain_id, entry.ledger)]
    found = [*others, entry][-_LEDGERS:]
    durable.write_bytes(folder / NAME, msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")


def _read(folder: Path) -> list[Entry]:
    """Nothing where the book is missing or damaged: all in it can be found again."""
    try:
        found = msgspec.json.decode((folder / NAME).read_bytes(), type=list[Entry])
    except (OSError, msgspec.DecodeError):
        return []
    return [one for one in found if one.block >= 0 and re.fullmatch("[0-9a-f]{64}", one.block_hash)]
