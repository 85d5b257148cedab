import itertools
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from dlx.ground.blobs import write_blob
from dlx.ground.constants import UNIT
from dlx.training.codecs import codec
from dlx.training.models import weights
from dlx.training.models.weights import Stored
from dlx.training.outer.adaptive import (
    ends_window,
    exchange,
    next_inner_steps,
    next_rank,
    within_a_rung,
)
from dlx.training.outer.payloads import Payload
from dlx.training.recipe.ladders import ladders
from dlx.training.recipe.recipe import Adaptive, Codec, Plan, parse_model
from dlx.training.recipe.soundness import check
from dlx.training.recipe.strict import ManifestError, convert
from dlx.training.slot.energy import kept_energy
from tests.training.conftest import tiny_draft

ADAPTIVE = Adaptive(inner_steps=1000, min_rank=4, max_rank=128, min_inner_steps=5, max_inner_steps=500)


def test_ladders_are_short_and_start_at_the_manifests_plan() -> None:
    found = ladders("lowrank", Plan(4, 32, 125), ADAPTIVE)
    assert found.ranks == (4, 5, 8, 11, 16, 22, 32, 45, 64, 90, 128)
    assert found.inner_steps == (5, 7, 11, 15, 22, 31, 44, 62, 88, 125, 176, 250, 353, 500)
    for rungs in found:
        assert all(high / low < 1.7 for low, high in itertools.pairwise(rungs))
    assert ladders("topk", Plan(2, 128, 5), ADAPTIVE).ranks == (128,), "only low rank has a rank to adapt"
    assert ladders("lowrank", Plan(4, 32, 125), None) == ((32,), (125,))


def test_the_rank_follows_the_part_of_an_update_that_payloads_keep() -> None:
    rungs, half = (4, 8, 16), UNIT // 2
    assert next_rank(rungs, 8, [half - 1], 0.5) == 16 and next_rank(rungs, 16, [0], 0.5) == 16
    assert next_rank(rungs, 8, [half], 0.5) == 8 == next_rank(rungs, 8, [UNIT - 1], 0.5)
    assert next_rank(rungs, 8, [UNIT], 0.5) == 4 == next_rank(rungs, 4, [UNIT], 0.5)
    assert next_rank(rungs, 8, [], 0.5) == 8, "nothing measured, nothing changed"


def test_a_minority_cannot_pull_the_rank_beyond_what_others_state() -> None:
    rungs, honest = (4, 8, 16), UNIT * 6 // 10
    for count in range(3, 12):
        for lie in (0, UNIT):
            liars = (count - 1) // 2
            assert next_rank(rungs, 8, [lie] * liars + [honest] * (count - liars), 0.5) == 8
    assert next_rank(rungs, 8, [UNIT, honest], 0.5) == 8 and next_rank(rungs, 8, [0, honest], 0.5) == 16, "half can"


def test_whatever_the_update_the_rank_settles_and_never_goes_to_and_fro() -> None:
    """The energy that a rank keeps is a sum of falling terms. All equal is hardest."""
    rungs, noise = ladders("lowrank", Plan(4, 32, 125), ADAPTIVE).ranks, random.Random(1)
    flat = [[1.0] * directions for directions in (1, 3, 8, 22, 64, 100, 500)]
    spectra = flat + [sorted((noise.random() ** power for _ in range(300)), reverse=True) for power in (1, 3, 9, 40)]
    for spectrum in spectra:
        for wanted in (0.1, 0.3, 0.5, 0.6):
            for rank in rungs:
                seen = [rank]
                for _ in range(2 * len(rungs)):
                    kept = round(UNIT * sum(spectrum[: seen[-1]]) / sum(spectrum))
                    seen.append(next_rank(rungs, seen[-1], [kept], wanted))
                moves = [after - before for before, after in itertools.pairwise(seen)]
                assert moves[-1] == 0 and not (min(moves) < 0 < max(moves)), (wanted, seen)
                assert sum(spectrum[: seen[-1]]) / sum(spectrum) >= wanted - 1e-4 or seen[-1] == rungs[-1]


@pytest.mark.parametrize("replicas", [1, 3])
def test_the_rank_grows_and_falls_with_what_real_payloads_keep_and_settles(replicas: int, tmp_path: Path) -> None:
    """Replicas agree on most of an update of 64 directions, later on one of 6. The mean of what they send has never
    more directions than the rank, so only what they did not send tells that it is too small."""
    adaptive, rank, ranks = Adaptive(inner_steps=1000, min_rank=4, max_rank=128), 11, list[int]()
    rungs = ladders("lowrank", Plan(rank=rank), adaptive).ranks
    senders = [_Sender(replica, tmp_path) for replica in range(replicas)]
    for round in range(110):
        stated = [sender.send(64 if round < 55 else 6, Plan(rank=rank)) for sender in senders]
        if ends_window(adaptive, round):
            rank = next_rank(rungs, rank, stated, adaptive.energy)
            ranks.append(rank)
    grown, fallen = ranks[:11], ranks[11:]
    assert grown[0] > 11 and len(set(grown[-5:])) == 1 and 22 <= grown[-1] < 64, ranks
    assert len(set(fallen[-3:])) == 1 and fallen[-1] < 6, ranks


