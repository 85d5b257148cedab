"""What this node's accounts sign, so that none of them ever says two things about one round.

An account's key signs typed messages here and nowhere else. A contribution or a seal is on disk before anybody sees its
signature; it survives every change of stage, and moves with the account (`dlx-node keys export-signed`). Two statements
of one account contradict each other, and the second is refused, when they are

- two different contributions to one (run, stage, round);
- two different records of one pipe in one round: who published the one would be proven false by the other. They stay on
  this machine: an account that moves begins with the next round;
- two seals of one (run, stage, round) after the same seal, with equal statements, inner steps and multipliers, but
  other hashes of what they come to. The outer step is a function, so one of them is wrong. Any number of other seals is
  honest: proposers list different contributions and choose multipliers and plan, and a reorg may put another seal
  before this one.

Reports and verdicts contradict nothing, so none of them is stored. A verdict about the account's own work is refused.
"""

import errno
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from dlx.ground import durable
from dlx.ledger.bonds import SignedSeal
from dlx.ledger.typed import (
    Agreement,
    Contribution,
    Domain,
    Evaluation,
    Report,
    Seal,
    SignedContribution,
    SignedEvaluation,
    SignedVerdict,
    TypedError,
    Verdict,
    account_of,
    sign,
)
from dlx.node.home.errors import Failure

VERSION = 3  # of the file
_TABLES = """
CREATE TABLE contributions (
    account TEXT, run BLOB, stage INTEGER, round INTEGER, statement BLOB NOT NULL,
    PRIMARY KEY (account, run, stage, round)
);
CREATE TABLE agreements (
    account TEXT, run BLOB, replica INTEGER, stage INTEGER, round INTEGER, recorded BLOB NOT NULL,
    PRIMARY KEY (account, run, replica, stage, round)
);
CREATE TABLE seals (
    account TEXT, run BLOB, stage INTEGER, round INTEGER, basis BLOB, name BLOB, next BLOB NOT NULL,
    seal BLOB NOT NULL, signature BLOB NOT NULL,
    PRIMARY KEY (account, run, stage, round, basis, name)
);
"""


class Contradiction(Failure):
    """The account has signed something else about the same round: signing this too would be equivocation."""


@dataclass(frozen=True)
class Entries:
    """All that one account has signed, oldest round first within a run and stage."""

    contributions: tuple[SignedContribution, ...]
    seals: tuple[SignedSeal, ...]


