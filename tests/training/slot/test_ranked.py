"""Ranks that share a stage write the files of one process."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import torch
from torch import Tensor

from dlx.ground import durable
from dlx.training.codecs import CodecError
from dlx.training.data.shards import Dataset
from dlx.training.inner.loop import InnerLoop
from dlx.training.inner.pipeline import Norms
from dlx.training.inner.ranks.group import Group
from dlx.training.inner.ranks.loop import RankedLoop
from dlx.training.outer.step import SealedPayload, apply_round
from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.recipe import Codec, Inner, Outer, Plan
from dlx.training.slot.ranked import RankedSlot
from dlx.training.slot.rounds import RoundInputs, Trained
from dlx.training.slot.segments import SEGMENT_STEPS
from dlx.training.slot.slot import Slot
from tests.training.inner.ranked import meet

ROUNDS = 4
ODD = {"intermediate_size": 27}  # rows that ranks cannot share evenly
PLANS = {
    "int4": Plan(inner_steps=3),
    "lowrank": Plan(inner_steps=3, level=4, rank=4),
    "topk": Plan(inner_steps=3, level=2, rank=128),
}


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """Two ranks with rank 0's files, and one as of another machine, which encodes its share."""
    with meet(tmp_path_factory.mktemp("ranks"), 3, beside=2) as made:
        yield made


class _Ended(NamedTuple):
    """An inner step."""

    norms: Norms
    loss: float
    weights: Mapping[str, Tensor]
    state: Mapping[str, Tensor]


class _Noted(RankedLoop):
    ends: list[_Ended]

    def step(self, *args: Any) -> float:
        loss = super().step(*args)
        self.ends.append(_Ended(self.norms, loss, dict(self.weights()), dict(self.optimiser_state())))
        return loss


class _Same(InnerLoop):
    """One process whose steps end where those of the ranks did, which add in another order."""

    ends: list[_Ended]

    def step(self, *args: Any) -> float:
        end, ready = self.ends.pop(0), args[-1]
        ready()
        self.norms = end.norms
        self.load_weights(end.weights)
        self.load_optimiser_state(end.state)
        return end.loss


def _run(manifest: Manifest, slot: Slot, blobs: Path, rounds: int = ROUNDS) -> list[Trained]:
    """Rounds of a run of one replica, whose second contribution its seal leaves out."""
    versions, trained = [bytes.fromhex(manifest.genesis[0].sha256)], list[Trained]()
    plan, delay = manifest.plan, manifest.outer.delay
    need = plan.inner_steps * manifest.data.batch_size
    for t in range(rounds):
        inputs = RoundInputs(
            round=t,
            plan=plan,
            steps_before=t * plan.inner_steps,
            total_steps=ROUNDS * plan.inner_steps,
            base_version=max(0, t - delay),
            base_weights=versions[max(0, t - delay)],
            samples=((t * need, (t + 1) * need),),
            left_out=(trained[1].payload,) if t - 1 - delay >= 1 else (),
        )
        trained.append(msgspec.structs.replace(slot.train(inputs, None, None), training_ms=0))
        sealed = [SealedPayload(blobs / trained[-1].payload.hex(), plan.inner_steps, 32768, plan)]
        newest = blobs / versions[-1].hex()
        versions.append(apply_round(manifest, 0, newest, None, [] if t == 1 else sealed, blobs).weights)
    return trained


def _files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): durable.file_hash(path)
        for path in folder.rglob("*")
        if path.is_file() and path.name not in ("slot.json", "round")
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("codec", "delay", "ahead", "optimiser"),
    [
        ("int4", 0, 0.0, "muon"),
        ("int4", 1, 0.5, "shampoo"),
        ("lowrank", 1, 0.0, "muon"),
        ("topk", 0, 0.5, "muon"),
    ],
)
def test_payloads_and_files_have_the_bytes_of_one_process(
    group: Group,
    tiny_run: Callable[..., Manifest],
    dataset: Dataset,
    blobs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    codec: str,
    delay: int,
    ahead: float,
    optimiser: Any,
) -> None:
    """With several segments in a round, a payload in the start, one that is folded back, one to start from, and a part
    of the residual in the start."""
    monkeypatch.setitem(SEGMENT_STEPS, "bfloat16", 2)
    outer = Outer(lr=0.8, delay=delay, alpha=0.8 if delay else 0.0, ahead=ahead)
    manifest = tiny_run(
        [(0, 3)],
        config=ODD,
        codec=Codec(name=codec),
        plan=PLANS[codec],
        outer=outer,
        precision="bfloat16",
        rounds=8,
        inner=Inner(optimiser=optimiser, lr=1e-2, matrix_lr=1e-2),
    )
    ranked = _Noted(group, manifest, 0, dataset)
    ranked.ends = []
    found = _run(manifest, RankedSlot(manifest, ranked, 0, tmp_path / "ranked", blobs), blobs)
    alone = _Same(manifest, 0, dataset)
    alone.ends = list(ranked.ends)
    expected = _run(manifest, Slot(manifest, alone, 0, tmp_path / "alone", blobs), blobs)
    assert found == expected
    assert any(one.folded for one in found) and found[0].segments == 2
    assert _files(tmp_path / "ranked") == _files(tmp_path / "alone")
    for name, digest in _files(tmp_path / "ranked").items():
        assert Path(name).name == digest.hex()
    ranked.close()


@pytest.mark.slow
def test_a_change_that_has_no_payload_is_refused_by_its_owner_and_all_go_on(
    group: Group, tiny_run: Callable[..., Manifest], dataset: Dataset, blobs: Path, tmp_path: Path
) -> None:
    manifest = tiny_run([(0, 3)], plan=Plan(inner_steps=1))

    class Growing(RankedLoop):
        huge = True

        def step(self, *args: Any) -> float:
            loss = super().step(*args)
            if self.huge:
                self.load_weights({name: torch.full(shape, 1e30) for name, shape in self.shapes.items()})
            return loss

    loop = Growing(group, manifest, 0, dataset)
    slot = RankedSlot(manifest, loop, 0, tmp_path / "slot", blobs)
    with pytest.raises(CodecError, match="not finite or too large"):
        _run(manifest, slot, blobs, 1)
    assert _files(tmp_path / "slot") == {}
    loop.huge = False
    assert len(_run(manifest, slot, blobs, 2)) == 2
    loop.close()