def test_the_part_kept_is_what_the_payload_takes_away(tmp_path: Path) -> None:
    sender, rungs = _Sender(0, tmp_path), ladders("lowrank", Plan(rank=32), ADAPTIVE).ranks
    part = sender.send(64, Plan(rank=32))
    left = np.square(sender.residual, dtype=np.float64).sum() / np.square(sender.update, dtype=np.float64).sum()
    assert part == pytest.approx(UNIT * (1 - left), abs=1) and part == pytest.approx(UNIT / 2, rel=0.1)
    assert next_rank(rungs, 32, [part] * 4, 0.6) > 32, "half of the update is thrown away"
    assert _Sender(0, tmp_path).send(0, Plan(rank=32)) == UNIT, "of nothing nothing is left out"


def test_inner_steps_keep_the_slowest_stages_exchange_just_hidden() -> None:
    rungs = (5, 7, 10, 14)
    assert next_inner_steps(rungs, 10, [10, 95]) == 14
    assert next_inner_steps(rungs, 10, [10, 70]) == 10
    assert next_inner_steps(rungs, 10, [10, 40]) == 7
    assert next_inner_steps(rungs, 14, [255]) == 14 and next_inner_steps(rungs, 5, [11]) == 5
    assert next_inner_steps(rungs, 10, []) == 10
    for ratio in range(1, 300):  # whatever the exchange takes, it settles
        steps, seen = 10, []
        for _ in range(12):
            seen.append(steps)
            steps = next_inner_steps(rungs, steps, [10 * ratio // steps])
        assert seen[-1] == seen[-2] == seen[-3]


def test_medians_leave_out_what_was_not_measured() -> None:
    assert exchange([0, 5, 7, 6]) == 6 and exchange([5, 9]) == 5
    assert exchange([0]) is exchange([]) is None


def test_a_rung_is_a_rung() -> None:
    rungs = (5, 7, 10)
    assert within_a_rung(rungs, 7, 7) and within_a_rung(rungs, 5, 7) and within_a_rung(rungs, 10, 7)
    assert not within_a_rung(rungs, 5, 10) and not within_a_rung(rungs, 6, 7)


@pytest.mark.parametrize(
    ("codec", "plan", "changes", "message"),
    [
        (
            "lowrank",
            Plan(4, 200, 10),
            {},
            "plan.rank: expected adaptive.min_rank to adaptive.max_rank .4 to 128., got 200",
        ),
        ("int4", Plan(4, 0, 3), {}, "plan.inner_steps: expected adaptive.min_inner_steps to .*5 to 500., got 3"),
        ("lowrank", Plan(4, 16, 10), {"min_rank": 129}, "adaptive.min_rank: expected at most .*128., got 129"),
    ],
)
def test_a_plan_off_its_ladder_is_refused(codec: str, plan: Plan, changes: dict[str, int], message: str) -> None:
    fields = {field: getattr(ADAPTIVE, field) for field in Adaptive.__struct_fields__}
    draft = tiny_draft([(0, 3)], codec=Codec(codec), plan=plan, adaptive=Adaptive(**{**fields, **changes}))
    with pytest.raises(ManifestError, match=message):
        check(draft, parse_model(draft.model))


def test_more_energy_than_any_rank_can_spare_is_refused() -> None:
    with pytest.raises(ManifestError, match=r"adaptive.energy: expected .*0\.6.*, got 0\.9"):
        convert({"inner_steps": 10, "energy": 0.9}, Adaptive, "adaptive.")


class _Sender:
    """A replica whose matrix changes in so many directions of one size, the same for all but for a part of its own."""

    def __init__(self, seed: int, folder: Path) -> None:
        self._own, self._folder = torch.Generator().manual_seed(seed), folder
        same = torch.Generator().manual_seed(7)
        self._left, self._right = (torch.linalg.qr(torch.randn(256, 256, generator=same))[0] for _ in range(2))
        self.update = self.residual = np.zeros((256, 256), np.float32)
        self._previous: tuple[bytes, Plan] | None = None

    def send(self, directions: int, plan: Plan) -> int:
        """The part that the payload keeps of change and residual, as it is stated."""
        mixed = torch.eye(directions) + 0.3 * torch.randn(directions, directions, generator=self._own) / 8
        change = 1e-2 * self._left[:, :directions] @ mixed @ self._right[:, :directions].T
        self.update = change.numpy() + self.residual
        chosen, name = codec("lowrank"), "model.layers.0.mlp.up_proj.weight"
        shapes, tensors = {name: self.update.shape}, {name: torch.from_numpy(self.update)}
        data = chosen.encode(tensors, plan, self._previous)
        payload = Payload(chosen, shapes, self._folder / write_blob(self._folder, [data]).hex(), plan)
        self._previous, self.residual = (data, plan), self.update - payload.decoded()[name]
        change_file = self._folder / weights.write_blob(tensors, self._folder).hex()
        return kept_energy(shapes, Stored(change_file, shapes), payload)
