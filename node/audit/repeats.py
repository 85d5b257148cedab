"""Level 1, payloads that come twice: whoever trains never gives the same bytes as another, or as before."""

from __future__ import annotations

import sqlite3
from functools import partial

from dlx.ledger.events import Sealed
from dlx.node.audit.report import Report

LEVEL = 1


class Repeats:
    """Takes every seal in chain order. What it remembers lies in a temporary file, so that memory does not grow."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._seen = sqlite3.connect("", isolation_level=None)  # SQLite's own temporary file, gone with the connection
        self._seen.execute(
            "CREATE TABLE seen (payload BLOB PRIMARY KEY, round INTEGER, stage INTEGER, account TEXT) WITHOUT ROWID"
        )
        self._seen.execute("BEGIN")

    def check(self, sealed: Sealed) -> None:
        """`sealed` as the run's view has it, with its accounts."""
        add = partial(self._report.add, LEVEL, "repeated payload", round=sealed.round, stage=sealed.stage)
        found = [
            (record.payload, repeat)
            for record, account in zip(sealed.records, sealed.accounts, strict=True)
            if (repeat := self._repeats(sealed, record.payload, account))
        ]
        for payload, repeat in found:
            add("WARN", repeat, hash=payload)
            self._report.cannot_establish("that each counted contribution is work of its own: payloads come twice")
        if not found:
            add("PASS", hash=sealed.digest)

    def close(self) -> None:
        self._seen.close()

    def _repeats(self, sealed: Sealed, payload: bytes, account: str) -> str:
        row = payload, sealed.round, sealed.stage, account
        if self._seen.execute("INSERT OR IGNORE INTO seen VALUES (?, ?, ?, ?)", row).rowcount:
            return ""
        query = "SELECT round, stage, account FROM seen WHERE payload = ?"
        round, stage, first = self._seen.execute(query, (payload,)).fetchone()
        where = f"round {round}" + (f", stage {stage}" if stage != sealed.stage else "")
        if first == account:
            return f"one payload, two rounds: {account} was counted with what it was counted with in {where}"
        return f"two accounts, one payload: {account} was counted with that of {first} in {where}"
