"""What the status shows of the training under way."""

import time
from dataclasses import dataclass

from dlx.training.slot.rounds import Trained

STALL_SECONDS, STALL_STEPS = 10.0, 10  # after which a step is worth a word: so long, and as long as so many


@dataclass
class Progress:
    """`loss` in nats per token, of the newest step."""

    round: int | None = None
    step: int = 0
    steps: int = 0
    loss: float | None = None
    tokens_per_second: float | None = None
    _started: float = 0.0
    _first: float = 0.0  # when the first step was done
    _newest: float = 0.0
    _usual: float | None = None  # seconds of a step, of the newest round that told them

    @property
    def step_seconds(self) -> float | None:
        """Of each step but the first, which may take long; None before there are two."""
        return (self._newest - self._first) / (self.step - 1) if self.step > 1 else None

    def begin(self, round: int, steps: int) -> None:
        self._usual = self.step_seconds or self._usual
        self.round, self.step, self.steps, self._started = round, 0, steps, time.monotonic()

    def at_step(self, round: int, step: int, loss: float) -> None:
        self.round, self.step, self.loss, self._newest = round, step, loss, time.monotonic()
        if step == 1:
            self._first = self._newest

    def stalled(self, now: float) -> str | None:
        """What the step under way takes at `now`, of the monotonic clock, where that is far more than usual. For as
        long as the node trains."""
        usual = self.step_seconds or self._usual
        took = now - max(self._started, self._newest)
        if usual is None or took < max(STALL_SECONDS, STALL_STEPS * usual):
            return None
        return f"inner step {self.step + 1}, for {took:.0f} s by now: {usual:.2g} s are usual"

    def end(self, trained: Trained) -> None:
        seconds = time.monotonic() - self._started
        self.tokens_per_second = trained.tokens / seconds if seconds > 0 else None
