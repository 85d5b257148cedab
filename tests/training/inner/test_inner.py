import math
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dlx.training.data.prepare import prepare
from dlx.training.data.shards import Dataset
from dlx.training.inner.loop import InnerLoop, TrainingError
from dlx.training.inner.pipeline import Link, PipeBroken, Stopped, queue_links
from dlx.training.inner.states import optimiser_shapes
from dlx.training.models import weights
from dlx.training.models.placement import Placement
from dlx.training.models.stages import initialise
from dlx.training.recipe.manifest import Manifest, canonical_bytes
from dlx.training.recipe.recipe import Inner
from tests.patience import PATIENCE
from tests.training.devices import DEVICES
from tests.training.inner.stepping import TOTAL, steps

SPLITS = [[(0, 3)], [(0, 1), (1, 3)], [(0, 1), (1, 2), (2, 3)]]
OPTIMISERS = {name: Inner(optimiser=name, lr=1e-2, matrix_lr=1e-2, clip=0.5) for name in ("adamw", "muon", "shampoo")}


def _loop(manifest: Manifest, stage: int, dataset: Dataset, device: str = "cpu") -> InnerLoop:
    needs_data = stage in (0, len(manifest.stages) - 1)
    placement = Placement(device=device, threads=1)
    loop = InnerLoop(manifest, stage, dataset if needs_data else None, placement)
    loop.load_weights(initialise(manifest, stage))
    return loop


def _step(loop: InnerLoop, index: int, *links: Link | None) -> float:
    previous, following = links or (None, None)
    return loop.step(index, TOTAL, loop.positions(index), previous, following)


def _hashes(loop: InnerLoop) -> tuple[str, str]:
    return weights.weights_hash(loop.weights()).hex(), weights.weights_hash(loop.optimiser_state()).hex()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("inner", OPTIMISERS.values(), ids=OPTIMISERS)
def test_the_loss_falls(
    tiny_run: Callable[..., Manifest], dataset: Dataset, inner: Inner, precision: str, device: str
) -> None:
    manifest = tiny_run(SPLITS[0], inner=inner, precision=precision)
    losses = steps(_loop(manifest, 0, dataset, device=device), 0, TOTAL)
    assert losses[0] == pytest.approx(math.log(256), abs=0.1)
    assert losses[-1] < losses[0] - 1


@pytest.mark.parametrize("inner", OPTIMISERS.values(), ids=OPTIMISERS)
@pytest.mark.parametrize("split", SPLITS[1:])
def test_a_split_replica_trains_exactly_like_an_unsplit_one(
    tiny_run: Callable[..., Manifest],
    dataset: Dataset,
    together: Callable[..., list[Any]],
    split: list[tuple[int, int]],
    inner: Inner,
) -> None:
    """With clipping, which takes the norm over all stages."""
    whole = _loop(tiny_run(SPLITS[0], inner=inner), 0, dataset)
    expected = steps(whole, 0, 6)
    manifest = tiny_run(split, inner=inner)
    loops = [_loop(manifest, stage, dataset) for stage in range(len(split))]

    def work(stage: int, previous: Link | None, following: Link | None) -> list[float]:
        loop = loops[stage]
        return [loop.step(index, TOTAL, loop.positions(index), previous, following) for index in range(6)]

    assert together(len(split), work) == [expected] * len(split)
    reached = {name: tensor for loop in loops for name, tensor in loop.weights().items()}
    assert weights.weights_hash(reached) == weights.weights_hash(whole.weights())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("inner", OPTIMISERS.values(), ids=OPTIMISERS)
