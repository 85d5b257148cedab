"""Where a watch has a run's seals and the blocks that draw from: the run as it goes, or all up to a pinned block."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol, TypeVar

from dlx.ledger.client import LedgerClient
from dlx.ledger.errors import LedgerUnavailable
from dlx.ledger.proof.history import Pin
from dlx.ledger.view.run_view import RunView
from dlx.node.audit.chain_trust import agreed_hash
from dlx.node.audit.ledger import audit_ledger
from dlx.node.audit.report import Report
from dlx.node.home.errors import Failure
from dlx.node.home.program import line

PATIENCE = 600.0  # seconds that a chain may be silent

Say = Callable[[str], None]
_T = TypeVar("_T")


@dataclass(frozen=True)
class Seen:
    """A run up to a block."""

    view: RunView
    block: int
    final: bool = False  # no later block is ever used


class Chain(Protocol):
    def look(self) -> Seen | None:
        """The run up to now; None while nobody answers. Raises LedgerUnavailable once that lasts."""
        ...

    def block_hash(self, number: int) -> bytes | None:
        """The hash of a block of what was seen; None while it cannot be told. Raises as `look`, and Contradiction."""
        ...


class LiveChain:
    """As the chain nodes tell it, which all have to give the same hash of each block that draws."""

    def __init__(self, client: LedgerClient, run: bytes, say: Say) -> None:
        self._client, self._say, self._feed = client, say, client.follow(run)
        self._silent_since: float | None = None

    def look(self) -> Seen | None:
        update = self._patiently(lambda: self._client.poll(self._feed))
        return Seen(update.view, update.head.block) if update is not None and update.complete else None

    def block_hash(self, number: int) -> bytes | None:
        each = self._client.rpc.each()
        return self._patiently(lambda: agreed_hash(each, number))

    def _patiently(self, ask: Callable[[], _T]) -> _T | None:
        try:
            answer = ask()
        except LedgerUnavailable as error:
            now = time.monotonic()
            if self._silent_since is None:
                self._silent_since = now
                self._say(f"the chain does not answer: {error}")
            if now > self._silent_since + PATIENCE:
                raise
            return None
        self._silent_since = None
        return answer


class PinnedChain:
    """Up to a block whose hash is given, which proves it: see the audit's level 1."""

    def __init__(self, client: LedgerClient, run: bytes, pin: Pin, show: Say, stack: ExitStack) -> None:
        """Of use until the stack ends. Raises Failure where the ledger is not what it has to be."""
        report = Report(run)
        found = audit_ledger(report, client, pin, show, stack)
        if found is None or report.failed:
            wrong = next(check for check in report.checks if check.verdict == "FAIL")
            see = line("audit", f"0x{run.hex()}", "--head", pin, of_ledger=True)
            raise Failure(f"the ledger does not hold: {wrong.check}: {wrong.detail}; see `{see}`")
        view, self._history = found
        self._seen = Seen(view, self._history.head.block, final=True)

    def look(self) -> Seen:
        return self._seen

    def block_hash(self, number: int) -> bytes | None:
        return self._history.block_hash(number)
