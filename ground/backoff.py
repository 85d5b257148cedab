"""How long to wait before the next attempt at something that failed: exponential, capped, jittered."""

from dataclasses import dataclass
from random import Random

MAX_EXPONENT = 64  # by then every cap is reached, and no power overflows


@dataclass(frozen=True, slots=True)
class Backoff:
    """`first` and `cap` in seconds; `jitter` is the part of a delay that chance takes off, so that many who fail
    together do not come back together. A success begins anew: the caller counts failures from zero again."""

    first: float
    cap: float
    factor: float = 2.0
    jitter: float = 0.25

    def __post_init__(self) -> None:
        if not (0 < self.first <= self.cap and self.factor >= 1 and 0 <= self.jitter < 1):
            raise ValueError(f"a back-off from {self.first} s to {self.cap} s, factor {self.factor}, {self.jitter}")

    def delay(self, failures: int, random: Random) -> float:
        """Seconds to wait after the `failures`-th failure in a row (from 1)."""
        if failures < 1:
            raise ValueError("a back-off begins with the first failure")
        whole = min(self.cap, self.first * self.factor ** min(failures - 1, MAX_EXPONENT))
        return whole * (1 - self.jitter * random.random())