def test_a_replica_on_another_device_trains_like_one_on_the_cpu_but_for_rounding(
    tiny_run: Callable[..., Manifest],
    dataset: Dataset,
    together: Callable[..., list[Any]],
    device: str,
    inner: Inner,
) -> None:
    """Two stages there, whose state is on the device, beside one whole model here; a state of the CPU is taken up."""
    whole = _loop(tiny_run(SPLITS[0], inner=inner), 0, dataset)
    manifest = tiny_run(SPLITS[1], inner=inner)
    loops = [_loop(manifest, stage, dataset, device=device) for stage in range(2)]
    for loop in loops:
        loop.load_optimiser_state({name: torch.zeros(shape) for name, shape in loop.optimiser_shapes.items()})
    expected = steps(whole, 0, 4)

    def work(stage: int, previous: Link | None, following: Link | None) -> list[float]:
        loop = loops[stage]
        return [loop.step(index, TOTAL, loop.positions(index), previous, following) for index in range(4)]

    for losses in together(2, work):
        assert losses == pytest.approx(expected, rel=1e-4)
    for loop in loops:
        for name, tensor in [*loop.weights().items(), *loop.optimiser_state().items()]:
            assert tensor.device.type == torch.device(device).type, name
        for name, tensor in loop.weights().items():
            assert torch.allclose(tensor.cpu(), whole.weights()[name], rtol=1e-3, atol=1e-4), name


class _Reads(TorchDispatchMode):
    """Counts what has the host wait for a number of the device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("inner", OPTIMISERS.values(), ids=OPTIMISERS)
def test_no_micro_batch_and_no_parameter_waits_for_the_device(
    tiny_run: Callable[..., Manifest], dataset: Dataset, inner: Inner, device: str
) -> None:
    loop = _loop(tiny_run(SPLITS[0], inner=inner), 0, dataset, device=device)
    with _Reads() as reads:
        steps(loop, 0, 1)
    assert reads.count == 0  # norms and loss come together, as one tensor


@pytest.mark.parametrize("inner", OPTIMISERS.values(), ids=OPTIMISERS)
@pytest.mark.parametrize("split", SPLITS[1:], ids=len)
def test_tied_embeddings_train_alike_however_the_model_is_split(
    tiny_run: Callable[..., Manifest],
    dataset: Dataset,
    together: Callable[..., list[Any]],
    split: list[tuple[int, int]],
    inner: Inner,
) -> None:
    """With clipping: the embedding's gradient, of both its uses, counts once in the replica's norm."""
    tied = {"tie_word_embeddings": True}
    whole = _loop(tiny_run(SPLITS[0], inner=inner, config=tied), 0, dataset)
    expected = []
    for index in range(4):
        loss = _step(whole, index)
        expected.append((loss, whole.norms.replica))
    manifest = tiny_run(split, inner=inner, config=tied)
    loops = [_loop(manifest, stage, dataset) for stage in range(len(split))]

    def work(stage: int, previous: Link | None, following: Link | None) -> list[tuple[float, float]]:
        return [(_step(loops[stage], index, previous, following), loops[stage].norms.replica) for index in range(4)]

    for found in together(len(split), work):
        assert found[0][0] == expected[0][0]
        assert found == [pytest.approx(one, rel=1e-4) for one in expected]
    assert expected[0][1] > inner.clip
    reached = {name: tensor for loop in loops for name, tensor in loop.weights().items()}
    assert "lm_head.weight" not in reached
    for name, tensor in whole.weights().items():
        torch.testing.assert_close(reached[name], tensor, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_another_process_reaches_the_same_bits(
    tiny_run: Callable[..., Manifest], dataset: Dataset, blobs: Path, tmp_path: Path
) -> None:
    manifest = tiny_run(SPLITS[0])
    loop = _loop(manifest, 0, dataset)
    steps(loop, 0, 4)
    (tmp_path / "manifest.json").write_bytes(canonical_bytes(manifest))
    arguments = [str(tmp_path / "manifest.json"), str(blobs)]
    done = subprocess.run(
        [sys.executable, "-c", _REPLAY, *arguments], capture_output=True, timeout=PATIENCE, check=True
    )
    assert done.stdout.decode().split() == list(_hashes(loop))


_REPLAY = """
import sys
from itertools import pairwise
from pathlib import Path
import torch
from dlx.training.models import weights
from dlx.training.data.shards import Dataset
from dlx.training.inner.loop import InnerLoop
from dlx.training.recipe.manifest import parse
from dlx.training.models.stages import stage_shapes
torch.set_num_threads(1)
manifest, blobs = parse(Path(sys.argv[1]).read_bytes()), Path(sys.argv[2])
loop = InnerLoop(manifest, 0, Dataset.open(blobs / manifest.data.manifest.sha256, blobs))
loop.load_weights(weights.read(blobs / manifest.genesis[0].sha256, stage_shapes(manifest, 0)))
for index in range(4):
    loop.step(index, 20, loop.positions(index), None, None)
