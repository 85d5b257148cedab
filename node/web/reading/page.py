"""What the pages show, as plain data: made of index rows, totals and verdicts; no I/O, and no HTML."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import groupby, pairwise
from typing import Literal, NamedTuple

from dlx.ground.constants import MICRO, UNIT
from dlx.ledger.events import Convicted, Sealed
from dlx.ledger.index.event_index import Place
from dlx.ledger.index.seal_rows import SealRow
from dlx.ledger.keys import SignatureError
from dlx.ledger.typed import Signs, recover, split_entries
from dlx.ledger.view.seal_log import taken
from dlx.node.audit.drawn_work import Segments
from dlx.node.round.challenges.verdicts import ReportedVerdict
from dlx.node.web.reading.coverage import Coverage
from dlx.node.web.reading.totals import Share, Totals

MAX_ROWS, MAX_CELLS = 100, 20_000  # of a window
_BUCKETS = 120  # of the strip that shows the whole run
_WORST = ("honest", "withheld", "false")

Kind = Literal["counted", "fewer", "late", "new", "free"]


class Cell(NamedTuple):
    """One replica of a stage in a round."""

    kind: Kind
    drawn: bool
    finding: str  # the worst of the verdicts: honest, withheld, false; "" without one


class StageCells(NamedTuple):
    """How a stage sealed a round."""

    cells: tuple[Cell, ...]
    counted: int
    possible: int
    summary: str  # all of it in words


class GridRow(NamedTuple):
    number: int
    time: int  # of the last seal, Unix seconds
    loss: float | None  # of training
    held_out: float | None  # by the ledger, of the version that the round made
    tokens: int  # so far
    inner_steps: int | None  # None: an empty round
    sealed: bool  # by every stage
    draw_known: bool
    stages: tuple[StageCells | None, ...]  # None: not sealed yet


class Bucket(NamedTuple):
    """Some rounds of the strip that shows the whole run."""

    first: int
    end: int
    part: float | None  # of possible contributions that was counted


class Window(NamedTuple):
    """Some rounds of a run. Links are first rounds; None: there are none that way."""

    first: int
    end: int
    size: int
    total: int  # rounds that any stage has sealed
    newer: int | None
    older: int | None

    @property
    def is_newest(self) -> bool:
        return self.newer is None


class RecordLine(NamedTuple):
    replica: int
    account: str
    statement: str
    loss: float
    inner_steps: int
    multiplier: float
    drawn: Sequence[int] | None  # which of its segments; None: not known
    verdicts: tuple[ReportedVerdict, ...]
    convicted: bool


class SealPage(NamedTuple):
    """A seal with all that it names; hashes are hex."""

    stage: int
    digest: str
    weights: str
    momentum: str
    weights_root: str
    momentum_root: str
    plan: str
    next_plan: str
    signers: tuple[str, ...]
    records: tuple[RecordLine, ...]
    transaction: str
    block: int
    time: int


def window(total: int, slots: int, wanted: int | None) -> Window:
    """The rounds to show of a run: from `wanted` on, or the newest. `slots`: stages x replicas."""
    size = max(5, min(MAX_ROWS, MAX_CELLS // max(1, slots)))
    first = max(0, total - size) if wanted is None else min(wanted, max(0, total - 1))
    end = min(first + size, total)
    newer = None if end == total else end
    return Window(first, end, size, total, newer, max(0, first - size) if first else None)


def grid(
    rows: Iterable[SealRow],
    stages: int,
    totals: Totals,
    coverage: Coverage,
    opened: Place,
    drawn: Mapping[int, Segments],
    verdicts: Sequence[ReportedVerdict],
    held_out: Mapping[int, float],
) -> list[GridRow]:
    """The rounds of `rows`, which come by round and stage, newest first; `opened`: where the first of them opened;
    `drawn`: what was drawn of each round whose draw is known; `held_out`: nats, by version."""
    findings: dict[tuple[int, int, int], str] = {}
    for verdict in verdicts:
        report, word = verdict.report, verdict.finding.word
        at = report.round, report.stage, report.replica
        findings[at] = max(findings.get(at, word), word, key=_WORST.index)
    columns = replica_columns(rows := list(rows), stages, coverage)
    found = []
    for number, group in groupby(rows, key=lambda row: row.round):
        seals = {row.stage: row for row in group}
        complete, round_drawn = coverage.complete(opened), drawn.get(number)
        cells = tuple(
            _stage(seals[stage], columns[stage], complete, coverage, round_drawn, findings) if stage in seals else None
            for stage in range(stages)
        )
        last = seals.get(stages - 1)
        found.append(
            GridRow(
                number=number,
                time=max(row.time for row in seals.values()),
                loss=last.loss / MICRO if last and last.counted else None,
                held_out=held_out.get(number + 1),
                tokens=totals.tokens[number] if number < totals.rounds else 0,
                inner_steps=next((row.inner_steps for row in seals.values() if row.counted), None),
                sealed=len(seals) == stages,
                draw_known=round_drawn is not None,
                stages=cells,
            )
        )
        opened = max((row.block, row.log_index) for row in seals.values())
    return found[::-1]


def replica_columns(rows: Sequence[SealRow], stages: int, coverage: Coverage) -> list[int]:
    """How many replicas each stage has in these rounds: up to the highest that was held or counted."""
    columns = [0] * stages
    for row in rows:
        held = coverage.held(row.stage, (row.block, row.log_index)).bit_length()
        columns[row.stage] = max(columns[row.stage], held, 1 + max(taken(row.outline), default=-1))
    return columns


def strip(totals: Totals) -> list[Bucket]:
    """The sealed rounds in a row of equal parts."""
    count = min(_BUCKETS, totals.rounds)
    ends = [number * totals.rounds // count for number in range(count + 1)] if count else [0]
    return [Bucket(first, end, totals.share(first, end).part) for first, end in pairwise(ends)]


def seal_page(
    sealed: Sealed,
    weights: tuple[bytes, bytes],
    drawn: Segments | None,
    verdicts: Sequence[ReportedVerdict],
    convictions: Sequence[Convicted],
) -> SealPage:
    """`weights`: the hashes of weights and momentum after the seal, which an empty one does not name."""
    outcome, plan = sealed.outcome, sealed.outcome.plan
    of_statement: dict[bytes, list[ReportedVerdict]] = defaultdict(list)
    for verdict in verdicts:
        of_statement[verdict.report.statement].append(verdict)
    convicted = {conviction.statement for conviction in convictions}
    return SealPage(
        stage=sealed.stage,
        digest=sealed.digest.hex(),
        weights=weights[0].hex(),
        momentum=weights[1].hex() if any(weights[1]) else "",
        weights_root=outcome.weights_root.hex() if any(outcome.weights_root) else "",
        momentum_root=outcome.momentum_root.hex() if any(outcome.momentum_root) else "",
        plan=f"{outcome.inner_steps} inner steps",
        next_plan=_plan(plan.level, plan.rank) + f", {plan.inner_steps} inner steps" if plan.inner_steps else "none",
        signers=tuple(_signers(sealed)),
        records=tuple(
            RecordLine(
                replica=record.replica,
                account=account,
                statement=record.statement.hex(),
                loss=record.loss / MICRO,
                inner_steps=record.inner_steps,
                multiplier=record.multiplier / UNIT,
                drawn=None if drawn is None else drawn.get((sealed.stage, record.replica), ()),
                verdicts=tuple(of_statement[record.statement]),
                convicted=record.statement in convicted,
            )
            for record, account in zip(sealed.records, sealed.accounts, strict=True)
        ),
        transaction="0x" + sealed.at.tx.hex(),
        block=sealed.at.block,
        time=sealed.at.time,
    )


def percent(share: Share) -> str:
    """Never 100 where anything was left out."""
    if share.part is None:
        return "none yet"
    return "100%" if share.part == 1 else f"{min(99.9, 100 * share.part):.1f}%"


def _stage(
    seal: SealRow,
    columns: int,
    complete: int,
    coverage: Coverage,
    drawn: Segments | None,
    findings: Mapping[tuple[int, int, int], str],
) -> StageCells:
    place = seal.block, seal.log_index
    could, held, did = complete & coverage.complete(place), coverage.held(seal.stage, place), taken(seal.outline)
    cells = []
    for replica in range(columns):
        steps, bit = did.get(replica), 1 << replica
        kind: Kind = "free"
        if steps is not None:
            kind = "counted" if steps >= seal.inner_steps else "fewer"
        elif held & bit:
            kind = "late" if could & bit else "new"
        finding = findings.get((seal.round, seal.stage, replica), "")
        in_draw = steps is not None and drawn is not None and (seal.stage, replica) in drawn
        cells.append(Cell(kind, in_draw or finding != "", finding))  # who judges has seen the draw
    possible = (could | sum(1 << replica for replica in did)).bit_count()
    return StageCells(tuple(cells), seal.counted, possible, _summary(seal, cells, did, possible))


def _summary(seal: SealRow, cells: Sequence[Cell], did: Mapping[int, int], possible: int) -> str:
    found = [f"{seal.counted} of {possible} counted" if seal.counted else "empty seal"]
    late = [str(replica) for replica, cell in enumerate(cells) if cell.kind == "late"]
    if late:
        found.append(f"left out: {', '.join(late)}")
    fewer = [f"{replica} ({did[replica]} of {seal.inner_steps})" for replica in did if did[replica] < seal.inner_steps]
    if fewer:
        found.append(f"fewer steps: {', '.join(fewer)}")
    drawn = [f"{replica} {cell.finding or 'no verdict heard'}" for replica, cell in enumerate(cells) if cell.drawn]
    if drawn:
        found.append(f"drawn: {', '.join(drawn)}")
    return "; ".join(found)


def _signers(sealed: Sealed) -> Iterable[str]:
    """Who signed the seal itself; others vouch for their own records."""
    for entry in split_entries(sealed.signatures):
        if entry.signs is not Signs.RECORD:
            with suppress(SignatureError):  # the contract passes over it
                yield recover(sealed.digest, entry.signature)


def _plan(level: int | None, rank: int | None) -> str:
    if level is None:
        return "not known without the manifest"
    return f"{level} bits" + (f", rank {rank}" if rank else "")
