"""Level 2: how far did each counted contribution move the model beside the measure of its round, and what became of the
loss after that?"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import partial

from dlx.ground.constants import UNIT
from dlx.ledger.events import Sealed
from dlx.node.audit.report import Report
from dlx.training.outer.policy import measure_of_a_step

LEVEL = 2
FAR = 8.0  # times the measure of a step: short honest rounds move up to 4 times as far a step as long ones
JUMP = 1.0  # nats above the lowest so far


class Displacement:
    """Takes the seals round by round, of each round in the order of its stages."""

    def __init__(self, report: Report, stages: int) -> None:
        self._report, self._last = report, stages - 1
        self._most, self._lowest = 0.0, math.inf

    def check(self, sealed: Sealed, norms: Sequence[float], reach: float) -> None:
        """`norms`: of the decoded payloads that it counts, in their order, and the reach of a step of its stage. It is
        the policy's measure that they are held against, whatever the policy: no single one makes honest ones look
        long."""
        if not sealed.records:
            return
        steps = [record.inner_steps for record in sealed.records]
        measure = measure_of_a_step(steps, norms, reach) or reach
        by = [record.multiplier / UNIT for record in sealed.records]
        times = [norm * one / count / measure for norm, one, count in zip(norms, by, steps, strict=True)]
        most, account = max(zip(times, sealed.accounts, strict=True))
        add = partial(self._report.add, LEVEL, "displacement", round=sealed.round, stage=sealed.stage)
        if most > FAR:
            moved = f"it moved the model {most:.3g} times as far a step as the round's measure"
            add("WARN", f"contribution of {account}: {moved}", hash=sealed.digest)
        else:
            add("PASS", hash=sealed.digest)
        if most > self._most:
            self._most, where = most, f"round {sealed.round}, stage {sealed.stage}"
            self._report.facts["displacement"] = f"at most {most:.3g} times the measure of a step ({where})"

    def see_loss(self, sealed: Sealed) -> None:
        """The lower median of what the records of the last stage state: one alone neither makes nor hides a rise."""
        if sealed.stage != self._last or not sealed.records:
            return
        loss = statistics.median_low(record.loss for record in sealed.records) / 1e6
        rose = loss > self._lowest + JUMP
        detail = f"the stated loss rose to {loss:.3f}, from {self._lowest:.3f}" if rose else ""
        add = partial(self._report.add, LEVEL, "loss", round=sealed.round, stage=sealed.stage, hash=sealed.digest)
        add("WARN" if rose else "PASS", detail)
        self._lowest = min(self._lowest, loss)
