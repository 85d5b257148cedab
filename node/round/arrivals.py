"""How long others' payloads take to come here: what the straggler grace gives those that are on their way."""

import statistics
from collections import deque
from collections.abc import Collection

WINDOW = 5  # payloads of a replica that its seconds are the median of


class Arrivals:
    """What one member saw: seconds from when it heard of a payload until it had it, checked."""

    def __init__(self) -> None:
        self._seconds: dict[int, deque[float]] = {}  # by replica

    def came(self, replica: int, seconds: float) -> None:
        self._seconds.setdefault(replica, deque(maxlen=WINDOW)).append(seconds)

    def usual(self, replicas: Collection[int]) -> float:
        """The upper median of these replicas: a third of them makes it neither shorter than honest payloads take, by
        being there at once, nor, where they are four or more, longer, by sending slowly. 0 where none came yet."""
        found = [statistics.median_low(self._seconds[one]) for one in replicas if one in self._seconds]
        return statistics.median_high(found) if found else 0.0