print(weights.weights_hash(loop.weights()).hex(), weights.weights_hash(loop.optimiser_state()).hex())
"""


@pytest.mark.parametrize("inner", OPTIMISERS.values(), ids=OPTIMISERS)
def test_training_resumes_from_weights_and_moments_as_if_never_interrupted(
    tiny_run: Callable[..., Manifest], dataset: Dataset, inner: Inner
) -> None:
    manifest = tiny_run(SPLITS[0], inner=inner)
    loop = _loop(manifest, 0, dataset)
    steps(loop, 0, 3)
    values, state = _kept(loop.weights()), _kept(loop.optimiser_state())
    assert {name: tuple(tensor.shape) for name, tensor in state.items()} == optimiser_shapes(manifest, 0)
    assert state["step"].tolist() == [3]
    loop.begin_segment()
    steps(loop, 3, 6)

    resumed = InnerLoop(manifest, 0, dataset)
    resumed.load_weights(values)
    resumed.load_optimiser_state(state)
    steps(resumed, 3, 6)
    assert _hashes(resumed) == _hashes(loop)
    assert torch.equal(state["step"], torch.tensor([3.0]))


@pytest.mark.parametrize("inner", OPTIMISERS.values(), ids=OPTIMISERS)
def test_an_empty_state_is_a_fresh_optimiser(tiny_run: Callable[..., Manifest], dataset: Dataset, inner: Inner) -> None:
    manifest = tiny_run(SPLITS[0], inner=inner)
    fresh, cleared = _loop(manifest, 0, dataset), _loop(manifest, 0, dataset)
    assert all(not tensor.any() for tensor in fresh.optimiser_state().values())
    steps(cleared, 0, 2)
    cleared.load_weights(initialise(manifest, 0))
    cleared.load_optimiser_state({})
    steps(fresh, 0, 2)
    steps(cleared, 0, 2)
    assert _hashes(fresh) == _hashes(cleared)


def test_a_step_takes_the_samples_that_it_is_told_and_a_whole_batch_of_them(
    tiny_run: Callable[..., Manifest], dataset: Dataset
) -> None:
    manifest = tiny_run(SPLITS[0])

    def loss(samples: Sequence[int]) -> float:
        return _loop(manifest, 0, dataset).step(0, TOTAL, samples, None, None)

    assert len({loss(range(first, first + 4)) for first in (0, 4, 8, 1000)}) == 4
    assert loss([8, 9, 0, 1]) == loss([8, 9, 0, 1])
    with pytest.raises(TrainingError, match="got 3 samples for a batch of 4"):
        loss([1, 2, 3])


@pytest.mark.parametrize("broken_by", ["stop", "neighbour"])
def test_a_broken_step_changes_nothing(tiny_run: Callable[..., Manifest], dataset: Dataset, broken_by: str) -> None:
    loop = _loop(tiny_run(SPLITS[1]), 0, dataset)
    before = _hashes(loop)
    here, _ = queue_links(0.1)
    with pytest.raises(Stopped if broken_by == "stop" else PipeBroken):
        loop.step(0, TOTAL, loop.positions(0), None, here, lambda: broken_by == "stop")
    assert _hashes(loop) == before


@pytest.mark.parametrize("poison", [math.nan, 1e30])  # 1e30: the loss is finite, and more than a contribution can say
def test_a_diverged_replica_says_so_on_every_stage_and_changes_nothing(
    poison: float, tiny_run: Callable[..., Manifest], dataset: Dataset, together: Callable[..., list[Any]]
) -> None:
    manifest = tiny_run(SPLITS[1])
    loops = [_loop(manifest, stage, dataset) for stage in range(2)]
    poisoned = initialise(manifest, 1)
    poisoned["lm_head.weight"][0, 0] = poison
    loops[1].load_weights(poisoned)
    before = _hashes(loops[0])
    results = together(2, lambda stage, previous, following: loops[stage].step(3, TOTAL, range(4), previous, following))
    assert [type(result) for result in results] == [TrainingError] * 2
    assert "inner step 3" in str(results[0])
    assert _hashes(loops[0]) == before


def test_the_step_is_the_textbook_one(tiny_run: Callable[..., Manifest], dataset: Dataset) -> None:
    """One step against AdamW and clipping written out."""
    inner = Inner(optimiser="adamw", lr=1e-2, clip=0.05, warmup=0.0)
    manifest = tiny_run(SPLITS[0], inner=inner)
    loop = _loop(manifest, 0, dataset)
    before = _kept(loop.weights())
    loop.step(0, TOTAL, loop.positions(0), None, None)
    after, state = loop.weights(), loop.optimiser_state()
    gradients = {name: state[f"exp_avg.{name}"] / (1 - inner.beta1) for name in before}
    norm = sum(float(gradient.double().square().sum()) for gradient in gradients.values()) ** 0.5
    assert norm == pytest.approx(inner.clip, rel=1e-4)
    for name, value in before.items():
        gradient = gradients[name]
        decay = 0.0 if "norm" in name or "embed" in name else inner.weight_decay
        expected = value * (1 - inner.lr * decay) - inner.lr * gradient / (gradient.abs() + inner.eps)
        assert torch.allclose(after[name], expected, atol=1e-5), name


def _without(name: str) -> Callable[[dict[str, Tensor]], object]:
    return lambda tensors: tensors.pop(name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_without("lm_head.weight"), "weights: lm_head.weight is missing"),
        (lambda tensors: tensors.update(extra=torch.zeros(1)), "weights: extra is not part of this stage"),
        (
            lambda tensors: tensors.update({"model.norm.weight": torch.ones(1)}),
            r"weights: model.norm.weight is not float32 of shape \[16\]",
        ),
        (
            lambda tensors: tensors.update({"model.norm.weight": torch.ones(16).double()}),
            r"weights: model.norm.weight is not float32 of shape \[16\]",
        ),
    ],
)
def test_weights_of_another_stage_are_refused(
    tiny_run: Callable[..., Manifest], dataset: Dataset, change: Callable[[dict[str, Tensor]], object], message: str
) -> None:
    loop = _loop(tiny_run(SPLITS[0]), 0, dataset)
    tensors = dict(loop.weights())
    change(tensors)
    with pytest.raises(TrainingError, match=message):
        loop.load_weights(tensors)


def test_data_that_does_not_fit_is_refused(tiny_run: Callable[..., Manifest], dataset: Dataset, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="needs the run's data"):
        InnerLoop(tiny_run(SPLITS[0]), 0, None)
    with pytest.raises(TrainingError, match="more than the model's vocab_size"):
        InnerLoop(tiny_run(SPLITS[0], config={"vocab_size": 128}), 0, dataset)
    (tmp_path / "short.txt").write_bytes(b"short")
    short = prepare([tmp_path / "short.txt"], tmp_path)
    with pytest.raises(TrainingError, match="shorter than one sample"):
        InnerLoop(tiny_run(SPLITS[0]), 0, Dataset.open(tmp_path / short.sha256, tmp_path))


def test_what_is_loaded_is_copied_and_what_is_handed_out_is_the_state_itself(
    tiny_run: Callable[..., Manifest], dataset: Dataset
) -> None:
    loop = _loop(tiny_run(SPLITS[0]), 0, dataset)
    given = initialise(tiny_run(SPLITS[0]), 0)
    loop.load_weights(given)
    live, state = loop.weights(), loop.optimiser_state()
    before = weights.weights_hash(live)
    steps(loop, 0, 1)
    assert weights.weights_hash(given) == before != weights.weights_hash(live) == weights.weights_hash(loop.weights())
    assert state["step"].tolist() == [1]


def _kept(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}
