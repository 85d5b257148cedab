import itertools
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from dlx.training.outer.adaptive import (
    exchange,
    next_inner_steps,
    next_rank,
    watched_ranks,
    within_a_rung,
)
from dlx.training.outer.spectrum import Spectrum
from dlx.training.recipe.ladders import ladders
from dlx.training.recipe.recipe import Adaptive, Codec, Plan, parse_model
from dlx.training.recipe.soundness import check
from dlx.training.recipe.strict import ManifestError
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


def test_the_rank_is_the_smallest_within_a_rung_that_keeps_the_energy() -> None:
    rungs = (4, 8, 16)
    assert next_rank(rungs, 8, {4: 0.91, 8: 0.95}, 0.9) == 4
    assert next_rank(rungs, 8, {4: 0.89, 8: 0.95}, 0.9) == 8
    assert next_rank(rungs, 8, {4: 0.5, 8: 0.89}, 0.9) == 16
    assert next_rank(rungs, 16, {8: 0.1, 16: 0.2}, 0.9) == 16 and next_rank(rungs, 4, {4: 1.0}, 0.9) == 4
    assert next_rank(rungs, 8, {}, 0.9) == 8, "nothing measured, nothing changed"
    assert watched_ranks(rungs, 8) == (4, 8) and watched_ranks(rungs, 4) == (4,) and watched_ranks((8,), 8) == ()


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


def kept_energy(update: Mapping[str, Tensor], ranks: tuple[int, ...]) -> dict[int, float]:
    spectrum = Spectrum({name: tuple(tensor.shape) for name, tensor in update.items()}, ranks)
    for name in spectrum.names:
        spectrum.see(name, update[name])
    return spectrum.kept()


def test_the_kept_energy_is_that_of_the_singular_values() -> None:
    noise = torch.Generator().manual_seed(1)
    update = {"norm.weight": torch.ones(300), "fc1.weight": torch.ones(4, 4)}
    for name, rows, columns in (("up_proj.weight", 96, 200), ("down_proj.weight", 400, 300)):
        left, right = torch.randn(rows, 64, generator=noise), torch.randn(64, columns, generator=noise)
        update[name] = (left * 0.8 ** torch.arange(64)) @ right + 0.01 * torch.randn(rows, columns, generator=noise)
    found = kept_energy(update, (4, 8, 16))
    spectra = [torch.linalg.svdvals(update[name].double()) ** 2 for name in ("up_proj.weight", "down_proj.weight")]
    for rank, part in found.items():
        exact = sum(float(one[:rank].sum()) for one in spectra) / sum(float(one.sum()) for one in spectra)
        assert part == pytest.approx(exact, rel=0.01)
    assert (
        kept_energy({"norm.weight": torch.ones(300)}, (4,))
        == {}
        == kept_energy({"fc1.weight": torch.zeros(90, 90)}, (4,))
    )
    assert kept_energy(update, ()) == {}


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