class SignedStatements:
    """What `account` has signed, in the SQLite file `path`, made when missing; other accounts' entries stay untouched.

    Any thread may call it. Opening raises Failure for a file that is damaged or of a later version; the methods raise
    OSError where the disk does not take or give an entry.
    """

    def __init__(self, path: Path, account: str) -> None:
        self.account = account
        self.path, self._lock = path, threading.Lock()
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, durable.SECRET))
        durable.sync_directory(path.parent)
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        with self._errors():
            self._db.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA cache_size = -256;")
            (version,) = self._db.execute("PRAGMA user_version").fetchone()
            if version == 0:
                self._db.executescript(f"BEGIN; {_TABLES} PRAGMA user_version = {VERSION}; COMMIT;")
        if version > VERSION:
            raise Failure(f"{path} was written by a later version of dlx-node (format {version}): use that one")
        if 0 < version < VERSION:
            raise Failure(
                f"{path} was written by an earlier version of dlx-node (format {version}), for a ledger that this one "
                "does not speak to: move it away"
            )

    def contributions(self, run: bytes, stage: int) -> dict[int, SignedContribution]:
        """The account's contributions to a stage, by round."""
        query = "SELECT round, statement FROM contributions WHERE account = ? AND run = ? AND stage = ? ORDER BY round"
        with self._transaction():
            rows = self._db.execute(query, (self.account, run, stage)).fetchall()
            return {round: self._contribution(statement) for round, statement in rows}

    def entries(self) -> Entries:
        """Everything that the account has signed."""
        statements = "SELECT statement FROM contributions WHERE account = ? ORDER BY run, stage, round"
        seals = "SELECT seal, signature FROM seals WHERE account = ? ORDER BY run, stage, round, basis, name"
        with self._transaction():
            return Entries(
                tuple(self._contribution(row[0]) for row in self._db.execute(statements, (self.account,))),
                tuple(self._seal(*row) for row in self._db.execute(seals, (self.account,))),
            )

    def merge(self, entries: Entries) -> int:
        """Add what is not here yet, all of it or nothing; how many were new. Raises Contradiction."""
        with self._transaction():
            before = self._db.total_changes
            for signed in entries.contributions:
                if self._signed_before(signed.contribution) is None:
                    self._add_contribution(signed)
            for seal in entries.seals:
                self._add_seal(seal)
            return self._db.total_changes - before

    def close(self) -> None:
        with self._lock:
            self._db.close()

    # ---- rows ----

    def _signed_before(self, contribution: Contribution) -> SignedContribution | None:
        """The same contribution, signed before. Raises Contradiction."""
        query = "SELECT statement FROM contributions WHERE account = ? AND run = ? AND stage = ? AND round = ?"
        place = self.account, contribution.run, contribution.stage, contribution.round
        row = self._db.execute(query, place).fetchone()
        if row is None:
            return None
        signed = self._contribution(row[0])
        if signed.contribution != contribution:
            raise _contradiction("contribution", contribution.stage, contribution.round)
        return signed

    def _add_contribution(self, signed: SignedContribution) -> SignedContribution:
        contribution = signed.contribution
        if contribution.account != self.account:
            raise ValueError(f"a contribution of {contribution.account} among the statements of {self.account}")
        row = self.account, contribution.run, contribution.stage, contribution.round, signed.encode()
        self._db.execute("INSERT INTO contributions VALUES (?, ?, ?, ?, ?)", row)
        return signed

    def _add_seal(self, signed: SignedSeal) -> SignedSeal:
        seal, basis, next = signed.seal, _basis(signed.seal), _next(signed.seal)
        key = self.account, seal.run, seal.stage, seal.round, basis
        of_basis = "account = ? AND run = ? AND stage = ? AND round = ? AND basis = ?"
        if self._db.execute(f"SELECT 1 FROM seals WHERE {of_basis} AND next != ?", (*key, next)).fetchone():
            raise _contradiction("outcome of the same contributions", seal.stage, seal.round)
        encoded = seal.encode()
        row = *key, sha256(encoded).digest(), next, encoded, signed.signature
        self._db.execute("INSERT OR IGNORE INTO seals VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        return signed

    def _contribution(self, statement: bytes) -> SignedContribution:
        try:
            return SignedContribution.decode(statement)
        except TypedError as error:
            raise self._damaged(error) from None

    def _seal(self, seal: bytes, signature: bytes) -> SignedSeal:
        try:
            return SignedSeal(Seal.decode(seal), signature)
        except TypedError as error:
            raise self._damaged(error) from None

    # ---- the file ----

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """On disk when it is left; nothing of it where it raises."""
        with self._lock, self._errors():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            finally:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:  # full, read-only, busy: what is stored is whole
            full = error.sqlite_errorcode == sqlite3.SQLITE_FULL
            raise OSError(errno.ENOSPC if full else errno.EIO, str(error), str(self.path)) from error
        except sqlite3.DatabaseError as error:
            raise self._damaged(error) from None

    def _damaged(self, error: Exception) -> Failure:
        return Failure(
            f"{self.path} is damaged ({error}): restore it from a backup or an export; "
            "without it this account may sign two things about one round"
        )


class SlashingProtection(SignedStatements):
    """Signs for the account of `key` on the ledger of `domain` what no statement on disk contradicts."""

    def __init__(self, path: Path, key: bytes, domain: Domain) -> None:
        super().__init__(path, account_of(key))
        self._key, self._domain = key, domain

    def sign_contribution(self, contribution: Contribution) -> SignedContribution:
        """The signed statement, stored; for one that was signed before: the same bytes. Raises Contradiction."""
        with self._transaction():
            return self._signed_before(contribution) or self._add_contribution(
                contribution.sign(self._domain, self._key)
            )

    def sign_seal(self, seal: Seal) -> bytes:
        """The signature over the seal's digest, stored. Raises Contradiction."""
        with self._transaction():
            return self._add_seal(SignedSeal(seal, sign(seal.digest(self._domain), self._key))).signature

    def sign_agreement(self, agreement: Agreement) -> bytes:
        """The signature over what the account recorded of a pipe in a round, stored. Raises Contradiction."""
        place = self.account, agreement.run, agreement.replica, agreement.stage, agreement.round
        of_place = "account = ? AND run = ? AND replica = ? AND stage = ? AND round = ?"
        with self._transaction():
            row = self._db.execute(f"SELECT recorded FROM agreements WHERE {of_place}", place).fetchone()
            if row is None:
                self._db.execute("INSERT INTO agreements VALUES (?, ?, ?, ?, ?, ?)", (*place, agreement.recorded))
            elif row[0] != agreement.recorded:
                raise _contradiction("record of a pipe", agreement.stage, agreement.round)
            return sign(agreement.digest(self._domain), self._key)

    def sign_report(self, report: Report) -> bytes:
        """The signature over what the account says that it holds and lacks."""
        return sign(report.digest(self._domain), self._key)

    def sign_verdict(self, verdict: Verdict) -> SignedVerdict:
        """Raises ValueError for a verdict about the account's own work."""
        if verdict.account == self.account:
            raise ValueError(f"a verdict of {self.account} about its own work")
        return verdict.sign(self._domain, self._key)

    def sign_evaluation(self, evaluation: Evaluation) -> SignedEvaluation:
        return evaluation.sign(self._domain, self._key)


def _basis(seal: Seal) -> bytes:
    """What the hashes of its outcome follow from."""
    counted = [one.statement + one.inner_steps.to_bytes(4) + one.multiplier.to_bytes(2) for one in seal.records]
    return sha256(b"".join([seal.previous, *counted])).digest()


def _next(seal: Seal) -> bytes:
    return b"".join(seal.outcome.hashes)


def _contradiction(what: str, stage: int, round: int) -> Contradiction:
    return Contradiction(f"this account has already signed another {what} in round {round} of stage {stage}: refused")
