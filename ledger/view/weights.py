"""Weight is recent counted work, in lanes: the contract's arithmetic. As Weights.sol.

Each member of a stage has a lane there as long as it holds a slot, whichever. FULL is all the weight that a stage can
have. Each non-empty seal adds FULL / horizon to the lanes that it counts and takes a part of 1 / horizon from all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import sub
from typing import NamedTuple, Self

FULL = 1 << 16
ENOUGH = FULL // 2  # what is missing of it in a stage is its founders'
SEAL_PAY = 255  # that a seal adds in all
EPOCH_ROUNDS = 16  # whose pay is added up
NEVER = 15  # an age
ABSENT_TIMEOUTS = 64  # round timeouts in which the weight of the absent halves where seals are judged
LATE_TIMEOUTS = 2  # likewise that of those who are silent in a late round
FRACTION = 32  # bits of the pool of the absent
STRIDE = 0x9E3779B1  # of the jitter
_MOST = (1 << 16) - 1  # that a lane has room for
_ONE, _LN2 = 1 << 64, 12786308645202655659  # the second is ln 2, in 2^-64


class Credit(NamedTuple):
    """What a seal adds to the lane of one that it counts."""

    weight: int
    pay: int


@dataclass(frozen=True)
class Absent:
    """The weight of those who had a slot of a stage and have none now, in 2^-32, so that it does not matter how often
    it changes. Both are as of a time (s) at which the stage had so many non-empty seals."""

    seals_part: int = 0  # fades with the stage's non-empty seals, and with time
    verdicts_part: int = 0  # fades with seals alone: whose stage stands still while they are away lose nothing
    since: int = 0
    seals: int = 0

    @property
    def for_seals(self) -> int:
        """Where seals are judged."""
        return self.seals_part >> FRACTION

    @property
    def for_verdicts(self) -> int:
        """Where convictions are."""
        return self.verdicts_part >> FRACTION

    def later(self, now: int, seals: int, timeout: int, horizon: int) -> Self:
        """As it is at another time; `timeout`: of a round, in seconds."""
        passed = seals - self.seals
        left = faded(aged(self.seals_part, passed, horizon), now - self.since, ABSENT_TIMEOUTS * timeout)
        slow = aged(self.verdicts_part, passed, horizon)
        return replace(self, seals_part=left, verdicts_part=slow, since=now, seals=seals)

    def joined_by(self, weight: int) -> Self:
        """With one more who has just lost its slot."""
        more = weight << FRACTION
        return replace(self, seals_part=self.seals_part + more, verdicts_part=self.verdicts_part + more)

    def without(self, seals_part: int, verdicts_part: int) -> Self:
        """Without one of whom so much is left, in 2^-32."""
        return replace(
            self,
            seals_part=max(0, self.seals_part - seals_part),
            verdicts_part=max(0, self.verdicts_part - verdicts_part),
        )


NO_ABSENT = Absent()


@dataclass(frozen=True)
class Lanes:
    """Of each lane of a stage, those of nobody too: the weight, the pay of the epoch, and the age. That is how many
    non-empty seals ago the newest was that counted it (0: the newest of all; NEVER: so many, or none)."""

    weights: tuple[int, ...]
    pay: tuple[int, ...]
    ages: tuple[int, ...]

    @classmethod
    def of(cls, count: int) -> Self:
        """So many lanes of nobody."""
        return cls((0,) * count, (0,) * count, (NEVER,) * count)

    def set(self, lane: int, weight: int) -> Self:
        """With the lane of an account that takes a slot, or, with a weight of 0, of nobody."""
        return type(self)(_with(self.weights, lane, weight), _with(self.pay, lane, 0), _with(self.ages, lane, NEVER))

    def unpaid(self) -> Self:
        """At the beginning of an epoch."""
        return replace(self, pay=(0,) * len(self.pay))

    def sealed(self, seals: int, horizon: int, credits: Mapping[int, Credit]) -> Self:
        """After a non-empty seal that counts these lanes; the stage had so many before. What fades is rounded another
        way in each seal: rounded always alike, small weights would never fade, or never grow."""
        shift, jitter = horizon.bit_length() - 1, seals * STRIDE & horizon - 1
        weights = [weight - (weight + jitter >> shift) for weight in self.weights]
        ages = [age + 1 if age < NEVER else NEVER for age in self.ages]
        pay = list(self.pay)
        for lane, credit in credits.items():
            weights[lane] = min(_MOST, weights[lane] + credit.weight)  # one that is alone has all
            pay[lane] += credit.pay
            ages[lane] = 0
        return type(self)(tuple(weights), tuple(pay), tuple(ages))


def shares(steps: Sequence[int], seals: int, horizon: int) -> list[Credit]:
    """What a seal adds for each of its records, by their inner steps in the order of replicas: in all FULL / horizon of
    weight, and SEAL_PAY. `seals`: how many non-empty ones the stage had before; it moves what the divisions leave, so
    that they favour nobody."""
    total, sums = sum(steps), [0, *accumulate(steps)]
    offset = total * (seals % 16) // 16
    weight, pay = ([(whole * each + offset) // total for each in sums] for whole in (FULL // horizon, SEAL_PAY))
    gained, paid = (map(sub, each[1:], each) for each in (weight, pay))
    return list(map(Credit, gained, paid))


def faded(x: int, time: int, half: int) -> int:
    """What is left of x after so many seconds, where half of it goes in `half`; all where that time is still to begin,
    as for who reckons with a time of before."""
    if not x:
        return 0
    rate = _LN2 // half  # of a second
    return x * _power(_ONE - rate + (rate * rate >> 65), max(0, time)) >> 64


def aged(x: int, seals: int, horizon: int) -> int:
    """What is left of the weight of an account without a lane after so many non-empty seals: what would be in it."""
    return x * _power(_ONE - _ONE // horizon, seals) >> 64 if x else 0


def _power(base: int, exponent: int) -> int:
    """Of a number below 1, in 2^-64; each product is rounded down."""
    result = _ONE
    while exponent and result:
        if exponent & 1:
            result = result * base >> 64
        base = base * base >> 64
        exponent >>= 1
    return result


def _with(values: tuple[int, ...], lane: int, value: int) -> tuple[int, ...]:
    return (*values[:lane], value, *values[lane + 1 :])
