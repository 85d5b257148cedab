"""How many of a round's inner steps a replica has time for, so that it ends when the others do.

The reference is the lower median of the replicas' rounds: so at most the faster half waits, and whoever wants to pull
all others down or to hold them up has to be half of the replicas. What is compared is what this member saw: when a
round could begin, and when somebody's contribution to it came. Nobody's word for its own time counts, because nothing
could refute it; who contributes earlier than it can have trained signs what a replay convicts it of once it is counted,
and what a seal left out moves nobody.
"""

import statistics
from collections.abc import Collection, Mapping
from dataclasses import dataclass

SLOWEST = 16  # times slower than the plan has it: who does fewer steps is not counted, or votes cost next to nothing
TRIAL_STEPS = 2  # of a first round: one to warm up, one to measure
WINDOW = 5  # rounds that a replica's seconds are the median of
LEAST_SECONDS = 1e-6  # of a step: a clock may see none
SLACK, BLUR_SECONDS = 1.05, 1.0  # what is no slower: gossip and the ledger are heard in steps of a second or so


def fewest_steps(inner_steps: int) -> int:
    """What counted work has to be at least, in a round whose plan says so many steps."""
    return -(-inner_steps // SLOWEST)


@dataclass(frozen=True, slots=True)
class Speed:
    """Of the own replica: seconds of a round whatever its steps, and of each step."""

    fixed: float
    step: float

    def seconds(self, steps: int) -> float:
        return self.fixed + steps * self.step


@dataclass(frozen=True, slots=True)
class Lap:
    """Another replica's round, or our own, as it was seen here: seconds from when it could begin until it was there."""

    seconds: float
    steps: int


def reference(inner_steps: int, speed: Speed, laps: Mapping[int, Collection[Lap]]) -> tuple[int, float, float]:
    """The replica that the others end with, the seconds of its round of all steps, and by how many that may be wrong. A
    lap of fewer steps counts for a longer one as it would be here, where all do the same work. `laps`: replica -> its
    newest, at least one each."""
    whole = speed.seconds(inner_steps)
    seconds = {
        replica: statistics.median_low(one.seconds * whole / speed.seconds(one.steps) for one in found)
        for replica, found in laps.items()
    }
    order = sorted(seconds, key=lambda replica: (seconds[replica], replica))
    chosen = order[(len(order) - 1) // 2]
    blur = BLUR_SECONDS * whole / speed.seconds(max(one.steps for one in laps[chosen]))
    return chosen, seconds[chosen], blur


def steps_within(inner_steps: int, speed: Speed, seconds: float, blur: float = BLUR_SECONDS) -> int:
    """The most inner steps of a round that fit in so many seconds, which may be wrong by `blur`: at least the fewest
    that count, all where they nearly fit."""
    if speed.seconds(inner_steps) <= seconds * SLACK + blur:
        return inner_steps
    fitting = int((seconds - speed.fixed) / speed.step)
    return max(fewest_steps(inner_steps), min(fitting, inner_steps))


class Pace:
    """What one member saw of the rounds of its stage; times are in seconds on one clock. `delay`: the run's; `last`:
    the steps of its last contribution, if there is one."""

    def __init__(self, delay: int, last: int | None) -> None:
        self._delay, self._last = delay, last
        self._opened: dict[int, float] = {}  # round -> when its base version was decided
        self._came: dict[int, dict[int, tuple[float, int]]] = {}  # round -> replica -> when, and its steps
        self._counted: dict[int, frozenset[int]] = {}  # sealed round -> the replicas that it counts
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

    def came(self, round: int, replica: int, steps: int, now: float) -> None:
        """A contribution, as it was first heard of."""
        self._came.setdefault(round, {}).setdefault(replica, (now, steps))

    def sealed(self, counted: Mapping[int, frozenset[int]]) -> None:
        """What the newest seals count: round -> replicas."""
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

    def steps(self, round: int, inner_steps: int, replicas: Collection[int], own: int, now: float) -> int:
        """How many of the round's inner steps replica `own` should do that begins it now. `replicas`: those that are
        complete."""
        if len(replicas) < 2:
            return inner_steps
        speed, fewest = self._speed(), max(fewest_steps(inner_steps), min(TRIAL_STEPS, inner_steps))
        if speed is None:
            return max(fewest, min(self._last or 0, inner_steps))
        laps = {replica: found for replica in replicas if (found := self._laps(replica, round))}
        if not laps.keys() - {own}:
            return inner_steps  # nobody was there before us
        chosen, seconds, blur = reference(inner_steps, speed, laps)
        if chosen == own:
            return inner_steps
        return steps_within(inner_steps, speed, seconds - max(0.0, now - self._began(chosen, round, now)), blur)

    def _speed(self) -> Speed | None:
        if not self._speeds:
            return None
        newest = [self._speeds[one] for one in sorted(self._speeds)[-WINDOW:]]
        return Speed(*(statistics.median_low(part) for part in zip(*((s.fixed, s.step) for s in newest), strict=True)))

    def _laps(self, replica: int, before: int) -> list[Lap]:
        """Those that were counted, and those that may be: of who was counted last, or as long as nothing is sealed."""
        newest = max(self._counted, default=None)
        unsealed = {replica} if newest is None else self._counted[newest]
        rounds = [one for one in range(max(0, before - WINDOW), before) if one in self._opened]
        found = [one for one in rounds if replica in self._came.get(one, {})]
        return [self._lap(replica, one) for one in found if replica in self._counted.get(one, unsealed)]

    def _lap(self, replica: int, round: int) -> Lap:
        ended, steps = self._came[round][replica]
        return Lap(max(0.0, ended - self._began(replica, round, self._opened[round])), steps)

    def _began(self, replica: int, round: int, unknown: float) -> float:
        """When the replica could begin the round: with its base version, and done with the one before."""
        done, _ = self._came.get(round - 1, {}).get(replica, (unknown, 0))
        return max(done, self._opened.get(round, unknown))
