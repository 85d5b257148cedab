"""Level 2, who begins from zeros again and again: allowed, since disks die, and no way to train."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from dlx.ledger.events import Sealed
from dlx.ledger.typed import STATE_RESET, Contribution
from dlx.node.audit.report import Report
from dlx.node.round.rules.plans import RESET_WINDOW, RESETS

LEVEL = 2


class Resets:
    """Takes a stage's seals in order. Counts whose contributions state that their slot's state was reset."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._counted: dict[tuple[str, int], int] = defaultdict(int)  # contributions of (account, stage)
        self._rounds: dict[tuple[str, int], list[int]] = defaultdict(list)  # those that state a reset

    def check(self, sealed: Sealed, statements: Sequence[Contribution | None]) -> None:
        """Of what a seal counts, as far as somebody has the statements."""
        for account, statement in zip(sealed.accounts, statements, strict=True):
            self._counted[account, sealed.stage] += 1
            if statement is not None and statement.account == account and statement.flags & STATE_RESET:
                self._rounds[account, sealed.stage].append(sealed.round)

    def close(self) -> None:
        """All seals were checked."""
        for (account, stage), counted in self._counted.items():
            rounds = self._rounds[account, stage]
            if rounds:
                self._report.note(f"{account} reset its state in {len(rounds)} of {counted} rounds of stage {stage}")
            most = densest(rounds)
            if most > RESETS:
                detail = (
                    f"{account} reset its state in {most} of {RESET_WINDOW} rounds: more than {RESETS} are no mishap"
                )
                self._report.add(LEVEL, "resets", "WARN", detail, stage=stage)
            else:
                self._report.add(LEVEL, "resets", "PASS")


def densest(rounds: Sequence[int]) -> int:
    """How many of these ascending rounds lie within RESET_WINDOW of each other, at most."""
    found = first = 0
    for last, round in enumerate(rounds):
        while rounds[first] <= round - RESET_WINDOW:
            first += 1
        found = max(found, last - first + 1)
    return found
