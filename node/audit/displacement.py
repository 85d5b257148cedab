"""Level 2: how far did each counted contribution move the model beside the others of its round, and what became of the
loss after that?"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import partial

from dlx.ground.constants import UNIT
from dlx.ledger.events import Sealed
from dlx.node.audit.report import Report

LEVEL = 2
FAR = 8.0  # times as far a step as the median: short honest rounds move up to 4 times as far a step as long ones
JUMP = 1.0  # nats above the lowest so far


class Displacement:
    """Takes the seals round by round, of each round in the order of its stages."""

    def __init__(self, report: Report, stages: int) -> None:
        self._report, self._last = report, stages - 1
        self._most, self._lowest = 1.0, math.inf

    def check(self, sealed: Sealed, norms: Sequence[float]) -> None:
        """`norms`: of the decoded payloads that it counts, in their order."""
        pairs = zip(sealed.records, norms, strict=True)
        moved = [norm * record.multiplier / UNIT / record.inner_steps for record, norm in pairs]
        median = statistics.median_low(moved) if moved else 0.0
        if len(moved) > 1 and median > 0:
            self._compare(sealed, [one / median for one in moved])
        if sealed.stage == self._last and sealed.records:
            self._see_loss(sealed)

    def _compare(self, sealed: Sealed, times: Sequence[float]) -> None:
        most, account = max(zip(times, sealed.accounts, strict=True))
        add = partial(self._report.add, LEVEL, "displacement", round=sealed.round, stage=sealed.stage)
        if most > FAR:
            moved = f"it moved the model {most:.3g} times as far a step as the round's median"
            add("WARN", f"contribution of {account}: {moved}", hash=sealed.digest)
        else:
            add("PASS", hash=sealed.digest)
        if most > self._most:
            self._most, where = most, f"round {sealed.round}, stage {sealed.stage}"
            self._report.facts["displacement"] = f"at most {most:.3g} times the median a step ({where})"

    def _see_loss(self, sealed: Sealed) -> None:
        steps = sum(record.inner_steps for record in sealed.records)
        loss = sum(record.loss * record.inner_steps for record in sealed.records) / steps / 1e6
        if loss > self._lowest + JUMP:
            self._report.note(f"round {sealed.round}: the stated loss rose to {loss:.3f}, from {self._lowest:.3f}")
        self._lowest = min(self._lowest, loss)
