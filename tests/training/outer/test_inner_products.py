"""Inner products of payloads, and what an aggregation policy makes of them."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dlx.ground.blobs import Damaged, write_blob
from dlx.ground.constants import UNIT
from dlx.training.codecs import CodecError, codec
from dlx.training.outer import policy
from dlx.training.outer.inner_products import InnerProducts, Plain, gram
from dlx.training.outer.policy import BAND
from dlx.training.recipe.recipe import Plan
from tests.training.devices import DEVICES

SHAPES: dict[str, tuple[int, ...]] = {
    "layers.0.mlp.up_proj.weight": (501, 640),
    "layers.0.norm.weight": (77,),
    "embed_tokens.weight": (300, 640),
}
PLANS = [("int4", Plan()), ("ternary", Plan(level=2)), ("lowrank", Plan(rank=8)), ("topk", Plan(level=2, rank=33))]


def _blobs(folder: Path, name: str, plan: Plan, count: int) -> list[tuple[Path, Plan]]:
    found = []
    for seed in range(count):
        numbers = np.random.default_rng(seed)
        update = {key: numbers.standard_normal(shape, np.float32) for key, shape in SHAPES.items()}
        found.append((folder / write_blob(folder, [codec(name).encode(update, plan)]).hex(), plan))
    return found


@pytest.mark.parametrize(("threads", "device"), [(1, None), (3, None), *((1, one) for one in DEVICES)])
@pytest.mark.parametrize("count", [1, 3, 10])
@pytest.mark.parametrize(("name", "plan"), PLANS)
def test_products_are_those_of_the_decoded_arrays(
    name: str, plan: Plan, count: int, threads: int, device: str | None, tmp_path: Path
) -> None:
    blobs = _blobs(tmp_path, name, plan, count)
    found = np.array(InnerProducts(codec(name, device), SHAPES, threads).matrix(blobs))
    decoded = [codec(name).decode_arrays(path.read_bytes(), SHAPES, plan) for path, _ in blobs]
    flat = np.array([np.concatenate([one[key].ravel() for key in SHAPES]) for one in decoded]).astype(np.float64)
    norms = np.sqrt((flat * flat).sum(axis=1))
    assert np.abs(found - flat @ flat.T).max() < 1e-12 * norms.max() ** 2
    assert InnerProducts(codec(name), SHAPES, threads).norms(blobs) == pytest.approx(norms**2, rel=1e-12)


def test_what_was_seen_once_is_not_read_again(tmp_path: Path) -> None:
    blobs = _blobs(tmp_path, "int4", Plan(), 4)
    products = InnerProducts(codec("int4"), SHAPES)
    norms, whole = products.norms(blobs), products.matrix(blobs)
    for path, _ in blobs:
        path.unlink()
    assert products.norms(blobs) == pytest.approx(norms)
    assert products.matrix(blobs[1:3]) == [row[1:3] for row in whole[1:3]]
    with pytest.raises(Damaged):
        products.norms([(blobs[0][0], Plan(level=8))])  # under another plan these bytes are another payload


def test_what_does_not_decode_has_no_norm(tmp_path: Path) -> None:
    size = codec("int4").size(SHAPES, Plan())
    path = tmp_path / write_blob(tmp_path, [b"\xff" * size]).hex()
    short = tmp_path / write_blob(tmp_path, [b"\0" * 10]).hex()
    products = InnerProducts(codec("int4"), SHAPES)
    with pytest.raises(CodecError, match="scale is negative"):
        products.norms([(path, Plan())])
    with pytest.raises(CodecError, match=f"expected {size} bytes, got 10"):
        products.norms([(short, Plan())])


REACH = 1.5  # of a step, in units of the longest value


def _from_vectors(steps: Sequence[int], vectors: np.ndarray) -> tuple[list[float], list[int]]:
    """The factors and the others that each pulls against, as the protocol says it, from the vectors themselves."""
    norms = [math.sqrt(float(one @ one)) for one in vectors]
    per_step = [norm / count for count, norm in zip(steps, norms, strict=True)]
    every = (np.repeat(index, count) for index, count in enumerate(steps))  # whose each step is
    taken = sorted(np.concatenate([*every]).tolist(), key=lambda index: per_step[index])
    of_steps, of_replicas = per_step[taken[(len(taken) - 1) // 2]], sorted(per_step)[(len(per_step) - 1) // 2]
    measure = REACH if len(per_step) <= 2 else min(REACH, of_replicas, max(of_steps, of_replicas / 2))
    against = []
    for index, own in enumerate(vectors):
        cosines = [own @ one / max(1e-300, norms[index] * norms[at]) for at, one in enumerate(vectors) if at != index]
        assume(all(one == 0 or abs(one) > 10 * BAND for one in cosines))  # at the threshold either is right
        against.append(sum(one < 0 for one in cosines))
    return [min(1.0, measure / norm) if norm > 0 else 1.0 for norm in per_step], against


@given(
    st.integers(1, 7).flatmap(
        lambda count: st.tuples(
            st.lists(st.integers(1, 1000), min_size=count, max_size=count),
            arrays(np.float32, (count, 5), elements=st.integers(-1000, 1000).map(lambda one: one / 1000)),
        )
    )
)
def test_the_policy_from_products_is_the_one_from_vectors(drawn: tuple[list[int], np.ndarray]) -> None:
    steps, vectors = drawn
    factors, against = _from_vectors(steps, vectors.astype(np.float64))
    products = gram([Plain({"a": one}) for one in vectors], {"a": (5,)}).tolist()
    found = policy.measure("clip+cosine", steps, products, REACH)
    assert found.factors == pytest.approx(factors, rel=1e-12)
    assert [one.seen for one in found.against] == against
    dropped = [2 * one > len(against) - 1 for one in against]
    dropped = [one and 2 * sum(dropped) < len(dropped) for one in dropped]
    assert [one == 0 for one in policy.multipliers(found)] == [
        drop or UNIT * factor + 1 / 64 < 1 for drop, factor in zip(dropped, factors, strict=True)
    ]
