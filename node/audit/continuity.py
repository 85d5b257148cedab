"""Level 2, what statements say of their start: does each follow from what its account stated before?"""

from __future__ import annotations

from collections.abc import Sequence

from dlx.ground.blobs import BlobError
from dlx.ground.constants import NO_HASH
from dlx.ledger.events import Sealed
from dlx.ledger.typed import Contribution
from dlx.node.audit.outer_replay import Replay, State, StatementError
from dlx.node.audit.report import Report, Verdict
from dlx.node.audit.sources.blobs import BlobMissing
from dlx.node.round.rules.continuity import (
    Counted,
    faults,
    is_start_public,
    left_out_by,
    named_wrongly,
    next_needed,
    start_of,
)
from dlx.training.codecs import CodecError
from dlx.training.inner.states import unused

LEVEL = 2
_REMEMBERED = 3  # statements of an account and stage: more than any other looks back on


class Continuity:
    """Takes a stage's seals in order. Remembers of each account what it stated and was counted with last."""

    def __init__(self, report: Report, replay: Replay) -> None:
        self._report, self._replay = report, replay
        self._left_out = left_out_by(replay.view)
        self._unused = [unused(replay.manifest, stage) for stage in range(replay.view.config.stages)]
        self._known: dict[tuple[int, str], list[Contribution]] = {}
        self._counted: dict[tuple[int, str], Counted] = {}

    @property
    def needs_base(self) -> bool:
        """Whether starts are other weights than those of their base version, and public."""
        terms = self._replay.terms
        return terms.delay == 1 and terms.alpha != 0 and not terms.ahead

    def check(self, sealed: Sealed, statements: Sequence[Contribution | None], base: State | None) -> None:
        """Of what a seal counts, as far as somebody has the statements; `base` is the version that its round's
        starts are made of, where that is at hand."""
        for record, account, statement in zip(sealed.records, sealed.accounts, statements, strict=True):
            if statement is not None and statement.account == account:
                verdict, detail = self._judge(statement, base)
                detail = f"contribution of {account}{': ' if detail else ''}{detail}"
                at = {"round": sealed.round, "stage": sealed.stage}
                self._report.add(LEVEL, "continuity", verdict, detail, **at, hash=record.statement)
                self._remember(statement)
            self._counted[sealed.stage, account] = Counted(sealed.round, record.statement)

    def _judge(self, statement: Contribution, base: State | None) -> tuple[Verdict, str]:
        terms, earlier = self._replay.terms, list[Contribution]()
        counted = self._counted.get((statement.stage, statement.account))
        if fault := named_wrongly(statement, counted):
            return "FAIL", fault.detail
        while (name := next_needed(terms, statement, earlier)) is not None:
            try:
                earlier.append(self._statement(statement, name))
            except BlobMissing as error:
                return "WARN", f"the earlier statement {name.hex()} is gone: {error.reason}"
            except StatementError as error:
                return "FAIL", f"the earlier statement {name.hex()}: {error}"
        own, start, unknown = start_of(terms, statement, earlier), None, ""
        is_public = is_start_public(terms, statement)
        if own != NO_HASH and is_public:
            try:
                start, unknown = self._start(base, own), "" if base is not None else "its base version is not at hand"
            except BlobMissing as error:
                unknown = f"the payload {own.hex()} in its start is gone: {error.reason}"
            except (CodecError, BlobError) as error:
                return "FAIL", f"the payload {own.hex()} in its start: {error}"
        found = faults(terms, self._unused[statement.stage], statement, earlier, counted, self._left_out, start)
        if found:
            return "FAIL", "; ".join(fault.detail for fault in found)
        if unknown:
            return "SKIP", f"weightsBefore was not recomputed: {unknown}"
        if not is_public:
            self._report.cannot_establish(
                "the weights before rounds that start ahead, where level 3 did not compare them"
            )
        return "PASS", ""

    def _start(self, base: State | None, own: bytes) -> bytes | None:
        return None if base is None else self._replay.start(base, own)

    def _statement(self, asking: Contribution, name: bytes) -> Contribution:
        known = self._known.get((asking.stage, asking.account), [])
        return next((one for one in known if one.hash() == name), None) or self._replay.statement_named(name)

    def _remember(self, statement: Contribution) -> None:
        key = statement.stage, statement.account
        self._known[key] = [*self._known.get(key, []), statement][-_REMEMBERED:]
