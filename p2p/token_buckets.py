"""Token buckets: how much of something each name may have in a time."""

import time
from collections import OrderedDict
from collections.abc import Callable


class TokenBuckets:
    """One bucket a name: it holds `burst` tokens (2 s of `rate` unless said) and regains `rate` a second.

    Of more than `names` the least recently used are forgotten, and begin anew with a full one.
    """

    def __init__(
        self,
        rate: float,
        burst: float | None = None,
        names: int = 4096,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rate = rate
        self._burst = 2 * rate if burst is None else burst
        self._names = names
        self._clock = clock
        self._state: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens, and when there were so many

    def take(self, name: str, amount: float = 1.0) -> bool:
        """Takes so many tokens, if there are."""
        tokens = self._tokens(name)
        self._keep(name, tokens - amount if tokens >= amount else tokens)
        return tokens >= amount

    def owe(self, name: str, amount: float) -> float:
        """Takes so many tokens, there or not; the seconds until what is missing will have come."""
        tokens = self._tokens(name) - amount
        self._keep(name, tokens)
        return max(0.0, -tokens / self._rate)

    def _tokens(self, name: str) -> float:
        now = self._clock()
        tokens, then = self._state.pop(name, (self._burst, now))
        return min(self._burst, tokens + (now - then) * self._rate)

    def _keep(self, name: str, tokens: float) -> None:
        self._state[name] = tokens, self._clock()
        if len(self._state) > self._names:
            self._state.popitem(last=False)
