"""Level 2: is each counted payload work of its own?"""

import sqlite3
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from dlx.ground.durable import naming_database
from dlx.ledger.events import Sealed
from dlx.ledger.typed import Contribution
from dlx.node.audit.report import Report

LEVEL = 2
_PLACE = Path(tempfile.gettempdir())  # of SQLite's own temporary file


class Repeats:
    """Payloads that come twice: whoever trains never gives the same bytes as another, or as before.

    Takes the counted statements of every seal. The payloads lie in a temporary file, so that memory does not grow.
    Raises OSError where its disk is full.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self._payloads = sqlite3.connect("", isolation_level=None)  # the file is gone with the connection
        with naming_database(_PLACE):
            self._payloads.execute(
                "CREATE TABLE payloads"
                " (payload BLOB PRIMARY KEY, round INTEGER, stage INTEGER, account TEXT) WITHOUT ROWID"
            )
            self._payloads.execute("BEGIN")

    def check(self, sealed: Sealed, statements: Sequence[Contribution | None]) -> None:
        """`statements`: what the seal's records name, in their order; None for what nobody has."""
        add = partial(self._report.add, LEVEL, "repeated payload", round=sealed.round, stage=sealed.stage)
        found = [
            (one.payload, repeat)
            for one in statements
            if one is not None and (repeat := self._repeats(sealed, one.payload, one.account))
        ]
        for payload, repeat in found:
            add("WARN", repeat, hash=payload)
            self._report.cannot_establish("that each counted contribution is work of its own: payloads come twice")
        if None in statements:
            add("SKIP", "a statement cannot be used, and nobody can tell which its payload is", hash=sealed.digest)
        elif not found:
            add("PASS", hash=sealed.digest)

    def close(self) -> None:
        self._payloads.close()

    def _repeats(self, sealed: Sealed, payload: bytes, account: str) -> str:
        row = payload, sealed.round, sealed.stage, account
        with naming_database(_PLACE):
            if self._payloads.execute("INSERT OR IGNORE INTO payloads VALUES (?, ?, ?, ?)", row).rowcount:
                return ""
            query = "SELECT round, stage, account FROM payloads WHERE payload = ?"
            round, stage, first = self._payloads.execute(query, (payload,)).fetchone()
        where = f"round {round}" + (f", stage {stage}" if stage != sealed.stage else "")
        if first == account:
            return f"one payload, two rounds: {account} was counted with what it was counted with in {where}"
        return f"two accounts, one payload: {account} was counted with that of {first} in {where}"
