"""Which replicas had a member in every stage, and since when: from a run's events other than its seals."""

from __future__ import annotations

from bisect import bisect_right
from functools import reduce
from operator import and_

from dlx.ledger.events import Convicted, Dealt, Dismissed, Event, Evicted, Joined, Left, Moved, Reclaimed
from dlx.ledger.index.event_index import START, Place


class Coverage:
    """Bitmaps of replicas, at any place of the chain. Give it every event of the run, in order."""

    def __init__(self, stages: int) -> None:
        self.after: Place = START  # of the last event
        self._slots: dict[str, tuple[int, int]] = {}  # account -> (replica, stage)
        self._held = [0] * stages
        self._places: list[Place] = [START]
        self._history: list[tuple[int, ...]] = [tuple(self._held)]  # of each stage, from that place on

    def apply(self, event: Event) -> None:
        match event:
            case Joined(account=account, replica=replica, stage=stage):
                self._leave(account)
                self._take(account, replica, stage)
            case Moved(account=account, to_replica=replica, stage=stage):
                self._leave(account)
                self._take(account, replica, stage)
            case Dealt(stage=stage, replica=replica, other=other):
                to = {(replica, stage): (other, stage), (other, stage): (replica, stage)}
                self._slots = {account: to.get(slot, slot) for account, slot in self._slots.items()}
            case Left(account=account) | Evicted(account=account) | Dismissed(account=account):
                self._leave(account)
            case Convicted(account=account) | Reclaimed(former=account):
                self._leave(account)
        self.after = event.at.block, event.at.log_index
        if tuple(self._held) != self._history[-1]:
            self._places.append(self.after)
            self._history.append(tuple(self._held))

    def held(self, stage: int, at: Place) -> int:
        """The replicas whose slot of the stage was held."""
        return self._at(at)[stage]

    def complete(self, at: Place) -> int:
        """The replicas with a member for every stage."""
        return reduce(and_, self._at(at))

    def _at(self, place: Place) -> tuple[int, ...]:
        return self._history[bisect_right(self._places, place) - 1]

    def _take(self, account: str, replica: int, stage: int) -> None:
        self._slots[account] = replica, stage
        self._held[stage] |= 1 << replica

    def _leave(self, account: str) -> None:
        if (slot := self._slots.pop(account, None)) is not None:
            self._held[slot[1]] &= ~(1 << slot[0])
