"""What the sealed rounds of a run add up to, summed as they come: who was counted, what was left out, the curves."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import NamedTuple

from dlx.ground.constants import MICRO
from dlx.ledger.index import seal_rows
from dlx.ledger.index.event_index import START, EventIndex, Place
from dlx.ledger.index.seal_rows import SealRow
from dlx.ledger.view.seal_log import taken
from dlx.node.runs.leaderboard import Work
from dlx.node.web.reading.coverage import Coverage

PayloadSize = Callable[[int, int | None, int | None], int]  # stage, level and rank in force -> bytes


class Share(NamedTuple):
    """Contributions that seals counted, and those that they could have counted: of replicas that were complete from the
    opening of the round to its seal."""

    counted: int
    possible: int

    @property
    def part(self) -> float | None:
        return self.counted / self.possible if self.possible else None


class Totals:
    """Of one run: of the rounds that all stages have sealed. `advance` reads what is new."""

    def __init__(self, run: bytes, stages: int, size: PayloadSize | None) -> None:
        self._run, self._stages, self._size = run, stages, size
        self.rounds = 0
        self.opened: Place = START  # where the round after them opened
        self.losses = array("d")  # nats per token, of each round; NaN: an empty one
        self.tokens, self.times = array("q"), array("q")  # counted so far; Unix seconds
        # Of counted payloads so far, by the manifest's word, which may be huge; empty where `size` is not known.
        self.bytes = array("d")
        self._counted, self._possible = array("L", [0]), array("L", [0])  # sums over the first 0, 1, 2, ... rounds
        self.work = Work()
        self._outlines: dict[bytes, int] = {}  # outline -> bitmap of its replicas

    def advance(self, index: EventIndex, coverage: Coverage) -> None:
        """Adds the rounds that all stages have sealed since; `coverage` knows everything up to now."""
        group: list[SealRow] = []
        for row in seal_rows.read(index, self._run, self.rounds):
            if row.round != self.rounds:
                return
            group.append(row)
            if len(group) == self._stages:
                self._add(group, coverage)
                group = []

    def share(self, first: int = 0, end: int | None = None) -> Share:
        """Of the rounds from `first` up to, not including, `end`."""
        last = self.rounds if end is None else min(end, self.rounds)
        first = min(first, last)
        return Share(self._counted[last] - self._counted[first], self._possible[last] - self._possible[first])

    def opened_before(self, index: EventIndex, round: int) -> Place:
        """Where the round opened: with the last seal of the one before."""
        if round in (0, self.rounds):
            return START if round == 0 else self.opened
        found = seal_rows.read(index, self._run, round - 1)
        return max((row.block, row.log_index) for row, _ in zip(found, range(self._stages), strict=False))

    def _add(self, group: list[SealRow], coverage: Coverage) -> None:
        opened = coverage.complete(self.opened)
        counted = possible = size = 0
        for row in group:
            made = self._replicas(row.outline)
            could = made | (opened & coverage.complete((row.block, row.log_index)))
            counted += row.counted
            possible += could.bit_count()
            if self._size is not None:
                size += row.counted * self._size(row.stage, row.level, row.rank)
            self.work.add(row)
        self._counted.append(self._counted[-1] + counted)
        self._possible.append(self._possible[-1] + possible)
        last = group[-1]
        self.losses.append(last.loss / MICRO if last.counted else float("nan"))
        self.tokens.append((self.tokens[-1] if self.tokens else 0) + group[0].tokens)
        self.times.append(max(row.time for row in group))
        if self._size is not None:
            self.bytes.append((self.bytes[-1] if self.bytes else 0) + size)
        self.opened = max((row.block, row.log_index) for row in group)
        self.rounds += 1

    def _replicas(self, outline: bytes) -> int:
        found = self._outlines.get(outline)
        if found is None:
            if len(self._outlines) > 10_000:
                self._outlines.clear()
            found = self._outlines[outline] = sum(1 << replica for replica in taken(outline))
        return found
