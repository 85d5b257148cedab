"""The inner loop of a stage on several ranks: rank 0's has the face of `InnerLoop`, the others serve it."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from torch import Tensor

from dlx.training.data.shards import Dataset
from dlx.training.inner.loop import Conclude, Conclusion, InnerLoop, Pipes, Step, TrainingError, expect
from dlx.training.inner.pipeline import PipeBroken
from dlx.training.inner.ranks import orders
from dlx.training.inner.ranks.group import Group, RankLost
from dlx.training.inner.ranks.share import Share
from dlx.training.models.parallel import check_divides, check_parallel, check_ranks
from dlx.training.models.placement import ONE_THREAD, Placement
from dlx.training.models.weights import Lazy, Shapes
from dlx.training.recipe.manifest import Manifest, canonical_bytes, parse

T = TypeVar("T")


class RankedLoop(InnerLoop):
    """An `InnerLoop` on rank 0, whose tensors lie on all ranks. The others run `serve` meanwhile.

    `weights` and `optimiser_state` gather each tensor when it is asked for, in whatever thread. Every method may raise
    RankLost, after which all ranks must be started anew. Raises PlacementError where they cannot share the model's
    matrix products as `placement` says.
    """

    def __init__(
        self,
        group: Group,
        manifest: Manifest,
        stage: int,
        dataset: Dataset | None,
        placement: Placement = ONE_THREAD,
        blobs: Path | None = None,
    ) -> None:
        self._group, self._one_at_a_time = group, threading.Lock()
        super().__init__(manifest, stage, dataset, placement, blobs)

    def _hold(self, stage: int, placement: Placement) -> None:
        check_divides(placement.tensor_parallel, "the number of ranks", self._group.size)
        check_parallel(self._manifest, placement.tensor_parallel)
        check_ranks(self._manifest)
        with self._in_step():
            self._group.tell(orders.Begin(canonical_bytes(self._manifest), stage, placement))
            self._share = Share(self._group, self._manifest, stage, placement)

    def idle(self) -> None:
        with self._in_step():
            self._group.tell(orders.Idle())

    def close(self) -> None:
        """The other ranks are done with it."""
        with self._in_step():
            self._group.tell(orders.End())

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        self._load(weights, self.shapes, "weights")

    @property
    def in_place(self) -> bool:
        return False  # the other ranks have theirs

    def weights(self) -> Mapping[str, Tensor]:
        return Lazy(self.shapes, self._give)

    def optimiser_state(self) -> Mapping[str, Tensor]:
        return Lazy(self.optimiser_shapes, self._give)

    def load_optimiser_state(self, tensors: Mapping[str, Tensor]) -> None:
        self.begin_segment()
        if tensors:
            self._load(tensors, self.optimiser_shapes, "optimiser state")
        else:
            with self._in_step():
                self._group.tell(orders.Clear())
                self._share.clear()

    def _advance(
        self,
        step: Step,
        batch: Tensor | None,
        pipes: Pipes,
        stop: Callable[[], bool],
        conclude: Conclude,
        ready: Callable[[], None],
    ) -> float:
        ready()  # the ranks take one order after the other
        order = orders.Step(step.index, step.factor, pipes.previous is not None, pipes.next is not None)
        with self._in_step():
            self._group.tell(order)
            return self._share.step(order, batch, pipes, stop, conclude)

    def begin_segment(self) -> None:
        with self._in_step():
            self._group.tell(orders.Segment())
            self._share.begin_segment()

    def free_gradients(self) -> None:
        with self._in_step():
            self._group.tell(orders.Free())
            self._share.free_gradients()

    @property
    def is_on_one_machine(self) -> bool:
        return self._group.beside == self._group.size

    def do(self, work: bytes, mine: Callable[[Group, Share], T]) -> T:
        """Have all ranks do this work together: the others what `serve` was told, this one what `mine` does."""
        with self._in_step():
            self._group.tell(orders.Do(work))
            return mine(self._group, self._share)

    @contextlib.contextmanager
    def _in_step(self) -> Iterator[None]:
        with self._one_at_a_time, _together():
            yield

    def _load(self, tensors: Mapping[str, Tensor], shapes: Shapes, what: str) -> None:
        for name, tensor in expect(tensors, shapes, what):  # one that cannot be read leaves the ranks in step
            with self._in_step():
                self._group.tell(orders.Load(name))
                self._share.load(name, tensor)

    def _give(self, name: str) -> Tensor:
        with self._in_step():
            self._group.tell(orders.Give(name))
            found = self._share.collect(name, 0)
        assert found is not None
        return found.cpu()


def serve(group: Group, do: Callable[[Group, Share, bytes], None]) -> None:
    """Every other rank's part, until rank 0 ends it; `do` is its part of `RankedLoop.do`. Raises RankLost."""
    share = None
    with _together():
        begin = group.hear(orders.Order)
        share = Share(group, parse(begin.manifest), begin.stage, begin.placement)
        while True:
            match order := group.hear(orders.Order):
                case orders.Load(name):
                    share.load(name, None)
                case orders.Give(name):
                    share.collect(name, 0)
                case orders.Do(work):
                    do(group, share, work)
                case orders.Clear():
                    share.clear()
                case orders.Segment():
                    share.begin_segment()
                case orders.Free():
                    share.free_gradients()
                case orders.Step():
                    with contextlib.suppress(PipeBroken, TrainingError):  # rank 0 says so to whom it may concern
                        share.step(
                            order, None, Pipes(None, None), lambda: False, lambda squares, loss: Conclusion(0, 0)
                        )
                case orders.End():
                    return


@contextlib.contextmanager
def _together() -> Iterator[None]:
    """What every rank does alike leaves them in step; any other trouble does not."""
    try:
        yield
    except (PipeBroken, TrainingError, RankLost):
        raise
    except Exception as error:
        raise RankLost(f"the ranks of this stage are out of step: {type(error).__name__}: {error}") from error
