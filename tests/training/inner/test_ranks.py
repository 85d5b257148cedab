"""A stage on two ranks of gloo is trained as on one."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from dlx.training.data.shards import Dataset
from dlx.training.inner.loop import InnerLoop, TrainingError
from dlx.training.inner.pipeline import Link, PipeBroken, Stopped
from dlx.training.inner.ranks.group import Group
from dlx.training.inner.ranks.loop import RankedLoop
from dlx.training.inner.ranks.owners import owners, turns
from dlx.training.models.placement import Placement
from dlx.training.models.stages import initialise
from dlx.training.recipe.draft import DraftData
from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.recipe import Inner
from tests.training.conftest import ROWS
from tests.training.inner.ranked import meet
from tests.training.inner.stepping import TOTAL, distance, steps

OPTIMISERS = {name: Inner(optimiser=name, lr=1e-2, matrix_lr=1e-2, clip=0.5) for name in ("adamw", "muon", "shampoo")}
ODD = {"intermediate_size": 27}  # rows that two ranks cannot share evenly
RANKS = 2


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    with meet(tmp_path_factory.mktemp("ranks"), RANKS, beside=RANKS) as made:
        yield made


def _one(manifest: Manifest, dataset: Dataset, stage: int = 0) -> InnerLoop:
    loop = InnerLoop(manifest, stage, dataset)
    loop.load_weights(initialise(manifest, stage))
    return loop


def _two(group: Group, manifest: Manifest, dataset: Dataset, stage: int = 0) -> RankedLoop:
    loop = RankedLoop(group, manifest, stage, dataset)
    loop.load_weights(initialise(manifest, stage))
    return loop


@pytest.mark.slow
@pytest.mark.parametrize("inner", OPTIMISERS.values(), ids=OPTIMISERS)
@pytest.mark.parametrize("samples", [4, 3])
def test_two_ranks_take_the_steps_of_one(
    group: Group, tiny_run: Callable[..., Manifest], dataset: Dataset, inner: Inner, samples: int
) -> None:
    """Also where neither rows nor samples can be shared evenly."""
    data = DraftData(source=["corpus"], sequence_length=16, batch_size=samples, micro_batches=1, seed=7)
    manifest = tiny_run([(0, 3)], inner=inner, config=ODD, data=data, tokens_per_step=16 * samples)
    one, two = _one(manifest, dataset), _two(group, manifest, dataset)
    assert {name: tuple(tensor.shape) for name, tensor in two.weights().items()} == one.shapes
    losses = steps(one, 0, 10)
    assert steps(two, 0, 10) == pytest.approx(losses, rel=1e-5)
    assert losses[-1] < losses[0]
    assert distance(one, two, initialise(manifest, 0)) < 5e-5
    two.close()


@pytest.mark.parametrize(
    ("stage", "samples", "tied"), [(0, 2, False), (1, 1, False), (2, 2, False), (0, 1, True), (2, 1, True)]
)
def test_a_stage_on_two_ranks_fits_between_stages_on_one(
    group: Group,
    tiny_run: Callable[..., Manifest],
    dataset: Dataset,
    together: Callable[..., list[Any]],
    stage: int,
    samples: int,
    tied: bool,
) -> None:
    """Also where a micro-batch has one sample for two ranks, and where the last stage borrows the first one's head."""
    data = DraftData(source=["corpus"], sequence_length=16, batch_size=4, micro_batches=4 // samples, seed=7)
    config = {"tie_word_embeddings": tied}
    manifest = tiny_run([(0, 1), (1, 2), (2, 3)], data=data, inner=OPTIMISERS["muon"], config=config)

    def losses(ranked: int | None) -> tuple[list[float], InnerLoop]:
        loops = [
            (_two(group, manifest, dataset, one) if one == ranked else _one(manifest, dataset, one)) for one in range(3)
        ]

        def work(one: int, previous: Link | None, following: Link | None) -> list[float]:
            return [
                loops[one].step(index, TOTAL, loops[one].positions(index), previous, following) for index in range(5)
            ]

        found = together(3, work)
        assert found[0] == found[1] == found[2]
        return found[0], loops[stage]

    expected, alone = losses(None)
    found, shared = losses(stage)
    assert found == pytest.approx(expected, rel=1e-5)
    assert distance(alone, shared, initialise(manifest, stage)) < 5e-5
    assert isinstance(shared, RankedLoop)
    shared.close()


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_rows_of_conversations_are_shared_too(
    group: Group,
    tiny_run: Callable[..., Manifest],
    row_dataset: Dataset,
    together: Callable[..., list[Any]],
    stage: int,
) -> None:
    """Every sample has another number of tokens that count."""
    manifest = tiny_run([(0, 1), (1, 2), (2, 3)], data=ROWS, inner=OPTIMISERS["adamw"])

    def losses(ranked: int | None) -> list[float]:
        loops = [
            (_two(group, manifest, row_dataset, one) if one == ranked else _one(manifest, row_dataset, one))
            for one in range(3)
        ]
        made = together(
            3,
            lambda one, *links: [
                loops[one].step(index, TOTAL, loops[one].positions(index), *links) for index in range(3)
            ],
        )
        if isinstance(shared := loops[stage], RankedLoop):
            shared.close()
        return list(made[0])

    assert losses(stage) == pytest.approx(losses(None), rel=1e-5)


@pytest.mark.parametrize("checkpoint", ["layers", "selective"])
def test_bfloat16_and_checkpoints_are_shared_too(
    group: Group, tiny_run: Callable[..., Manifest], dataset: Dataset, checkpoint: Any
) -> None:
    manifest = tiny_run([(0, 3)], precision="bfloat16")
    placement = Placement(device="cpu", threads=1, checkpoint=checkpoint)
    one, two = _one(manifest, dataset), RankedLoop(group, manifest, 0, dataset, placement)
    two.load_weights(initialise(manifest, 0))
    assert steps(two, 0, 5) == pytest.approx(steps(one, 0, 5), rel=1e-3)
    two.close()


class _Breaking:
    """A link whose `count`-th message does not come."""

    def __init__(self, link: Link, count: int) -> None:
        self._link, self._left = link, count

    def send(self, kind: str, step: int, micro: int, data: bytes) -> None:
        self._tick()
        self._link.send(kind, step, micro, data)

    def recv(self, kind: str, step: int, micro: int) -> bytes:
        self._tick()
        return self._link.recv(kind, step, micro)

    def _tick(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise PipeBroken("the neighbour is gone")


@pytest.mark.parametrize("count", [0, 3, 5])  # of six
def test_a_broken_pipe_leaves_every_rank_as_it_was(
    group: Group, tiny_run: Callable[..., Manifest], dataset: Dataset, together: Callable[..., list[Any]], count: int
) -> None:
    manifest = tiny_run([(0, 1), (1, 3)])
    whole, first, last = _one(tiny_run([(0, 3)]), dataset), _two(group, manifest, dataset), _one(manifest, dataset, 1)
    expected, neighbour = steps(whole, 0, 3), _one(manifest, dataset, 1)

    def broken(stage: int, previous: Link | None, following: Link | None) -> None:
        if stage == 0:
            assert following is not None
            first.step(0, TOTAL, first.positions(0), None, _Breaking(following, count))
        else:
            neighbour.step(0, TOTAL, neighbour.positions(0), previous, None)

    assert isinstance(together(2, broken, timeout=1.0)[0], PipeBroken)

    def work(stage: int, previous: Link | None, following: Link | None) -> list[float]:
        loop = (first, last)[stage]
        return [loop.step(index, TOTAL, loop.positions(index), previous, following) for index in range(3)]

    assert together(2, work)[0] == pytest.approx(expected, rel=1e-5)
    first.close()


def test_a_step_that_is_stopped_or_diverges_leaves_every_rank_as_it_was(
    group: Group, tiny_run: Callable[..., Manifest], dataset: Dataset
) -> None:
    manifest = tiny_run([(0, 3)])
    one, two = _one(manifest, dataset), _two(group, manifest, dataset)
    calls = iter([False, False, True])
    with pytest.raises(Stopped):
        two.step(0, TOTAL, two.positions(0), None, None, lambda: next(calls))
    two.load_weights({name: torch.full(shape, torch.inf) for name, shape in two.shapes.items()})
    with pytest.raises(TrainingError, match="has diverged"):
        two.step(0, TOTAL, two.positions(0), None, None)
    two.load_weights(initialise(manifest, 0))
    two.idle()
    assert steps(two, 0, 5) == pytest.approx(steps(one, 0, 5), rel=1e-5)
    two.close()


@pytest.mark.slow
@pytest.mark.parametrize("inner", OPTIMISERS.values(), ids=OPTIMISERS)
def test_a_state_goes_from_one_rank_to_two_and_back(
    group: Group, tiny_run: Callable[..., Manifest], dataset: Dataset, inner: Inner
) -> None:
    manifest = tiny_run([(0, 3)], inner=inner)
    one, two = _one(manifest, dataset), _two(group, manifest, dataset)
    steps(one, 0, 3)
    two.load_weights(one.weights())
    two.load_optimiser_state(one.optimiser_state())
    for name, tensor in {**one.weights(), **one.optimiser_state()}.items():
        assert torch.equal(tensor, {**two.weights(), **two.optimiser_state()}[name]), name
    middle = {name: tensor.clone() for name, tensor in one.weights().items()}
    one.begin_segment()
    losses = steps(one, 3, 6)
    assert steps(two, 3, 6) == pytest.approx(losses, rel=1e-5)
    assert distance(one, two, middle) < 5e-5
    back = InnerLoop(manifest, 0, dataset)
    back.load_weights(two.weights())
    back.load_optimiser_state(two.optimiser_state())
    two.begin_segment()
    assert steps(back, 6, 8) == pytest.approx(steps(two, 6, 8), rel=1e-5)
    two.load_optimiser_state({})
    assert all(not tensor.any() for tensor in two.optimiser_state().values())
    two.close()


def test_ranks_own_about_the_same() -> None:
    shapes = {"a": (100, 10), "b": (60, 10), "c": (50, 10), "d": (5,)}
    assert owners(shapes, 2) == {"a": 0, "b": 1, "c": 1, "d": 0}
    assert set(owners(shapes, 1).values()) == {0}


def test_in_a_turn_each_rank_has_one_of_its_own_at_most() -> None:
    assert turns({"a": 0, "b": 1, "c": 1, "d": 0, "e": 1}) == [["a", "b"], ["d", "c"], ["e"]]
