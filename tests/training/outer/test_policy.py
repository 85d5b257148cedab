import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dlx.ground.blobs import write_blob
from dlx.ground.constants import UNIT
from dlx.training.codecs import codec
from dlx.training.models import weights
from dlx.training.models.stages import stage_shapes
from dlx.training.outer import policy, step
from dlx.training.outer.inner_products import Plain, gram
from dlx.training.outer.policy import BAND, Measured, disagreement, multipliers
from dlx.training.outer.step import SealedPayload, parts
from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.recipe import Outer, Plan

GOLDEN = Path(__file__).parent / "golden" / "policy.json"
SHAPES = {"a.weight": (6, 50), "b.weight": (7,)}


def values(seed: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """The same values on every machine, unlike torch.randn's."""
    made = {}
    for name, shape in shapes.items():
        bits = hashlib.shake_128(f"{seed} {name}".encode()).digest(2 * math.prod(shape))
        made[name] = torch.from_numpy(np.frombuffer(bits, "<i2").astype(np.float32) / np.float32(2**15)).view(shape)
    return made


def mixed(seed: str, common: float, scale: float = 1.0) -> dict[str, Tensor]:
    """Something that all contributions share, and noise of one's own."""
    shared, own = values("shared", SHAPES), values(seed, SHAPES)
    return {name: (shared[name] * common + own[name]) * scale for name in SHAPES}


def measure(name: str, tokens: Sequence[int], gradient: Callable[[int], Mapping[str, Tensor]]) -> Measured:
    gradients = [{key: one.numpy() for key, one in gradient(index).items()} for index in range(len(tokens))]
    shapes = {key: one.shape for key, one in gradients[0].items()} if gradients else {}
    return policy.measure(name, tokens, gram([Plain(one) for one in gradients], shapes).tolist())


def test_norms_above_the_median_are_scaled_down_to_it() -> None:
    gradients = [mixed(str(index), 1.0, scale) for index, scale in enumerate((1, 1, 100, 0.01, 1))]
    found = multipliers(measure("clip", [640] * 5, gradients.__getitem__))
    norms = [math.sqrt(sum(float(t.double().square().sum()) for t in one.values())) for one in gradients]
    median = sorted(norms)[2]
    assert found == tuple(int(UNIT * min(1.0, median / norm)) for norm in norms)
    assert found[2] < UNIT / 50 and found[3] == UNIT, "the small one is not scaled up"


def test_a_slow_replica_is_no_measure_for_a_fast_one() -> None:
    """A quarter of the steps moves a quarter as far: nobody is clipped. Who moves as far in a quarter of them is."""
    slow = [mixed(str(index), 1.0, 0.25) for index in range(3)]
    assert min(multipliers(measure("clip", [20, 5, 5, 5], [mixed("f", 1.0), *slow].__getitem__))) > 0.9 * UNIT
    equal = [mixed(str(index), 1.0) for index in range(4)]
    found = multipliers(measure("clip", [20, 20, 20, 5], equal.__getitem__))
    assert min(found[:3]) > 0.9 * UNIT and 0.2 * UNIT < found[3] < 0.3 * UNIT
    longer = [mixed(str(index), 1.0, 0.4) for index in range(3)]  # short rounds move further a step
    found = multipliers(measure("clip", [20, 5, 5, 5], [mixed("f", 1.0), *longer].__getitem__))
    assert found[0] == UNIT and max(found[1:]) < 0.7 * UNIT, "three are most of the replicas, not of the steps"


def test_of_two_the_longer_is_clipped_to_four_times_the_shorter() -> None:
    """Nobody knows which of them lies. Who states all steps and took a quarter of them does not shorten an honest one:
    that would be worse than no policy."""
    found = multipliers(measure("clip+cosine", [20, 20], [mixed("0", 1.0, 0.28), mixed("1", 1.0)].__getitem__))
    assert found == (UNIT, UNIT)
    found = multipliers(measure("clip+cosine", [1, 1], [mixed("0", 1.0), mixed("1", -1.0, 1000.0)].__getitem__))
    assert found[0] == UNIT and UNIT / 500 < found[1] < UNIT / 125, "and none is dropped"


LIAR_SCALES = [1e-6, 0.5, 1.0, 2.0, 1e3, 1e6]


@pytest.mark.parametrize("scale", LIAR_SCALES)
@pytest.mark.parametrize("honest_steps", [(20,) * 3, (20,) * 7, (2,) * 3, (5,) * 7, (20, 20, 5, 2)])
def test_one_liar_moves_a_step_no_further_than_honest_ones_do_and_shortens_them_by_half_at_most(
    honest_steps: tuple[int, ...], scale: float
) -> None:
    """Whatever it sends, and also where it states more steps than all others together."""
    honest = [mixed(str(index), 1.0, count**0.5) for index, count in enumerate(honest_steps)]  # a random walk's
    gradients = [*honest, {name: tensor * scale * 20 for name, tensor in mixed("liar", 1.0).items()}]
    steps = (*honest_steps, 20)
    found = multipliers(measure("clip", steps, gradients.__getitem__))
    norms = [math.sqrt(sum(float(t.double().square().sum()) for t in one.values())) for one in gradients]
    true = sorted(norm / count for norm, count in zip(norms, honest_steps, strict=False))
    assert norms[-1] * found[-1] / UNIT / steps[-1] <= 1.03 * true[len(true) // 2]
    lower = min(true[(len(true) - 1) // 2] * count / norm for norm, count in zip(norms, honest_steps, strict=False))
    assert min(found[:-1]) >= 0.49 * UNIT * min(1.0, lower), "of what they would move without it"


@pytest.mark.parametrize("scale", LIAR_SCALES)
@pytest.mark.parametrize(("honest", "liars"), [(2, 1), (3, 1), (7, 1), (6, 2)])
@pytest.mark.parametrize("policy", ["clip", "clip+cosine"])
def test_a_round_moves_the_model_no_further_than_an_honest_member_would_in_as_many_steps(
    policy: str, honest: int, liars: int, scale: float
) -> None:
    """Whatever liars send, all the same, and state beside honest ones that take a quarter of the steps."""
    own = [mixed(str(index), 0.5, 5**0.5) for index in range(honest)]
    lie = {name: tensor * scale * 20 for name, tensor in mixed("liar", 0.5).items()}
    gradients, steps = [*own, *[lie] * liars], [5] * honest + [20] * liars
    flat = [torch.cat([tensor.double().flatten() for tensor in one.values()]) for one in gradients]
    found = parts(steps, multipliers(measure(policy, steps, gradients.__getitem__)))
    moved = sum(part * one for part, one in zip(found, flat, strict=True))
    assert float(moved.norm()) <= 1.001 * 20 * max(float(one.norm()) / 5 for one in flat[:honest])


def test_nobody_is_most_of_the_others_by_the_steps_that_it_states() -> None:
    """Honest replicas whose directions have little in common keep their say beside one that overstates and pulls
    another way. Weighed with its steps, it would have half of them dropped."""
    for count in (3, 7):
        honest = [mixed(str(index), 0.3) for index in range(count)]
        liar = {name: -3 * one for name, one in mixed("liar", 0.5).items()}
        found = multipliers(measure("clip+cosine", [5] * count + [20], [*honest, liar].__getitem__))
        assert [one == 0 for one in found] == [False] * count + [True]


def test_cosines_are_with_the_sum_of_the_others_directions() -> None:
    tokens, gradients = [640, 64, 640, 320], [mixed(str(i), 0.5, scale) for i, scale in enumerate((1, 3, -9, 1))]
    measured = measure("clip+cosine", tokens, gradients.__getitem__)
    flat = [torch.cat([t.double().flatten() for t in one.values()]) for one in gradients]
    others = sum(flat[at] / flat[at].norm() for at in (0, 1, 3))
    expected = float(torch.nn.functional.cosine_similarity(flat[2], others, 0))
    ((dropped, cosine),) = measured.outliers
    assert dropped == 2 and cosine == pytest.approx(expected, abs=1e-9) and cosine < -0.1
    assert [one == 0 for one in multipliers(measured)] == [False, False, True, False]


@pytest.mark.parametrize("count", [3, 5, 8])
def test_those_who_turn_others_updates_round_are_dropped_and_nobody_else(count: int) -> None:
    """Fewer than half send the exact opposite of somebody's update, ten times as large: against their mean good ones
    look no better than they do."""
    bad = (count - 1) // 2
    honest = [mixed(str(index), 1.0) for index in range(count - bad)]
    turned = [{name: -10 * tensor for name, tensor in honest[index].items()} for index in range(bad)]
    gradients = [*turned, *honest]
    found = multipliers(measure("clip+cosine", [640] * count, gradients.__getitem__))
    assert [one == 0 for one in found] == [True] * bad + [False] * len(honest)


def test_fewer_than_half_are_dropped_however_they_quarrel() -> None:
    ring = [{"a": torch.tensor([math.cos(angle), math.sin(angle)])} for angle in (0.0, 2.1, 4.2)]
    measured = measure("clip+cosine", [1, 1, 1], ring.__getitem__)
    assert multipliers(measured).count(0) == 1
    pairs = [{"a": torch.tensor([sign])} for sign in (1.0, 1.0, -1.0, -1.0)]
    assert multipliers(measure("clip+cosine", [1] * 4, pairs.__getitem__)) == (0, UNIT, UNIT, UNIT), "in their order"


def test_payloads_of_zeros_are_no_reason_to_fail() -> None:
    zeros = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    assert multipliers(measure("clip+cosine", [1] * 3, [zeros].__mul__(3).__getitem__)) == (UNIT,) * 3
    assert multipliers(measure("clip", [1, 1], [zeros, mixed("0", 1.0)].__getitem__)) == (UNIT, 0)
    assert multipliers(measure("clip", [], [].__getitem__)) == () and disagreement(Measured(()), ()) is None


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(-1, BAND, exclude_max=True)), min_size=1, max_size=8),
    st.floats(-1e-12, 1e-12),
)
def test_whoever_measures_the_same_payloads_agrees(contributions: list[tuple[float, float]], rounding: float) -> None:
    factors, cosines = zip(*contributions, strict=True)
    outliers = list(enumerate(cosines))[: (len(factors) - 1) // 2]
    mine = Measured(factors, tuple(outliers))
    seen = ((index, cosine + rounding) for index, cosine in outliers)
    stops = tuple(takewhile(lambda one: one[1] < BAND, seen))
    other = Measured(tuple(factor * (1 + rounding) for factor in factors), stops)
    assert disagreement(mine, multipliers(other)) is None


@pytest.mark.parametrize(
    ("factor", "fine", "wrong"),
    [
        (1.0, {UNIT}, {UNIT + 1, UNIT - 1, 0}),
        (1 / 3, {10922}, {10921, 10923, 0}),
        (0.9999 / UNIT, {1}, {0, 2}),  # a machine's noise is no reason to count for nothing
        ((20001 - 1 / 64) / UNIT, {20000, 20001}, {19999, 20002}),  # another machine may see it below, or above
        ((1 - 1 / 64) / UNIT, {0, 1}, {2}),
        (0.97 / UNIT, {0}, {1}),  # 1 of a payload that has no bound
        (1e-9, {0}, {1, UNIT}),
    ],
)
def test_only_a_factor_rounded_down_is_sealed_and_nothing_becomes_something(
    factor: float, fine: set[int], wrong: set[int]
) -> None:
    measured = Measured((1.0, 1.0, factor))
    assert multipliers(measured)[2] in fine
    for one in fine | wrong:
        assert (disagreement(measured, (UNIT, UNIT, one)) is None) == (one in fine), one
    assert "2 multipliers for 3" in (disagreement(measured, (UNIT, UNIT)) or "")


def test_a_proposer_makes_nothing_of_its_own_payload_beyond_the_bound() -> None:
    """A payload of ten million times an honest one has the multiplier 0. Sealed as 1 it would be worth 300 of them."""
    gradients = [*(mixed(str(index), 1.0) for index in range(3)), mixed("3", 1.0, 1e7)]
    measured = measure("clip+cosine", [10] * 4, gradients.__getitem__)
    honest = multipliers(measured)
    assert honest[3] == 0 and disagreement(measured, honest) is None
    assert "contribution 3 has the multiplier 1" in (disagreement(measured, (*honest[:3], 1)) or "")


def test_the_filter_may_go_either_way_only_at_its_threshold() -> None:
    def judge(cosine: float, third: int) -> str | None:
        outliers = ((2, cosine),) if cosine < BAND else ()
        return disagreement(Measured((1.0, 1.0, 1.0), outliers), (UNIT, UNIT, third))

    assert judge(BAND / 2, 0) is judge(BAND / 2, UNIT) is judge(-BAND / 2, 0) is judge(-BAND / 2, UNIT) is None
    assert judge(2 * BAND, UNIT) is judge(-2 * BAND, 0) is None
    assert "norm a step gives" in (judge(2 * BAND, 0) or "") and "pulls against" in (judge(-2 * BAND, UNIT) or "")
    assert "norm a step gives" in (disagreement(Measured((1.0, 1.0, 0.5)), (UNIT, UNIT, UNIT)) or "")


@pytest.mark.parametrize("rule", ["clip", "clip+cosine"])
def test_measured_multipliers_make_the_golden_history(
    rule: str, tiny_run: Callable[..., Manifest], tmp_path: Path
) -> None:
    """Payloads, their measured multipliers and the weights that these give, round by round, with Nesterov momentum."""
    manifest = tiny_run([(0, 3)], outer=Outer(lr=0.7, momentum=0.9, nesterov=True, policy=rule))
    shapes, plan = stage_shapes(manifest, 0), Plan()
    name, momentum, history = weights.write_blob(values("genesis", shapes), tmp_path), None, []
    for round in range(3):
        payloads = []
        for number, scale in enumerate((0.01, 0.01, 0.3, -0.02)):
            update = {
                key: (one + values(f"{round} {number}", shapes)[key]) * scale
                for key, one in values("g", shapes).items()
            }
            blob = write_blob(tmp_path, [codec("int4").encode(update, plan)])
            payloads.append(SealedPayload(tmp_path / blob.hex(), 640 + number, UNIT, plan))
        found = multipliers(step.measure_round(manifest, 0, payloads))
        sealed = [SealedPayload(one.payload, one.steps, by, plan) for one, by in zip(payloads, found, strict=True)]
        version = step.apply_round(manifest, 0, tmp_path / name.hex(), momentum, sealed, tmp_path)
        name, momentum = version.weights, tmp_path / version.momentum.hex()
        history.append([list(found), version.weights.hex(), version.momentum.hex()])
    golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    if "REGENERATE_GOLDEN" in os.environ:
        GOLDEN.write_text(json.dumps(golden | {rule: history}, indent=1) + "\n")
    else:
        assert history == golden[rule]
    assert policy.THRESHOLD == 0 and (history[0][0][3] == 0) == (rule == "clip+cosine")
