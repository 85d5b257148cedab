"""What each seal of a run says, as rows of the index: for histories, and for what a view says of long ago."""

import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from dlx.ledger.abi import account_bytes, checksum
from dlx.ledger.events import Sealed
from dlx.ledger.index.event_index import EventIndex, Place
from dlx.ledger.typed import Signs, split_entries
from dlx.ledger.view.run_view import RunView
from dlx.ledger.view.seal_log import outlined

_BATCH = 1000
_DELAYS = (0, 1)  # that a manifest can have
_MARKS = ", ".join("?" * 22)


class SealRow(NamedTuple):
    """How one stage sealed a round. Loss in micro-nats per token, time in Unix seconds."""

    round: int
    stage: int
    block: int
    log_index: int
    time: int
    tx: bytes
    weights: bytes  # hash of the version that the seal made, or left
    accounts: bytes  # who made the contributions, 20 bytes each
    counted: int  # contributions
    signers: int
    tokens: int
    loss: int
    inner_steps: int  # of the plan in force
    level: int | None  # likewise; None: only the manifest, which knows the delay, says it
    rank: int | None
    next_level: int  # of the plan that the seal carries
    next_rank: int
    next_inner_steps: int
    outline: bytes  # `outlined`
    paid: bytes  # `SealLog.paid_at`


class Outline(NamedTuple):
    """What a view remembers of every seal."""

    stage: int
    weights: bytes
    momentum: bytes
    next_inner_steps: int
    outline: bytes  # `outlined`
    paid: bytes  # `SealLog.paid_at`


def write(db: sqlite3.Connection, view: RunView, seals: Iterable[Sealed]) -> None:
    """Adds the rows of seals, in chain order, as the view gave them, which has all of them. Known ones stay."""
    for sealed in seals:
        db.execute(f"INSERT OR IGNORE INTO seals VALUES ({_MARKS})", _row(db, view, sealed))


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
    query = (  # in halves, whose sums cannot overflow
        "SELECT coalesce(sum(tokens >> 32), 0), coalesce(sum(tokens & 0xffffffff), 0) FROM seals "
        "WHERE run = ? AND round < ? AND stage = 0"
    )
    ((high, low),) = index.rows(query, run, round)
    return (high << 32) + low


def outlines(index: EventIndex, run: bytes, until: Place) -> Iterator[Outline]:
    """Of the run's seals up to a place, in the order of their rounds."""
    place = -1, -1
    while True:
        found = index.rows(
            "SELECT stage, weights, momentum, next_inner_steps, outline, paid, round FROM seals WHERE run = ? "
            f"AND (round, stage) > (?, ?) AND (block, log_index) <= (?, ?) ORDER BY round, stage LIMIT {_BATCH}",
            run, *place, *until,
        )  # fmt: skip
        yield from (Outline(*row[:6]) for row in found)
        if len(found) < _BATCH:
            return
        place = found[-1][6], found[-1][0]


def sealed(index: EventIndex, run: bytes, stage: int, round: int) -> Sealed:
    """The event, with the makers of its records. Raises KeyError where the round is not sealed."""
    found = index.rows(
        "SELECT block, log_index, accounts FROM seals WHERE run = ? AND round = ? AND stage = ?", run, round, stage
    )
    event = index.event_at(found[0][:2]) if found else None
    if not isinstance(event, Sealed):
        raise KeyError((stage, round))
    packed = found[0][2]
    return replace(event, accounts=tuple(checksum(packed[i : i + 20]) for i in range(0, len(packed), 20)))


def _row(db: sqlite3.Connection, view: RunView, sealed: Sealed) -> tuple[object, ...]:
    stage, after, at, planned = sealed.stage, sealed.round + 1, sealed.at, sealed.outcome.plan
    return (
        sealed.run, sealed.round, stage, at.block, at.log_index, at.time, at.tx,
        view.weights(stage, after), view.momentum(stage, after), b"".join(map(account_bytes, sealed.accounts)),
        sealed.count, _signers(sealed),
        sealed.steps * view.config.tokens_per_step, sealed.mean_loss,
        sealed.outcome.inner_steps, *_plan_in_force(db, sealed), planned.level, planned.rank, planned.inner_steps,
        outlined(sealed), view.sealed.paid_at(stage, sealed.round),
    )  # fmt: skip


def _signers(sealed: Sealed) -> int:
    """Of the seal; a founder that is a member gives its signature twice."""
    return len({entry.signature for entry in split_entries(sealed.signatures) if entry.signs is not Signs.RECORD})


def _plan_in_force(db: sqlite3.Connection, sealed: Sealed) -> tuple[int | None, int | None]:
    """Level and rank that an earlier seal planned for the round. Which one depends on the run's delay, of which the
    ledger knows nothing, but the inner steps that stage 0 planned have to be those in force. Of the first rounds, for
    which nobody has planned yet, the first seals carry the manifest's plan."""
    plans = set()
    for source in (sealed.round - delay - 1 for delay in _DELAYS):
        if sealed.round == 0:
            plans.add((sealed.outcome.plan.level, sealed.outcome.plan.rank))
            continue
        found = db.execute(
            "SELECT own.next_level, own.next_rank FROM seals own JOIN seals first ON first.run = own.run AND "
            "first.round = own.round AND first.stage = 0 WHERE own.run = ? AND own.round = ? AND own.stage = ? "
            "AND (first.next_inner_steps = ? OR ?)",
            (sealed.run, max(0, source), sealed.stage, sealed.outcome.inner_steps, source < 0),
        ).fetchone()
        if found is not None:
            plans.add(found)
    return plans.pop() if len(plans) == 1 else (None, None)
