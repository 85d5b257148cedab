"""What each seal of a run says, as rows of the index: for histories, and for what a view says of long ago."""

import sqlite3
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

from dlx.ledger.abi import TypedError
from dlx.ledger.events import Sealed
from dlx.ledger.index import EventIndex, Place
from dlx.ledger.typed import Contribution, Plan
from dlx.ledger.view import ViewError

_BATCH = 1000


class SealRow(NamedTuple):
    """How one stage sealed a round. Loss in micro-nats per token, time in Unix seconds."""

    round: int
    stage: int
    block: int
    time: int
    tx: bytes
    weights: bytes  # hash of the version that the seal made
    counted: int  # contributions
    signers: int
    tokens: int
    loss: int
    inner_steps: int | None  # that each contribution took; None: nothing was counted
    level: int | None  # and rank of the plan in force; None: no seal says it
    rank: int | None
    next_level: int  # of the plan that the seal carries
    next_rank: int
    next_inner_steps: int


class Outline(NamedTuple):
    """What a view remembers of every seal."""

    stage: int
    weights: bytes
    momentum: bytes
    next_inner_steps: int


def write(db: sqlite3.Connection, seals: Iterable[Sealed]) -> None:
    """Adds the rows of seals, in chain order; those that are there already stay. Raises ViewError for records that are
    none."""
    marks = ", ".join("?" * 19)
    for event in seals:
        db.execute(f"INSERT OR IGNORE INTO seals VALUES ({marks})", _row(db, event))


def read(index: EventIndex, run: bytes, first: int = 0) -> Iterator[SealRow]:
    """The rows of a run from round `first` on, by round and stage."""
    columns, place = ", ".join(SealRow._fields), (first, -1)
    while True:
        found = index.rows(
            f"SELECT {columns} FROM seals WHERE run = ? AND (round, stage) > (?, ?) "
            f"ORDER BY round, stage LIMIT {_BATCH}",
            run, *place,
        )  # fmt: skip
        yield from map(SealRow._make, found)
        if len(found) < _BATCH:
            return
        place = found[-1][:2]


def tokens_before(index: EventIndex, run: bytes, round: int) -> int:
    """Counted in all rounds before."""
    query = "SELECT coalesce(sum(tokens), 0) FROM seals WHERE run = ? AND round < ? AND stage = 0"
    return index.rows(query, run, round)[0][0]


def outlines(index: EventIndex, run: bytes, until: Place) -> Iterator[Outline]:
    """Of the run's seals up to a place, in the order of their rounds."""
    place = -1, -1
    while True:
        found = index.rows(
            "SELECT stage, weights, momentum, next_inner_steps, round FROM seals WHERE run = ? "
            f"AND (round, stage) > (?, ?) AND (block, log_index) <= (?, ?) ORDER BY round, stage LIMIT {_BATCH}",
            run, *place, *until,
        )  # fmt: skip
        yield from (Outline(*row[:4]) for row in found)
        if len(found) < _BATCH:
            return
        place = found[-1][4], found[-1][0]


def sealed(index: EventIndex, run: bytes, stage: int, round: int) -> Sealed:
    """The event. Raises KeyError where the round is not sealed."""
    found = index.rows(
        "SELECT block, log_index FROM seals WHERE run = ? AND round = ? AND stage = ?", run, round, stage
    )
    event = index.event_at(found[0]) if found else None
    if not isinstance(event, Sealed):
        raise KeyError((stage, round))
    return event


def _row(db: sqlite3.Connection, event: Sealed) -> tuple[object, ...]:
    seal, at = event.seal, event.at
    try:
        counted = event.contributions[0].contribution if event.records else None
    except TypedError as error:
        raise ViewError(f"round {event.round} of stage {event.stage}: {error}") from None
    level, rank = (None, None) if counted is None else _plan_in_force(db, event, counted)
    return (
        event.run, event.round, event.stage, at.block, at.log_index, at.time, at.tx, seal.next_weights,
        seal.next_momentum, seal.count, len(event.signers), seal.total_tokens, seal.mean_loss,
        counted.inner_steps if counted else None, level, rank,
        seal.plan_level, seal.plan_rank, seal.plan_inner_steps,
    )  # fmt: skip


def _plan_in_force(db: sqlite3.Connection, event: Sealed, counted: Contribution) -> tuple[int | None, int | None]:
    """Level and rank of the plan that the counted contributions name by its hash: an earlier seal's. Which one depends
    on the run's delay, of which the ledger knows nothing; the first seals carry the manifest's."""
    earlier = db.execute(
        "SELECT next_level, next_rank FROM seals WHERE run = ? AND round IN (?, ?, 0) AND round < ? AND stage = ?",
        (event.run, event.round - 1, event.round - 2, event.round, event.stage),
    )
    for level, rank in earlier:
        if _plan_hash(level, rank, counted.inner_steps) == counted.plan:
            return level, rank
    return None, None


@lru_cache(64)
def _plan_hash(level: int, rank: int, inner_steps: int) -> bytes:
    return Plan(level, rank, inner_steps).hash()
