"""Ranks that compute every matrix product together, two by two, train a stage as one process does."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from dlx.ground.blobs import write_blob
from dlx.training.codecs import codec
from dlx.training.data.shards import Dataset
from dlx.training.inner.loop import InnerLoop
from dlx.training.inner.pipeline import Link
from dlx.training.inner.ranks.cuts import Cut
from dlx.training.inner.ranks.group import Group
from dlx.training.inner.ranks.loop import RankedLoop
from dlx.training.models import weights
from dlx.training.models.placement import Placement, PlacementError
from dlx.training.models.stages import initialise
from dlx.training.models.weights import Stored, WeightsError, weights_hash
from dlx.training.outer.payloads import Payload
from dlx.training.recipe.draft import DraftData
from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.recipe import Inner, Model, Outer, parse_model
from dlx.training.slot.change import Difference, Start
from dlx.training.slot.ranked import RankedSlot
from tests.training.inner.ranked import meet
from tests.training.inner.stepping import TOTAL, distance
from tests.training.recipe.test_families import CASES

TWO_BY_TWO = Placement(device="cpu", threads=1, ranks=4, tensor_parallel=2)
INNER = {name: Inner(optimiser=name, lr=1e-2, matrix_lr=1e-2, clip=0.5) for name in ("adamw", "muon", "shampoo")}
FAMILIES = {  # each stepped by one of the two
    "llama": "muon",
    "qwen3": "adamw",  # a norm for each head
    "gpt_neox": "muon",  # queries, keys and values in one, and biases
    "olmo2": "adamw",  # attention that is left whole
    "qwen3_moe": "muon",
    "granite": "muon",  # embeddings, layers and logits that are scaled
    "glm4": "muon",  # gate and up in one, which is left whole
    "gemma2": "muon",  # scores and logits that are capped
    "gemma3_text": "adamw",  # an embedding that is scaled, and the head
}
QUARTERED = ("llama", "gpt_neox", "qwen3_moe", "gemma3_text")  # whose matrices, tokens and experts can all be cut
ODD = {"qwen3": {"vocab_size": 257}}  # tokens that two ranks cannot share


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    with meet(tmp_path_factory.mktemp("ranks"), 4, beside=4) as made:
        yield made


def _model(case: str) -> Model:
    """With two heads of keys and values."""
    config: dict[str, Any] = msgspec.to_builtins(parse_model(Model(CASES[case][0])))
    return Model(
        {key: 2 if key == "num_key_value_heads" else value for key, value in config.items()} | ODD.get(case, {})
    )


def _losses(loop: InnerLoop, count: int) -> list[float]:
    return [loop.step(index, TOTAL, loop.positions(index), None, None) for index in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "optimiser"), FAMILIES.items())
def test_steps_and_state_are_those_of_one_process(
    group: Group, tiny_run: Callable[..., Manifest], dataset: Dataset, family: str, optimiser: str
) -> None:
    """Also where a group of ranks has more samples than another."""
    data = DraftData(source=["corpus"], sequence_length=16, batch_size=3, micro_batches=1, seed=7)
    model, inner = _model(family), INNER[optimiser]
    manifest = tiny_run([(0, 3)], model=model, inner=inner, data=data, tokens_per_step=48)
    start = initialise(manifest, 0)
    one, shared = InnerLoop(manifest, 0, dataset), RankedLoop(group, manifest, 0, dataset, TWO_BY_TWO)
    for loop in (one, shared):
        loop.load_weights(start)
    assert all(torch.equal(tensor, shared.weights()[name]) for name, tensor in start.items())
    losses = _losses(one, 4)
    assert _losses(shared, 4) == pytest.approx(losses, rel=1e-5)
    assert losses[-1] < losses[0]
    assert distance(one, shared, start) < 1e-4
    back = InnerLoop(manifest, 0, dataset)
    back.load_weights(shared.weights())
    back.load_optimiser_state(shared.optimiser_state())
    again = back.step(4, TOTAL, back.positions(4), None, None)
    assert again == pytest.approx(one.step(4, TOTAL, one.positions(4), None, None), rel=1e-4)
    whole, held = (sum(one.numel() for one in each.values()) for each in (start, shared._share._weights))
    assert held < (0.28 if family in QUARTERED else 0.45) * whole
    shared.close()


@pytest.mark.slow
def test_each_rank_reads_its_own_rows_of_a_rounds_start(
    group: Group, tiny_run: Callable[..., Manifest], dataset: Dataset, blobs: Path, tmp_path: Path
) -> None:
    """Less the slot's own payload and half of its residual, whose blocks do not end where rows do; and what no round
    may start from is found."""
    manifest = tiny_run([(0, 3)], model=_model("qwen3_moe"), outer=Outer(lr=0.8, delay=1, alpha=0.8))
    loop = RankedLoop(group, manifest, 0, dataset, TWO_BY_TWO)
    slot = RankedSlot(manifest, loop, 0, tmp_path, blobs)
    genesis, plan, chosen = bytes.fromhex(manifest.genesis[0].sha256), manifest.plan, codec("int4")
    own = chosen.encode({name: torch.randn(shape) for name, shape in loop.shapes.items()}, plan)
    payload = Payload(chosen, loop.shapes, blobs / write_blob(blobs, [own]).hex(), plan)

    change = weights.write_blob({name: torch.randn(shape) for name, shape in loop.shapes.items()}, blobs)
    residual = Difference(Stored(blobs / change.hex(), loop.shapes), payload)

    def start(version: bytes) -> Start:
        base = Difference(Stored(blobs / version.hex(), loop.shapes, sha256=version, finite=True), payload, 0.8)
        return Start(base, residual, 0.5)

    digest = slot._load(start(genesis), None)
    expected = start(genesis)
    for name, tensor in loop.weights().items():
        values = np.empty(tensor.numel(), np.float32)
        expected.read_into(values, name)
        assert np.array_equal(values, tensor.numpy().ravel()), name
    assert digest == weights_hash(loop.weights())
    assert slot._load(Start(Difference(start(genesis).base.whole, None), residual), genesis) == genesis
    assert weights_hash(loop.weights()) == genesis
    broken = dict(loop.weights()) | {"model.norm.weight": torch.full((16,), torch.nan)}
    with pytest.raises(WeightsError, match="not finite"):
        slot._load(start(weights.write_blob(broken, blobs)), None)
    assert _losses(loop, 1)
    loop.close()


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_a_stage_fits_between_stages_of_one_process_with_a_tied_head(
    group: Group, tiny_run: Callable[..., Manifest], dataset: Dataset, together: Callable[..., list[Any]], stage: int
) -> None:
    data = DraftData(source=["corpus"], sequence_length=16, batch_size=3, micro_batches=1, seed=7)
    stages, tied = [(0, 1), (1, 2), (2, 3)], {"tie_word_embeddings": True}
    manifest = tiny_run(stages, config=tied, inner=INNER["muon"], data=data, tokens_per_step=48)

    def losses(ranked: int | None) -> list[float]:
        loops = [InnerLoop(manifest, one, dataset) for one in range(3)]
        if ranked is not None:
            loops[ranked] = shared = RankedLoop(group, manifest, ranked, dataset, TWO_BY_TWO)
        for one, loop in enumerate(loops):
            loop.load_weights(initialise(manifest, one))

        def work(one: int, previous: Link | None, following: Link | None) -> list[float]:
            loop = loops[one]
            return [loop.step(index, TOTAL, loop.positions(index), previous, following) for index in range(2)]

        found = together(3, work)
        assert found[0] == found[1] == found[2]
        if ranked is not None:
            shared.close()
        return found[0]

    assert losses(stage) == pytest.approx(losses(None), rel=1e-5)


@pytest.mark.parametrize(
    ("model", "parallel", "reason"),
    [
        ("llama", 4, r"tensor_parallel 4: it has to divide the number of heads \(2\)"),
        ("llama", 3, r"tensor_parallel 3: it has to divide the number of ranks \(4\)"),
        ("gpt2", 2, "tensor_parallel 2: there is no plan for gpt2; use 1"),
        ("opt", 2, "tensor_parallel 2: there is no plan for opt; use 1"),
    ],
)
def test_what_cannot_be_shared_is_refused_before_any_rank_hears_of_it(
    group: Group, tiny_run: Callable[..., Manifest], dataset: Dataset, model: str, parallel: int, reason: str
) -> None:
    manifest = tiny_run([(0, 3)], model=_model(model))
    with pytest.raises(PlacementError, match=reason):
        RankedLoop(group, manifest, 0, dataset, msgspec.structs.replace(TWO_BY_TWO, tensor_parallel=parallel))


@pytest.mark.parametrize(("shape", "dim"), [((6, 4), 0), ((5, 4), 1), ((5, 4), None), ((6,), 0), ((3, 2, 2), None)])
def test_a_tensor_is_whole_again_from_its_pieces(shape: tuple[int, ...], dim: int | None) -> None:
    cut, whole = Cut(shape, 4, 2, dim), torch.arange(float(torch.Size(shape).numel())).view(shape)
    pieces = cut.pieces(whole)
    for rank, piece in enumerate(pieces):
        mine = whole[cut.place(rank)]
        assert torch.equal(mine, piece[: len(mine)]) and not piece[len(mine) :].any()
    assert {tuple(one.shape) for one in pieces} == {cut.piece}
    assert torch.equal(cut.joined(torch.stack(pieces)), whole)
