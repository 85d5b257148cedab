"""Who did what in a run, and over runs: what seals counted of each account, and what became of its drawn work.

Work and convictions are the ledger's word. What was drawn follows from blocks and the manifest, and findings are what
checkers say: where a reader has none of these, a column is None, and never 0.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import msgspec

from dlx.ledger.abi import checksum
from dlx.ledger.index.seal_rows import SealRow
from dlx.ledger.view.run_view import RunView
from dlx.ledger.view.seal_log import taken
from dlx.node.round.challenges.draw import Drawn
from dlx.node.round.challenges.turns import prevailing
from dlx.node.round.challenges.verdicts import ReportedVerdict

FINDINGS = ("honest", "withheld", "false")
_DAY = 86_400


class AccountRow(msgspec.Struct, frozen=True, kw_only=True):
    """One account of a run, or of all runs that were looked at. None: not known here."""

    account: str
    runs: int  # that counted any of its work
    tokens: int  # of the inner steps that counted, each at its own stage
    share: float  # its part of all accounts' tokens, 0 to 1
    steps: int  # inner steps that counted
    rounds: int  # that counted it
    first: int | None  # when a seal first counted it, Unix seconds; None: never
    last: int | None
    days: float  # from the first to the last
    drawn: int | None  # segments of its work, of the rounds whose draw is known
    honest: int | None  # of those, by what most checkers say of each
    withheld: int | None
    false: int | None
    convictions: int
    improvement: float | None  # nats of held-out loss that went with its work; None also over runs


class Leaderboard(msgspec.Struct, frozen=True, kw_only=True):
    """The accounts of one run, those with most work first."""

    run: str  # 0x hex
    name: str
    rounds: int  # sealed by every stage
    draws_known: int | None  # of how many rounds it is known what was drawn; None: of none, for want of the manifest
    verdicts_heard: int | None  # None: no node's verdicts are here
    accounts: tuple[AccountRow, ...]


class Leaderboards(msgspec.Struct, frozen=True, kw_only=True):
    accounts: tuple[AccountRow, ...]  # over the runs
    runs: tuple[Leaderboard, ...]


@dataclass(frozen=True)
class Counted:
    """What seals counted of an account. Times are those of seals, Unix seconds."""

    rounds: int
    steps: int  # inner steps
    first: int
    last: int
    last_round: int


class Work:
    """What seals count of each account, added up as they come, in their order."""

    def __init__(self) -> None:
        self._alike: dict[tuple[bytes, bytes], _Alike] = {}  # by accounts and outline

    def add(self, row: SealRow) -> None:
        if not row.counted:
            return
        key = row.accounts, row.outline
        before = self._alike.get(key)
        if before is None:
            self._alike[key] = _Alike(1, row.time, row.time, row.round)
        else:
            self._alike[key] = _Alike(before.seals + 1, before.first, row.time, row.round)

    def by_account(self) -> dict[str, Counted]:
        found: dict[bytes, Counted] = {}
        for (accounts, outline), alike in self._alike.items():
            for account, steps in zip(_split(accounts), taken(outline).values(), strict=True):
                known = found.get(account) or Counted(0, 0, alike.first, alike.last, alike.last_round)
                found[account] = Counted(
                    known.rounds + alike.seals,
                    known.steps + alike.seals * steps,
                    min(known.first, alike.first),
                    max(known.last, alike.last),
                    max(known.last_round, alike.last_round),
                )
        return {checksum(account): one for account, one in found.items()}


class _Alike(NamedTuple):
    """Seals that count the same steps of the same accounts."""

    seals: int
    first: int  # time
    last: int  # time
    last_round: int


def improvement(rows: Iterable[SealRow], losses: Mapping[int, float]) -> dict[str, float]:
    """By account, how many nats of held-out loss its counted work went with: between two evaluated versions the fall of
    the loss, times its part of all stages' counted steps. A loss that rises counts against it.

    `rows`: every seal from the first evaluated version on, in order. `losses`: of each evaluated version, nats.
    """
    versions, found = sorted(losses), defaultdict[str, float](float)
    for place, seals in groupby(rows, lambda row: bisect_right(versions, row.round)):
        if not 0 < place < len(versions):
            continue  # before the first, or after the last
        work = Work()
        for row in seals:
            work.add(row)
        counted = work.by_account()
        total = sum(one.steps for one in counted.values())
        for account, one in counted.items():
            found[account] += (losses[versions[place - 1]] - losses[versions[place]]) * one.steps / total
    return dict(found)


def leaderboard(
    view: RunView,
    work: Mapping[str, Counted],
    drawn: Mapping[int, Sequence[Drawn]] | None,
    verdicts: Sequence[ReportedVerdict] | None,
    improved: Mapping[str, float] | None,
) -> Leaderboard:
    """`drawn`: what was drawn, of each round whose draw is known; where that is not None, only verdicts on it count.
    None where something is not known. Accounts that hold a slot are listed though nothing of theirs counted, and so are
    those that were convicted."""
    per_step, everybody = view.config.tokens_per_step, {*view.members(), *work}
    everybody |= {account for account, standing in view.standings.items() if standing.convicted}
    total = sum(one.steps for one in work.values())
    pieces = None if drawn is None else {one.key: one.account for each in drawn.values() for one in each}
    draws = None if pieces is None else Counter(pieces.values())
    findings = None if verdicts is None else _findings(verdicts, pieces)
    found = []
    for account in everybody:
        one = work.get(account)
        found.append(
            AccountRow(
                account=account,
                runs=int(one is not None),
                tokens=one.steps * per_step if one else 0,
                share=one.steps / total if one else 0.0,
                steps=one.steps if one else 0,
                rounds=one.rounds if one else 0,
                first=one.first if one else None,
                last=one.last if one else None,
                days=(one.last - one.first) / _DAY if one else 0.0,
                drawn=None if draws is None else draws[account],
                **{word: None if findings is None else findings[account][word] for word in FINDINGS},
                convictions=int(view.is_convicted(account)),
                improvement=None if improved is None else improved.get(account, 0.0),
            )
        )
    return Leaderboard(
        run="0x" + view.run.hex(),
        name=view.name,
        rounds=min(view.next_round(stage) for stage in range(view.config.stages)),
        draws_known=None if drawn is None else len(drawn),
        verdicts_heard=None if verdicts is None else len(verdicts),
        accounts=_sorted(found),
    )


def change(row: AccountRow) -> str:
    """The held-out loss that went with the account's work: with a minus where it fell."""
    if row.improvement is None:
        return "?"
    return f"{-row.improvement:+.4f}" if round(row.improvement, 4) else "0"


