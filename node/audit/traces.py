"""Level 2, what counted contributions commit to between their start and their end: is each trace one of its statement,
and the one that its maker's neighbours signed? What follows from public bytes alone; nothing is trained again."""

from __future__ import annotations

from collections.abc import Sequence

from dlx.ledger.events import Sealed
from dlx.ledger.typed import Contribution
from dlx.node.audit.outer_replay import Replay
from dlx.node.audit.report import Report
from dlx.node.audit.sources.blobs import BlobMissing
from dlx.node.round.challenges.agreements import agreement_faults, answerable
from dlx.training.slot.trace import Trace, TraceError, decode, trace_faults

LEVEL = 2


class Traces:
    """Takes the seals of all stages round by round, stage 0 first."""

    def __init__(self, report: Report, replay: Replay) -> None:
        self._report, self._replay, self._stages = report, replay, replay.view.config.stages
        self._round = -1
        self._sound: dict[tuple[int, int], Trace] = {}  # of the round, by replica and stage
        self._makers: dict[tuple[int, int], str] = {}  # of what its seals count
        self._names: dict[tuple[int, int], bytes] = {}  # of the traces

    def check(self, sealed: Sealed, statements: Sequence[Contribution | None]) -> None:
        """Of what a seal counts, as far as somebody has the statements."""
        if sealed.round != self._round:
            self._round, self._sound, self._makers, self._names = sealed.round, {}, {}, {}
        for record, account, statement in zip(sealed.records, sealed.accounts, statements, strict=True):
            place = record.replica, sealed.stage
            self._makers[place] = account
            if statement is not None and (trace := self._judge(sealed, statement)) is not None:
                self._sound[place], self._names[place] = trace, statement.trace
        if sealed.stage == self._stages - 1:
            self._compare()

    def _judge(self, sealed: Sealed, statement: Contribution) -> Trace | None:
        """The trace, where nothing is wrong with it."""
        at, trace = {"round": sealed.round, "stage": sealed.stage}, None
        where = f"contribution of {statement.account}"
        try:
            trace = decode(self._replay.trace(statement), statement.segments, statement.inner_steps)
            faults = trace_faults(statement, sealed.stage, self._stages, trace)
        except BlobMissing as error:
            detail = f"{where}: its trace is gone: {error.reason}"
            self._report.add(LEVEL, "trace", "WARN", detail, **at, hash=statement.trace)
            return None
        except TraceError as error:
            faults = [str(error)]
        detail = ": ".join([where, *(["; ".join(faults)] if faults else [])])
        self._report.add(LEVEL, "trace", "FAIL" if faults else "PASS", detail, **at, hash=statement.trace)
        return None if faults else trace

    def _compare(self) -> None:
        """Who published another trace than it agreed on with its neighbours has signed both."""
        view = self._replay.view
        for replica, stage in sorted(self._sound):
            makers = {at: account for (of, at), account in self._makers.items() if of == replica}
            traces = {at: one for (of, at), one in self._sound.items() if of == replica}
            place = view.run, self._round, replica, stage
            bound = answerable(view, self._round, self._replay.manifest.outer.delay, stage, makers)
            faults = agreement_faults(view.domain, place, bound, traces)
            detail = ": ".join([f"contribution of {makers[stage]}", *(["; ".join(faults)] if faults else [])])
            self._report.add(
                LEVEL, "agreements", "FAIL" if faults else "PASS", detail, round=self._round, stage=stage,
                hash=self._names[replica, stage],
            )  # fmt: skip
