import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
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


FAR = 1e9  # a reach that shortens nobody


def measure(
    name: str, tokens: Sequence[int], gradient: Callable[[int], Mapping[str, Tensor]], reach: float = FAR
) -> Measured:
    gradients = [{key: one.numpy() for key, one in gradient(index).items()} for index in range(len(tokens))]
    shapes = {key: one.shape for key, one in gradients[0].items()} if gradients else {}
    return policy.measure(name, tokens, gram([Plain(one) for one in gradients], shapes).tolist(), reach)


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


@pytest.mark.parametrize("policy", ["clip", "clip+cosine"])
def test_one_or_two_move_a_step_as_far_as_the_optimiser_can_and_no_further(policy: str) -> None:
    """Nobody knows which of two lies, so neither is held against the other: who overstates shortens no honest one, and
    who sends zeros stops nobody."""
    short, long, against = mixed("0", 1.0, 0.01), mixed("1", 1.0), mixed("2", -1.0, 30.0)
    norm = math.sqrt(sum(float(one.double().square().sum()) for one in long.values()))
    reach = norm / 20 * 1.5
    assert multipliers(measure(policy, [20, 20], [short, long].__getitem__, reach)) == (UNIT, UNIT)
    zeros = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    assert multipliers(measure(policy, [20, 20], [zeros, long].__getitem__, reach)) == (UNIT, UNIT)
    for company in ([long, against], [against]):
        found = measure(policy, [20] * len(company), company.__getitem__, reach)
        sent = math.sqrt(sum(float(one.double().square().sum()) for one in against.values()))
        assert 0.99 * 20 * reach < sent * multipliers(found)[-1] / UNIT <= 20 * reach, "and none is dropped"


def test_nobody_moves_further_than_the_optimiser_can_where_most_do_not_say_the_truth() -> None:
    """Where two of three are a liar's the median is no bound."""
    gradients = [mixed("0", 1.0), *(mixed("liar", 1.0, 1e6) for _ in range(2))]
    norms = [math.sqrt(sum(float(t.double().square().sum()) for t in one.values())) for one in gradients]
    found = multipliers(measure("clip", [10] * 3, gradients.__getitem__, norms[0] / 5))
    assert found[0] == UNIT and all(norms[1] * one / UNIT <= 2.001 * norms[0] for one in found[1:])


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


@given(
    st.lists(st.tuples(st.integers(1, 20), st.floats(0.01, 100.0)), min_size=2, max_size=8),
    st.integers(1, 20),
    st.floats(0.0, 1e9),
)
def test_one_liar_has_the_measure_between_half_of_one_honest_step_near_the_median_and_another(
    honest: list[tuple[int, float]], steps: int, length: float
) -> None:
    """However much honest steps differ: it shifts the median by one of them at most."""
    stated = [*honest, (steps, length)]
    found = policy.measure_of_a_step([n for n, _ in stated], [n * each for n, each in stated], 1e12)
    ordered, middle = sorted(each for _, each in honest), len(honest) // 2
    assert ordered[middle - 1] / 2 * 0.999 <= found <= ordered[middle] * 1.001


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


def test_who_is_dropped_is_decided_pair_by_pair() -> None:
    """Not against a sum of the others, in which the loudest lie hides an honest one or drowns it."""
    tokens, gradients = [640, 64, 640, 320], [mixed(str(i), 0.5, scale) for i, scale in enumerate((1, 3, -9, 1))]
    measured = measure("clip+cosine", tokens, gradients.__getitem__)
    assert [one.seen for one in measured.against] == [1, 1, 3, 1]
    assert [one == 0 for one in multipliers(measured)] == [False, False, True, False]


@pytest.mark.parametrize(("honest", "liars"), [(2, 1), (3, 2), (5, 3), (5, 4)])
def test_a_minority_that_pulls_against_one_honest_member_has_nobody_dropped(honest: int, liars: int) -> None:
    """Whatever they send, and however few honest ones have anything else in common."""
    own = [mixed(str(index), 0.3) for index in range(honest)]
    lie = {name: -5 * own[0][name] + sum(one[name] for one in own[1:]) for name in SHAPES}
    found = multipliers(measure("clip+cosine", [10] * (honest + liars), [*own, *[lie] * liars].__getitem__))
    assert 0 not in found[:honest]


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


