"""What the status shows of the training under way."""

import time
from dataclasses import dataclass

from dlx.training.slot.rounds import Trained


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

    @property
    def step_seconds(self) -> float | None:
        """Of each step but the first, which may take long; None before there are two."""
        return (self._newest - self._first) / (self.step - 1) if self.step > 1 else None

    def begin(self, round: int, steps: int) -> None:
        self.round, self.step, self.steps, self._started = round, 0, steps, time.monotonic()

    def at_step(self, round: int, step: int, loss: float) -> None:
        self.round, self.step, self.loss, self._newest = round, step, loss, time.monotonic()
        if step == 1:
            self._first = self._newest

    def end(self, trained: Trained) -> None:
        seconds = time.monotonic() - self._started
        self.tokens_per_second = trained.tokens / seconds if seconds > 0 else None
