"""How many of a round's inner steps a replica has time for, so that it ends when the others do.

The reference is the lower median of the times at which the replicas would be done with all steps, own one included. So
at most the faster half waits, who began late is no slower for that, and whoever wants to pull all others down or to
hold them up has to be half of the replicas. What is compared is what this member saw: when a round could begin, and
when the contribution of a replica's member of its own stage came. Nobody's word for its own time counts, because
nothing could refute it. Who contributes earlier than it can have trained signs what a replay convicts it of once it is
counted. What a seal left out moves nobody, and what an account did goes with it.
"""

import statistics
from collections.abc import Collection, Mapping
from dataclasses import dataclass

SLOWEST = 16  # times slower than the plan has it: who does fewer steps is not counted, or votes cost next to nothing
TRIAL_STEPS = 2  # of a first round: one to warm up, one to measure
WINDOW = 5  # rounds that a replica's seconds are the median of
LEAST_SECONDS = 1e-6  # of a step: a clock may see none
SLACK, BLUR_SECONDS = 1.05, 1.0  # what is no slower: gossip and the ledger are heard in steps of a second or so
LATE = 0.25  # of a round: so late nobody waits for where the next one trains meanwhile, nor longer than half the grace


def fewest_steps(inner_steps: int) -> int:
    """What counted work has to be at least, in a round whose plan says so many steps."""
    return -(-inner_steps // SLOWEST)


def trial_steps(inner_steps: int) -> int:
    """What a replica may state at most in its first round: enough to be counted, and to see how fast it is."""
    return max(fewest_steps(inner_steps), min(TRIAL_STEPS, inner_steps))


@dataclass(frozen=True, slots=True)
class Speed:
    """Of the own replica: seconds of a round whatever its steps, and of each step."""

    fixed: float
    step: float

    def seconds(self, steps: int) -> float:
        return self.fixed + steps * self.step


@dataclass(frozen=True, slots=True)
class Lap:
    """A round of another replica's member, or two in a row, as it was seen here: seconds from when it could begin until
    its contribution was there, and the steps of each."""

    seconds: float
    steps: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class End:
    """When somebody would be done with all steps of a round, and by how many seconds that may be wrong."""

    at: float
    blur: float


def whole(inner_steps: int, speed: Speed, laps: Collection[Lap]) -> tuple[float, float]:
    """The seconds of a round of all steps by somebody's laps (at least one), and by how many that may be wrong. A lap
    of fewer steps counts for a longer one as it would be here, where all do the same work."""
    ours = [sum(map(speed.seconds, lap.steps)) / speed.seconds(inner_steps) for lap in laps]
    seconds = statistics.median_low(lap.seconds / part for lap, part in zip(laps, ours, strict=True))
    return seconds, BLUR_SECONDS / max(ours)


def reference(ends: Mapping[str, End]) -> str:
    """With whom the others end: the lower median."""
    order = sorted(ends, key=lambda account: (ends[account].at, account))
    return order[(len(order) - 1) // 2]


def steps_within(inner_steps: int, speed: Speed, seconds: float, blur: float = BLUR_SECONDS, late: float = 0.0) -> int:
    """The most inner steps of a round that fit in so many seconds, which may be wrong by `blur`. They are at least the
    fewest that count, and all where they nearly fit, or take only so many seconds more that it is no matter
    (`late`)."""
    if speed.seconds(inner_steps) <= seconds + max((SLACK - 1) * seconds + blur, late):
        return inner_steps
    fitting = int((seconds - speed.fixed) / speed.step)
    return max(fewest_steps(inner_steps), min(fitting, inner_steps))


class Pace:
    """What `account` saw of the rounds of its stage; times are in seconds on one clock. `delay` and `grace` (for
    stragglers): the run's; `last`: the steps of its last contribution, if there is one."""

    def __init__(self, account: str, delay: int, grace: float, last: int | None) -> None:
        self._account, self._delay, self._grace, self._last = account, delay, grace, last
        self._opened: dict[int, float] = {}  # round -> when its base version was decided
        self._came: dict[int, dict[str, tuple[float, int]]] = {}  # round -> account -> when, and its steps
        self._counted: dict[int, frozenset[str]] = {}  # sealed round -> the makers of what it counts
        self._speeds: dict[int, Speed] = {}  # own, by round

    def opened(self, round: int, now: float) -> None:
        """Its base version is there: whoever is done with the round before can begin this one."""
        if round not in self._opened:
            rounds = [round] if self._opened else range(max(0, round - self._delay), round + 1)  # these open together
            self._opened.update(dict.fromkeys(rounds, now))
            oldest = round - WINDOW - 1
            self._opened = {at: when for at, when in self._opened.items() if at >= oldest}
            self._came = {at: came for at, came in self._came.items() if at >= oldest}
            self._speeds = {at: speed for at, speed in self._speeds.items() if at >= oldest}

    def contributed(self, round: int, account: str, steps: int, now: float) -> None:
        """A contribution to our stage, as it was first heard of."""
        self._came.setdefault(round, {}).setdefault(account, (now, steps))

    def sealed(self, counted: Mapping[int, frozenset[str]]) -> None:
        """Whose contributions the newest seals of our stage count, by round."""
        self._counted = dict(counted)

    def trained(self, round: int, steps: int, seconds: float, step_seconds: float | None) -> None:
        """Our own training of a round took so long; `step_seconds`: each of its steps, where there were several."""
        self._last, seconds = steps, max(seconds, LEAST_SECONDS)
        if step_seconds is not None:
            self._speeds[round] = Speed(max(0.0, seconds - steps * step_seconds), max(step_seconds, LEAST_SECONDS))
        elif (before := self._speed()) is not None:
            scale = seconds / before.seconds(steps)
            self._speeds[round] = Speed(before.fixed * scale, before.step * scale)
        else:
            self._speeds[round] = Speed(0.0, seconds / steps)

    def steps(self, round: int, inner_steps: int, members: Collection[str], now: float) -> int:
        """How many of the round's inner steps we should do, beginning it now. `members`: of our stage, in the replicas
        that are complete."""
        if len(members) < 2:
            return inner_steps
        speed = self._speed()
        if speed is None:
            return max(trial_steps(inner_steps), min(self._last or 0, inner_steps))
        others = {one: laps for one in members if one != self._account and (laps := self._laps(one, round))}
        if not others:
            return inner_steps  # nobody was there before us
        ends = {one: self._end(one, round, *whole(inner_steps, speed, laps), now) for one, laps in others.items()}
        chosen = reference(ends | {self._account: End(now + speed.seconds(inner_steps), 0.0)})
        if chosen == self._account:
            return inner_steps
        late = min(LATE * speed.seconds(inner_steps), self._grace / 2) if self._delay else 0.0
        return steps_within(inner_steps, speed, ends[chosen].at - now, ends[chosen].blur, late)

    def _speed(self) -> Speed | None:
        if not self._speeds:
            return None
        newest = [self._speeds[one] for one in sorted(self._speeds)[-WINDOW:]]
        return Speed(*(statistics.median_low(part) for part in zip(*((s.fixed, s.step) for s in newest), strict=True)))

    def _laps(self, account: str, before: int) -> list[Lap]:
        """Those that were counted, and those that may be: of who was counted last, or as long as nothing is sealed."""
        newest = max(self._counted, default=None)
        unsealed = {account} if newest is None else self._counted[newest]
        rounds = [one for one in range(max(0, before - WINDOW), before) if one in self._opened]
        counted = [one for one in rounds if account in self._counted.get(one, unsealed)]
        found = (self._lap(account, one, one - 1 in counted) for one in counted if account in self._came.get(one, {}))
        return [lap for lap in found if lap is not None]

    def _lap(self, account: str, round: int, also_before: bool) -> Lap | None:
        """With the round before where that kept it from beginning. With a delay both may have been trained before
        either was contributed, and who holds back every other one would seem twice as fast as it is. `also_before`:
        that one counts for work too."""
        (ended, steps), opened = self._came[round][account], self._opened[round]
        done, before = self._came.get(round - 1, {}).get(account, (opened, 0))
        if done <= opened:
            return Lap(max(0.0, ended - opened), (steps,))
        if round - 1 not in self._opened:
            return None
        return Lap(
            max(0.0, ended - self._began(account, round - 1, opened)), (before, steps) if also_before else (steps,)
        )

    def _end(self, account: str, round: int, seconds: float, blur: float, now: float) -> End:
        """Of somebody's round of so many seconds; who is still at the round before ends that first, if only now."""
        done = now
        if round - 1 in self._opened and account not in self._came.get(round - 1, {}):
            done = max(now, self._began(account, round - 1, now) + seconds)
        return End(self._began(account, round, done) + seconds, blur)

    def _began(self, account: str, round: int, unknown: float) -> float:
        """When somebody could begin the round: with its base version, and done with the one before."""
        done, _ = self._came.get(round - 1, {}).get(account, (unknown, 0))
        return max(done, self._opened.get(round, unknown))