def test_where_half_would_be_dropped_nobody_is() -> None:
    """Then nobody knows who is right."""
    ring = [{"a": torch.tensor([math.cos(angle), math.sin(angle)])} for angle in (0.0, 2.1, 4.2)]
    assert 0 not in multipliers(measure("clip+cosine", [1, 1, 1], ring.__getitem__))
    pairs = [{"a": torch.tensor([sign])} for sign in (1.0, 1.0, -1.0, -1.0)]
    assert multipliers(measure("clip+cosine", [1] * 4, pairs.__getitem__)) == (UNIT,) * 4
    most = [{"a": torch.tensor([sign])} for sign in (1.0, 1.0, 1.0, -1.0, -1.0)]
    assert multipliers(measure("clip+cosine", [1] * 5, most.__getitem__)) == (UNIT, UNIT, UNIT, 0, 0)


def test_payloads_of_zeros_are_no_reason_to_fail() -> None:
    zeros = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    assert multipliers(measure("clip+cosine", [1] * 3, [zeros].__mul__(3).__getitem__)) == (UNIT,) * 3
    assert multipliers(measure("clip", [1, 1, 1], [zeros, zeros, mixed("0", 1.0)].__getitem__)) == (UNIT, UNIT, 0)
    assert multipliers(measure("clip", [], [].__getitem__)) == () and disagreement(Measured(()), ()) is None


@st.composite
def sights(draw: st.DrawFn) -> tuple[Measured, Measured]:
    """What two machines see of the same payloads: cosines that differ by rounding, at the threshold too."""
    count = draw(st.integers(1, 8))
    factors = draw(st.lists(st.floats(0, 1), min_size=count, max_size=count))
    places = st.sampled_from([-0.5, -2 * BAND, -BAND / 2, 0.0, BAND / 2, 2 * BAND, 0.5])
    gram = np.eye(count)
    for low in range(count):
        for high in range(low):
            gram[low, high] = gram[high, low] = draw(places)
    noise = np.array(draw(st.lists(st.floats(-1e-12, 1e-12), min_size=count * count, max_size=count * count)))
    noise = noise.reshape(count, count) * (1 - np.eye(count))
    mine, other = (policy.measure("clip+cosine", [1] * count, one.tolist(), FAR) for one in (gram, gram + noise))
    rounding = 1 + draw(st.floats(-1e-12, 1e-12))
    return Measured(tuple(factors), mine.against), Measured(tuple(one * rounding for one in factors), other.against)


@given(sights())
def test_whoever_measures_the_same_payloads_agrees(sights: tuple[Measured, Measured]) -> None:
    mine, other = sights
    assert disagreement(mine, multipliers(other)) is None and disagreement(other, multipliers(mine)) is None


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
        products = [[1.0, 1.0, cosine], [1.0, 1.0, -1.0], [cosine, -1.0, 1.0]]  # of three, against both is most
        return disagreement(policy.measure("clip+cosine", [1] * 3, products, FAR), (UNIT, UNIT, third))

    assert judge(BAND / 2, 0) is judge(BAND / 2, UNIT) is judge(-BAND / 2, 0) is judge(-BAND / 2, UNIT) is None
    assert judge(2 * BAND, UNIT) is judge(-2 * BAND, 0) is None
    assert "norm a step gives" in (judge(2 * BAND, 0) or "") and "pulls against" in (judge(-2 * BAND, UNIT) or "")
    assert "norm a step gives" in (disagreement(Measured((1.0, 1.0, 0.5)), (UNIT, UNIT, UNIT)) or "")


def test_where_another_machine_may_see_half_pull_against_others_it_may_drop_nobody() -> None:
    products = [[1.0, -BAND / 2, -1.0], [-BAND / 2, 1.0, -1.0], [-1.0, -1.0, 1.0]]
    measured = policy.measure("clip+cosine", [1] * 3, products, FAR)
    assert [(one.surely, one.perhaps) for one in measured.against] == [(1, 2), (1, 2), (2, 2)]
    for fine in ((UNIT, UNIT, UNIT), (UNIT, UNIT, 0)):
        assert disagreement(measured, fine) is None


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
    assert (history[0][0][3] == 0) == (rule == "clip+cosine")
