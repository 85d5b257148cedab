"""The list of accounts that the creator of an invited run commits to, as a Merkle tree: docs/protocol/entry.md."""

from __future__ import annotations

from collections.abc import Iterable

from eth_hash.auto import keccak

from dlx.ledger.abi import WORD, account_bytes

MOST_ACCOUNTS = 65_536  # so a proof has 16 hashes at most


class AccountList:
    """The tree over distinct accounts; their order does not matter."""

    def __init__(self, accounts: Iterable[str]) -> None:
        """Raises ValueError for no account, or more than MOST_ACCOUNTS, TypedError for what is no account."""
        self.accounts = frozenset(accounts)
        if not 0 < len(self.accounts) <= MOST_ACCOUNTS:
            raise ValueError(f"a list has 1 to {MOST_ACCOUNTS:,} accounts, this one {len(self.accounts):,}")
        self._levels = [sorted(map(_leaf, self.accounts))]
        while len(self._levels[-1]) > 1:
            self._levels.append(_above(self._levels[-1]))

    @property
    def root(self) -> bytes:
        """The 32 bytes that the creator commits."""
        return self._levels[-1][0]

    def proof(self, account: str) -> tuple[bytes, ...]:
        """The hashes of 32 bytes beside the account's way up to the root. Raises KeyError for one not in the list."""
        if account not in self.accounts:
            raise KeyError(account)
        at, beside = self._levels[0].index(_leaf(account)), list[bytes]()
        for level in self._levels[:-1]:
            beside += level[at ^ 1 : (at ^ 1) + 1]  # none beside an odd last one
            at //= 2
        return tuple(beside)


def _leaf(account: str) -> bytes:
    return keccak(keccak(account_bytes(account).rjust(WORD, b"\0")))


def _above(level: list[bytes]) -> list[bytes]:
    """The hashes of the pairs; an odd last one goes up as it is."""
    pairs = (sorted(level[at : at + 2]) for at in range(0, len(level), 2))
    return [keccak(b"".join(pair)) if len(pair) == 2 else pair[0] for pair in pairs]
