"""What a seal may leave out, so that nobody decides alone whose work counts: pure functions over what members report.

The straggler grace begins when a quorum's contributions are here, however long their training took. Before it ends a
seal leaves out nobody who is waited for, and for as long as a payload takes nobody of them who was heard of by then.
Afterwards it has to list whatever its attester holds with the payload and reports of a quorum name. Whoever lacks it
fetches it from these, so nobody is kept from signing by what only the hostile have; and what is not reported yet is
given the time to be.

A replica that the last two seals did not count is not waited for, or one that never contributes would make every round
as long as the grace. For it the grace is over once all are here that are waited for; what is here by then counts as
anybody's. Who is a little slower than all of them would never be, so every eighth round waits for everybody.
"""

import statistics
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass

from dlx.ledger.view.run_view import RunView

WINDOW = 5  # payloads of a replica that its seconds of arrival are the median of
PASSED_OVER = 2  # seals in a row that did not count a replica, until it is not waited for,
EVERYBODY = 8  # but in rounds that this divides

Reports = Mapping[str, frozenset[bytes]]  # member -> the contributions that it said it holds


@dataclass(frozen=True, slots=True)
class Grace:
    """For stragglers, in Unix seconds: for replicas that are `awaited` and of which nothing was heard it `ends`, for
    those of them heard of by then it is `extended`. For others it is over once all that are awaited are here, since
    `gathered` (None: not yet)."""

    ends: float
    extended: float
    awaited: Set[int]
    gathered: float | None

    @classmethod
    def of(
        cls,
        opened: float,
        enough: float | None,
        grace: float,
        payload: float,
        timeout: float,
        awaited: Set[int],
        gathered: float | None,
    ) -> "Grace":
        """`enough`: since when a quorum's contributions are here (None: not yet). `grace`, what a `payload` usually
        takes and the round's `timeout`, which nothing goes beyond, in seconds."""
        latest = opened + timeout
        ends = latest if enough is None else min(max(opened, enough) + grace, latest)
        return cls(ends, min(ends + payload, latest), awaited, gathered)

    def over(self, replica: int) -> float:
        """From when on a seal may leave out the replica, for all that its attester waits for."""
        if replica in self.awaited or self.gathered is None:
            return self.extended
        return min(self.gathered, self.extended)


@dataclass(frozen=True, slots=True)
class Deadlines:
    """When an attester looks at a proposal that leaves out a replica, in Unix seconds. The grace is over for that
    replica at `graced`, the proposal came at `proposed`; `patience` is how long (s) a report may take."""

    now: float
    graced: float
    proposed: float
    patience: float

    def excuse(self, held_since: float, named: bool) -> bool:
        """Whether the proposal may leave out what the attester has held since then; `named`: reports of a quorum have
        it. What came after the proposal and the grace was late: else each latecomer would void what is under way."""
        if self.now < self.graced:
            return False
        late = held_since > max(self.graced, self.proposed)
        return late or (not named and self.now >= max(self.graced, held_since) + self.patience)


def awaited(view: RunView, round: int) -> set[int]:
    """The complete replicas that a seal of the round waits for, once a quorum's contributions are here."""
    return {
        replica
        for replica in view.complete_replicas()
        if round % EVERYBODY == 0 or not view.was_passed_over(replica, PASSED_OVER, round)
    }


def is_named(view: RunView, stage: int, reports: Reports, name: bytes, now: float) -> bool:
    """Whether enough members report the contribution: with as many votes as the stage's next seal needs now, and with
    more than half of all members' votes. Where all of them together have less than a seal needs, half is enough."""
    namers = [account for account, held in reports.items() if name in held]
    needed, votes = view.needed(stage, int(now)), view.votes(stage, view.members_in(stage), int(now))
    majority = votes // 2 + 1
    return view.votes(stage, namers, int(now)) >= (max(needed, majority) if needed <= votes else majority)


def trusted_names(view: RunView, stage: int, reports: Reports) -> set[bytes]:
    """What more votes report than can be missing from a quorum: where a quorum is honest one of them is, and has it.
    Votes and quorum are those of when the round opened, since silence lowers what a seal needs."""
    if (opened_at := view.opened_at) is None:
        return set()
    least = view.total(stage, opened_at) - view.needed(stage, opened_at) + 1
    namers: dict[bytes, list[str]] = {}
    for account, held in reports.items():
        for name in held:
            namers.setdefault(name, []).append(account)
    return {name for name, accounts in namers.items() if view.votes(stage, accounts, opened_at) >= least}


def merged(known: frozenset[bytes], reported: Iterable[bytes], stated: Mapping[bytes, object]) -> frozenset[bytes]:
    """What a member holds by its reports together: nobody takes one back by repeating an older one. Of what was never
    stated to us (not in `stated`) only the newest report's names stay, so that the set is bounded."""
    return frozenset(name for name in known if name in stated) | frozenset(reported)


class Arrivals:
    """How long others' payloads take to come here: seconds from when a member heard of one until it had it, checked.

    The straggler grace gives so much to those that are on their way."""

    def __init__(self) -> None:
        self._seconds: dict[int, deque[float]] = {}  # by replica

    def add(self, replica: int, seconds: float) -> None:
        self._seconds.setdefault(replica, deque(maxlen=WINDOW)).append(seconds)

    def usual(self, replicas: Collection[int], unknown: float) -> float:
        """The upper median of these replicas: a third of them makes it neither shorter than honest payloads take, by
        being there at once, nor, where they are four or more, longer, by sending slowly. `unknown`: the seconds of
        those of which none came yet. Else who is there at once could have the others left out of the first rounds."""
        found = [statistics.median_low(self._seconds.get(one, (unknown,))) for one in replicas]
        return statistics.median_high(found) if found else 0.0