def sources(board: Leaderboard) -> str:
    """What the columns about drawn work and held-out loss rest on, in words."""
    drawn = (
        "Drawn: not known, as no folder here has the run's manifest."
        if board.draws_known is None
        else f"Drawn: in {board.draws_known:,} rounds whose draw is known here."
    )
    heard = (
        "Findings: not known, as no node's verdicts are here."
        if board.verdicts_heard is None
        else f"Findings: the worst that a checker says of each, of {board.verdicts_heard:,} verdicts heard here."
    )
    return f"{drawn} {heard}"


def over_runs(boards: Sequence[Leaderboard]) -> Leaderboards:
    """The accounts of all these runs together. A sum of which one part is not known is not known."""
    rows: dict[str, list[AccountRow]] = defaultdict(list)
    for board in boards:
        for row in board.accounts:
            rows[row.account].append(row)
    total = sum(row.tokens for each in rows.values() for row in each)
    found = []
    for account, each in rows.items():
        first = min((row.first for row in each if row.first is not None), default=None)
        last = max((row.last for row in each if row.last is not None), default=None)
        tokens = sum(row.tokens for row in each)
        found.append(
            AccountRow(
                account=account,
                runs=sum(row.runs for row in each),
                tokens=tokens,
                share=tokens / total if total else 0.0,
                steps=sum(row.steps for row in each),
                rounds=sum(row.rounds for row in each),
                first=first,
                last=last,
                days=0.0 if first is None or last is None else (last - first) / _DAY,
                **{word: _sum(getattr(row, word) for row in each) for word in ("drawn", *FINDINGS)},
                convictions=sum(row.convictions for row in each),
                improvement=None,
            )
        )
    return Leaderboards(accounts=_sorted(found), runs=tuple(boards))


def _findings(
    verdicts: Iterable[ReportedVerdict], pieces: Mapping[tuple[bytes, int], str] | None
) -> defaultdict[str, Counter[str]]:
    """By account, how many pieces of its drawn work are honest and so on. `pieces`: what was drawn, and whose it is."""
    said: dict[tuple[str, tuple[bytes, int]], list[ReportedVerdict]] = {}
    for one in verdicts:
        piece = one.report.key
        account = one.account if pieces is None else pieces.get(piece)
        if account is not None:
            said.setdefault((account, piece), []).append(one)
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for (account, _), verdicts_on in said.items():
        found[account][prevailing(verdicts_on).word] += 1
    return found


def _sorted(rows: Iterable[AccountRow]) -> tuple[AccountRow, ...]:
    return tuple(sorted(rows, key=lambda row: (-row.tokens, row.account)))


def _sum(parts: Iterable[int | None]) -> int | None:
    known = list(parts)
    return None if None in known else sum(part for part in known if part is not None)


def _split(joined: bytes) -> Iterator[bytes]:
    return (joined[i : i + 20] for i in range(0, len(joined), 20))
