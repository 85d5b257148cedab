"""The convergence history of a run, read from the ledger's events alone: no node, no blob and no trust needed."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from types import MappingProxyType

import msgspec

from dlx.ground.constants import MICRO
from dlx.ledger.events import Convicted
from dlx.ledger.index import seal_rows
from dlx.ledger.index.event_index import EventIndex
from dlx.ledger.typed import split_conviction
from dlx.ledger.view.run_view import RunView
from dlx.ledger.view.seal_log import taken
from dlx.node.home.errors import Failure
from dlx.node.round.challenges.verdicts import ReportedVerdict
from dlx.node.runs.held_out import HeldOut

NOTHING: Mapping[int, HeldOut] = MappingProxyType({})


class StageRow(msgspec.Struct, frozen=True, kw_only=True):
    """How one stage sealed a round. Hashes are hex."""

    stage: int
    weights: str  # of the version that the seal made
    contributions: int
    steps: dict[int, int]  # counted replica -> the inner steps that it did
    signers: int
    tokens: int
    level: int | None  # and rank of the plan in force; None: only the manifest, which knows the delay, says it
    rank: int | None
    next_level: int  # of the plan that the seal carries for the round delay + 1 later
    next_rank: int
    next_inner_steps: int  # binds through stage 0's seal
    transaction: str  # 0x hex
    block: int
    time: int  # of the block, Unix seconds


class RoundRow(msgspec.Struct, frozen=True, kw_only=True):
    """One round. `stages` holds the stages that have sealed it: all but, perhaps, in the newest round."""

    round: int
    time: int  # of the last seal, Unix seconds
    inner_steps: int | None  # of the plan: a slower replica does fewer; None: an empty round
    loss: float | None  # nats per token, token-weighted mean of the last stage; None: not sealed yet, or empty
    held_out: float | None  # nats per token of what the round led to, version `round + 1`; see node.runs.held_out
    held_out_said: dict[str, float]  # by whom: account -> its loss
    held_out_missing: tuple[str, ...]  # drawn accounts that said nothing (yet)
    tokens: int
    total_tokens: int  # of the run up to and including this round
    sealed: bool  # by every stage
    stages: tuple[StageRow, ...]


class ConvictionRow(msgspec.Struct, frozen=True, kw_only=True):
    """Who lost its slot for which contribution. Hashes are hex."""

    account: str
    stage: int
    round: int
    statement: str
    reports: tuple[str, ...]  # why, by those who signed
    transaction: str  # 0x hex
    block: int
    time: int  # of the block, Unix seconds


class VerdictRow(msgspec.Struct, frozen=True, kw_only=True):
    """What a checker found of a drawn segment, as this folder's node was told. Hashes are hex."""

    round: int
    stage: int
    replica: int
    account: str
    finding: str  # honest, false, withheld
    checker: str
    segment: int
    distances: dict[str, float | None]
    reasons: tuple[str, ...]
    report: str  # its name


class History(msgspec.Struct, frozen=True, kw_only=True):
    run: str  # 0x hex
    creator: str
    manifest: str  # its sha256, hex
    rounds_planned: int
    sealed_rounds: int  # by every stage
    stage_count: int
    held_out_before: float | None  # of the model that the run starts from, by its creator; None: none, or not known
    rounds: tuple[RoundRow, ...]
    convictions: tuple[ConvictionRow, ...]
    verdicts: tuple[VerdictRow, ...]


def history(
    index: EventIndex,
    view: RunView,
    last: int | None = None,
    verdicts: Sequence[ReportedVerdict] = (),
    held_out: Mapping[int, HeldOut] = NOTHING,
    before: float | None = None,
) -> History:
    """The rounds of a run, or its `last` ones, from the rows that its replayed view left in the index, and those of the
    `verdicts` that are about them. `held_out`: by version. `before`: loss of the genesis, by the manifest."""
    config = view.config
    newest = max(view.next_round(stage) for stage in range(config.stages))
    first = 0 if last is None else max(0, newest - last)
    return History(
        run="0x" + view.run.hex(),
        creator=view.creator,
        manifest=config.manifest.hex(),
        rounds_planned=config.rounds,
        sealed_rounds=min(view.next_round(stage) for stage in range(config.stages)),
        stage_count=config.stages,
        held_out_before=before,
        rounds=tuple(_rounds(index, view, first, held_out)),
        convictions=tuple(map(_conviction, view.convictions)),
        verdicts=tuple(_verdict(one) for one in verdicts if one.report.round >= first),
    )


def to_csv(found: History) -> str:
    """One line per round; the columns of each stage are named stage0_weights and so on."""
    names = (
        *("weights", "contributions", "signers", "level", "rank"),
        *("next_level", "next_rank", "next_inner_steps", "transaction"),
    )
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns = [f"stage{stage}_{name}" for stage in range(found.stage_count) for name in names]
    writer.writerow(["round", "time", "inner_steps", "held_out", "loss", "tokens", "total_tokens", *columns])
    for row in found.rounds:
        by_stage = {stage.stage: stage for stage in row.stages}
        cells = [
            getattr(by_stage[stage], name) if stage in by_stage else None
            for stage in range(found.stage_count)
            for name in names
        ]
        losses = ["" if loss is None else f"{loss:.6f}" for loss in (row.held_out, row.loss)]
        writer.writerow([row.round, utc(row.time), row.inner_steps, *losses, row.tokens, row.total_tokens, *cells])
    return text.getvalue()


