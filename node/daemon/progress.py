"""What the status shows of the training under way."""

import time
from dataclasses import dataclass

from dlx.training.slot.records import Trained


@dataclass
class Progress:
    """`loss` in nats per token, of the newest step."""

    round: int | None = None
    step: int = 0
    steps: int = 0
    loss: float | None = None
    tokens_per_second: float | None = None
    _started: float = 0.0

    def begin(self, round: int, steps: int) -> None:
        self.round, self.step, self.steps, self._started = round, 0, steps, time.monotonic()

    def at_step(self, round: int, step: int, loss: float) -> None:
        self.round, self.step, self.loss = round, step, loss

    def end(self, trained: Trained) -> None:
        seconds = time.monotonic() - self._started
        self.tokens_per_second = trained.tokens / seconds if seconds > 0 else None
