"""A file of the accounts that the creator of an invited run lets in: one address a line."""

from __future__ import annotations

from pathlib import Path

from dlx.ground import handwritten
from dlx.ledger.abi import ZERO_ACCOUNT
from dlx.ledger.account_list import MOST_ACCOUNTS, AccountList
from dlx.node.cli import options
from dlx.node.home.errors import UsageFailure

_MOST_BYTES = 128 * MOST_ACCOUNTS


def read(path: Path) -> AccountList:
    """What stands there, each account once; `#` begins a comment. Raises UsageFailure, naming the line, for what is no
    account, and for a file that holds none, or too many."""
    try:
        lines = handwritten.read(options.existing_file(path, "--accounts"), _MOST_BYTES).split("\n")
    except ValueError as error:
        raise UsageFailure(f"--accounts {error}") from None
    found = set[str]()
    for number, whole in enumerate(lines, 1):
        if text := whole.partition("#")[0].strip():
            account = options.account(text, where := f"{path}, line {number}:")
            if account == ZERO_ACCOUNT:
                raise UsageFailure(f"{where} the zero address is nobody's")
            found.add(account)
    try:
        return AccountList(found)
    except ValueError as error:
        raise UsageFailure(f"--accounts {path}: {error}") from None