def plot(found: History, path: Path) -> None:
    """Draw held-out loss (thick) and training loss (thin) against rounds and tokens to a PNG file. Raises Failure where
    there is nothing to draw."""
    points = [(row.round, row.loss, row.total_tokens) for row in found.rounds if row.loss is not None]
    if not points:
        raise Failure(f"run {found.run[:10]} has no sealed round with a loss yet: there is nothing to draw")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import EngFormatter, MaxNLocator

    rounds, losses, tokens = (list(column) for column in zip(*points, strict=True))
    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    evaluated = [(row.round, row.held_out) for row in found.rounds if row.held_out is not None]
    colour, width = ("#8a8d91", 1) if evaluated else ("#1f5fa8", 2)
    axes.plot(rounds, losses, label="training loss, as members say", color=colour, linewidth=width)
    if evaluated:
        places, held_out = (list(column) for column in zip(*evaluated, strict=True))
        mark = "o" if len(places) <= 60 else None
        label = "held-out loss, by the ledger"
        axes.plot(places, held_out, color="#1f5fa8", linewidth=2, marker=mark, markersize=4, label=label)
        axes.legend(frameon=False)
    place, loss = evaluated[-1] if evaluated else (rounds[-1], losses[-1])
    axes.annotate(f"{loss:.3f}", (place, loss), xytext=(0, 9), textcoords="offset points", ha="center", color="#1f5fa8")
    axes.set_xlabel("Round")
    axes.set_ylabel("Loss (nats per token)" if evaluated else "Training loss (nats per token)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(x=0.03, y=0.1)
    axes.grid(color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    # The same places in tokens, so that runs with other round lengths can be compared.
    ticks = [tick for tick in axes.get_xticks() if rounds[0] <= tick <= rounds[-1]]
    above = axes.secondary_xaxis("top")
    above.set_xticks(ticks, [EngFormatter(sep="", places=0)(_at(tick, rounds, tokens)) for tick in ticks])
    above.set_xlabel("Tokens", color="#666666")
    above.tick_params(length=0, colors="#666666")
    above.spines["top"].set_visible(False)
    last = found.rounds[-1]
    axes.set_title(
        f"Run {found.run[:10]}: {found.sealed_rounds} of {found.rounds_planned} rounds, "
        f"{EngFormatter(sep='', places=1)(last.total_tokens)} tokens",
        fontsize=12,
        fontweight="bold",
        loc="left",
        pad=12,
    )
    try:
        figure.savefig(path, dpi=160, format="png")
    except OSError as error:
        raise Failure(f"cannot write the plot to {path}: {error.strerror}") from error
    finally:
        pyplot.close(figure)


def utc(seconds: int) -> str:
    """2026-11-21T02:03:04Z."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _rounds(index: EventIndex, view: RunView, first: int, held_out: Mapping[int, HeldOut]) -> Iterator[RoundRow]:
    """From a round on, oldest first."""
    stages, total = view.config.stages, seal_rows.tokens_before(index, view.run, first)
    for number, group in groupby(seal_rows.read(index, view.run, first), key=lambda row: row.round):
        seals = list(group)
        last = seals[-1] if seals[-1].stage == stages - 1 else None
        total += seals[0].tokens
        evaluated = held_out.get(number + 1)
        yield RoundRow(
            round=number,
            time=max(seal.time for seal in seals),
            inner_steps=next((seal.inner_steps for seal in seals if seal.counted), None),
            loss=last.loss / MICRO if last and last.counted else None,
            held_out=None if evaluated is None else evaluated.loss,
            held_out_said=dict(evaluated.said) if evaluated else {},
            held_out_missing=evaluated.missing if evaluated else (),
            tokens=seals[0].tokens,
            total_tokens=total,
            sealed=len(seals) == stages,
            stages=tuple(map(_stage_row, seals)),
        )


def _stage_row(seal: seal_rows.SealRow) -> StageRow:
    return StageRow(
        stage=seal.stage,
        weights=seal.weights.hex(),
        contributions=seal.counted,
        steps=taken(seal.outline),
        signers=seal.signers,
        tokens=seal.tokens,
        level=seal.level,
        rank=seal.rank,
        next_level=seal.next_level,
        next_rank=seal.next_rank,
        next_inner_steps=seal.next_inner_steps,
        transaction="0x" + seal.tx.hex(),
        block=seal.block,
        time=seal.time,
    )


def _verdict(one: ReportedVerdict) -> VerdictRow:
    report = one.report
    return VerdictRow(
        round=report.round,
        stage=report.stage,
        replica=report.replica,
        account=one.account,
        finding=one.finding.word,
        checker=one.checker,
        segment=report.segment,
        distances=msgspec.structs.asdict(report.distances),
        reasons=report.reasons,
        report=one.name.hex(),
    )


def _conviction(event: Convicted) -> ConvictionRow:
    return ConvictionRow(
        account=event.account,
        stage=event.stage,
        round=event.round,
        statement=event.statement.hex(),
        reports=tuple(entry.report.hex() for entry in split_conviction(event.entries)),
        transaction="0x" + event.at.tx.hex(),
        block=event.at.block,
        time=event.at.time,
    )


def _at(place: float, rounds: list[int], tokens: list[int]) -> float:
    """Tokens at a round, between rounds by straight lines."""
    for left in range(len(rounds) - 1):
        if rounds[left] <= place <= rounds[left + 1]:
            share = (place - rounds[left]) / (rounds[left + 1] - rounds[left])
            return tokens[left] + share * (tokens[left + 1] - tokens[left])
    return tokens[-1]
