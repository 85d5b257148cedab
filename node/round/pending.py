"""Which actions of the round machine are under way, and which must wait a while before they are asked for again."""

from collections.abc import Hashable

RETRY_SECONDS = 2.0


class Pending:
    """Keys say what an action is about. Times are Unix seconds."""

    def __init__(self) -> None:
        self._busy: set[Hashable] = set()
        self._not_before: dict[Hashable, float] = {}

    def start(self, key: Hashable, now: float) -> bool:
        """Whether the action may begin; if so, it is under way until `end`."""
        if key in self._busy or self.waits(key, now):
            return False
        self._busy.add(key)
        return True

    def waits(self, key: Hashable, now: float) -> bool:
        """Whether it is not to be asked for again yet."""
        return now < self._not_before.get(key, 0)

    def end(self, key: Hashable, retry_at: float | None = None) -> None:
        """It is no longer under way; not to be asked for again before `retry_at`."""
        self._busy.discard(key)
        if retry_at is not None:
            self._not_before[key] = retry_at

    def due(self, key: Hashable, now: float, every: float) -> bool:
        """True at most once in `every` seconds."""
        if self.waits(key, now):
            return False
        self._not_before[key] = now + every
        return True

    def forget_past(self, now: float) -> None:
        """Drop waits that are over."""
        self._not_before = {key: at for key, at in self._not_before.items() if at > now}
