import hashlib
import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import torch

from dlx.training.codecs import CodecError, codec
from dlx.training.codecs.lowrank import factored
from dlx.training.models import weights
from dlx.training.recipe.recipe import Plan
from dlx.training.recipe.strict import ManifestError

LOWRANK, INT4 = codec("lowrank"), codec("int4")
M, N = 40, 30
W = "layers.0.mlp.up_proj.weight"


def _matrix(seed: int, rows: int, columns: int, decay: float = 1.0, size: float = 1e-3) -> torch.Tensor:
    """A float32 matrix whose k-th singular value is size / k^decay."""
    numbers = np.random.default_rng(seed)
    left, _ = np.linalg.qr(numbers.normal(size=(rows, min(rows, columns))))
    right, _ = np.linalg.qr(numbers.normal(size=(columns, min(rows, columns))))
    values = size * np.arange(1, min(rows, columns) + 1.0) ** -decay
    return torch.from_numpy(((left * values) @ right.T).astype(np.float32))


def _payload(exponents: list[int], codes: np.ndarray) -> bytes:
    """One matrix's payload from its components' exponents and codes [r, m + n]."""
    nibbles = codes.astype(np.int8).view(np.uint8).reshape(-1) & 15
    nibbles = np.append(nibbles, np.zeros(len(nibbles) % 2, np.uint8))
    return np.array(exponents, np.int8).tobytes() + (nibbles[0::2] | nibbles[1::2] << 4).tobytes()


def _codes(rank: int, size: int = M + N, seed: str = "codes") -> np.ndarray:
    """Codes [r, size] from a hash; each component begins with 1 in P and in Q, and so has its canonical form."""
    bits = np.frombuffer(hashlib.shake_128(seed.encode()).digest(rank * size), np.uint8)
    codes = (bits % 15).astype(np.int64).reshape(rank, size) - 7
    codes[:, [0, M]] = 1
    return codes


def _decode(payload: bytes, rank: int, shape: tuple[int, int] = (M, N)) -> torch.Tensor:
    return LOWRANK.decode(payload, {W: shape}, Plan(rank=rank))[W]


def test_the_layout_is_the_documented_one() -> None:
    codes = np.zeros((2, M + N), np.int64)
    codes[0, [0, 5, M, M + 29]] = 1, -7, 3, -2
    codes[1, [1, M + 1]] = 5, 1
    decoded = _decode(_payload([2, -3], codes), 2)
    expected = torch.zeros(M, N)
    expected[0, 0], expected[0, 29], expected[5, 0], expected[5, 29] = 12, -8, -84, 56
    expected[1, 1] = 5 / 8
    assert torch.equal(decoded, expected)
    assert len(_payload([2, -3], codes)) == LOWRANK.size({W: (M, N)}, Plan(rank=2)) == 2 + M + N


def test_a_matrix_is_factored_where_that_is_smaller_and_it_is_no_embedding() -> None:
    plan = Plan(rank=16)
    assert factored("model.layers.3.self_attn.q_proj.weight", (128, 64), plan)
    assert factored("transformer.h.0.attn.c_attn.weight", (64, 192), plan)
    assert not factored(W, (20, 40), plan)  # 16 x 60 codes are more than 20 x 40
    assert not factored(W, (8, 4096), plan)  # its rank is at most 8
    assert not factored(W, (4096,), plan) and not factored(W, (2, 4, 64, 64), plan)
    embeddings = ["model.embed_tokens", "lm_head", "transformer.wte", "transformer.wpe", "gpt_neox.embed_in"]
    for name in [*embeddings, "layers.0.mlp.gate", "model.decoder.embed_positions"]:
        assert not factored(f"{name}.weight", (512, 128), plan)
    shapes = {W: (128, 64), "lm_head.weight": (512, 64), "norm.weight": (64,)}
    rest = {name: shape for name, shape in shapes.items() if name != W}
    assert LOWRANK.size(shapes, plan) == 16 + 16 * 192 // 2 + INT4.size(rest, Plan())


def test_an_unknown_parameter_is_named() -> None:
    with pytest.raises(ManifestError, match=r"layers\.0\.mixer\.weight: no rule says"):
        factored("layers.0.mixer.weight", (128, 64), Plan(rank=16))


def test_each_expert_is_a_matrix_of_its_own() -> None:
    experts, plan = torch.stack([_matrix(seed, M, N) for seed in range(3)]), Plan(rank=4)
    name = "model.layers.0.mlp.experts.down_proj"
    assert factored(name, (3, M, N), plan)
    payload = LOWRANK.encode({name: experts}, plan)
    alone = [LOWRANK.encode({name: one}, plan) for one in experts]
    assert payload == b"".join(alone) and LOWRANK.size({name: (3, M, N)}, plan) == len(payload)
    decoded = LOWRANK.decode(payload, {name: (3, M, N)}, plan)[name]
    for one, part in zip(decoded, alone, strict=True):
        assert torch.equal(one, LOWRANK.decode(part, {name: (M, N)}, plan)[name])
    assert LOWRANK.fault({name: experts}, payload, plan) == ""
    assert LOWRANK.fault({name: -experts}, payload, plan) != ""
    moved = experts + 1e-5
    again = [LOWRANK.encode({name: one}, plan, (part, plan)) for one, part in zip(moved, alone, strict=True)]
    assert LOWRANK.encode({name: moved}, plan, (payload, plan)) == b"".join(again)
    bad = bytearray(payload)
    bad[len(alone[0]) + 4] = 0x88  # two codes of -8, of the second expert
    with pytest.raises(CodecError, match=f"{name}: a code is -8"):
        LOWRANK.decode(bytes(bad), {name: (3, M, N)}, plan)


def test_what_is_not_factored_is_int4() -> None:
    tensors = {"embed_tokens.weight": _matrix(0, 50, 30), "norm.weight": _matrix(1, 1, 200).view(-1)}
    assert LOWRANK.encode(tensors, Plan(rank=8)) == INT4.encode(tensors, Plan())


@pytest.mark.parametrize(("rows", "columns", "rank"), [(M, N, 5), (300, 700, 32), (257, 33, 7), (64, 64, 1)])
def test_decoding_is_exact_whatever_the_order_of_summation(rows: int, columns: int, rank: int) -> None:
    """The largest spread of exponents; components in other orders and blocks, in float64 and in whole numbers."""
    codes = _codes(rank, rows + columns)
    codes[:, rows] = 1
    spread = 46 - math.ceil(math.log2(rank))
    exponents = sorted(np.random.default_rng(0).integers(-spread, 1, size=rank).tolist(), reverse=True)
    exponents[0], exponents[-1] = 0, -spread if rank > 1 else 0
    order = sorted(range(rank), key=lambda j: (-exponents[j], codes[j].astype(np.int8).tobytes()))
    decoded = _decode(_payload(exponents, codes[order]), rank, (rows, columns)).numpy()

    p, q = codes[order, :rows] * 2.0 ** np.array(exponents)[:, None], codes[order, rows:].astype(np.float64)
    for seed in range(5):
        shuffled = np.random.default_rng(seed).permutation(rank)
        total = np.zeros((rows, columns))
        for part in np.array_split(shuffled, 1 + seed):
            total += p[part].T @ q[part]
        assert np.array_equal(decoded, total.astype(np.float32))
    forwards, backwards = np.zeros((rows, columns)), np.zeros((rows, columns))
    for j in range(rank):
        forwards += np.outer(p[j], q[j])
        backwards += np.outer(p[rank - 1 - j], q[rank - 1 - j])
    assert np.array_equal(forwards, backwards) and np.array_equal(decoded, forwards.astype(np.float32))
    for row, column in [(0, 0), (rows - 1, columns - 1), (rows // 2, 3)]:
        exact = sum(Fraction(p[j, row]) * int(q[j, column]) for j in range(rank))
        assert Fraction(float(forwards[row, column])) == exact


def test_decoding_gives_the_golden_bits() -> None:
    decoded = _decode(_payload([30, 9, 2, -1, -13], _codes(5)), 5)
    digest = weights.weights_hash({"w": decoded}).hex()
    assert digest == "812ce6d3eb360ea52bd685fb02b2400cc4698c12d081413ed785e01943b2c7ee"


def _changed(codes: np.ndarray, *changes: tuple[int, int | slice, int]) -> np.ndarray:
    codes = codes.copy()
    for row, column, value in changes:
        codes[row, column] = value
    return codes


GOOD = _codes(3)
P, Q, ALL = slice(0, M), slice(M, None), slice(None)


@pytest.mark.parametrize(
    ("exponents", "codes", "reason"),
    [
        ([3, 2, 1], _changed(GOOD, (1, 7, -8)), "a code is -8"),
        ([3, 2, 1], _changed(GOOD, (1, P, 0)), "zero and not all of it"),
        ([3, 2, 1], _changed(GOOD, (2, Q, 0)), "zero and not all of it"),
        ([3, 2, 1], _changed(GOOD, (2, ALL, 0)), "zero and not all of it"),
        ([3, 0, 1], _changed(GOOD, (1, ALL, 0)), "or not at the end"),
        ([3, 2, 1], GOOD * np.array([[1], [-1], [1]]), "another sign"),
        ([3, 2, 1], _changed(GOOD, (1, P, 0), (1, 0, 2)), "power of two"),
        ([3, 2, 1], _changed(GOOD, (0, Q, 0), (0, M, 4)), "power of two"),
        ([3, 1, 2], GOOD, "not in their order"),
        ([3, 3, 3], _changed(GOOD, (0, 1, 3), (1, 1, 2), (2, 1, 4)), "not in their order"),
        ([3, 3, 1], GOOD[[0, 0, 1]], "not in their order"),
        ([101, 100, 99], GOOD, "an exponent is above 100"),
        ([20, 2, -25], GOOD, "the exponents lie more than 44 apart"),
        ([100, 2, -128], GOOD, "the exponents lie more than 44 apart"),
    ],
)
def test_refuses_what_it_would_never_make(exponents: list[int], codes: np.ndarray, reason: str) -> None:
    assert _decode(_payload([20, 2, -24], GOOD), 3).any()  # 44 + 6 + log2(3) is within 52 bits
    with pytest.raises(CodecError, match=f"{W}: .*{reason}"):
        _decode(_payload(exponents, codes), 3)


def test_the_last_half_byte_is_zero_where_the_codes_are_odd() -> None:
    payload = bytearray(_payload([1], _codes(1, 71)))
    assert _decode(bytes(payload), 1, (M, 31)).any()
    payload[-1] |= 0x10
    with pytest.raises(CodecError, match="the padding is not zero"):
        _decode(bytes(payload), 1, (M, 31))


@pytest.mark.parametrize("exponent", [-128, 100])
def test_the_extreme_exponents_are_finite(exponent: int) -> None:
    decoded = _decode(_payload([exponent], np.full((1, M + N), 7)), 1)
    assert (decoded == 49 * 2.0**exponent).all() and torch.isfinite(decoded).all()


def test_a_warm_start_comes_close_to_the_best_rank() -> None:
    """From its own previous payload the search finds, after a few rounds, what a full decomposition would."""
    matrix, plan, shapes = _matrix(0, 200, 120, decay=0.7), Plan(rank=16), {W: (200, 120)}
    values = torch.linalg.svdvals(matrix.double())
    best = float((values[16:].square().sum() / values.square().sum()).sqrt())
    previous, lost = None, []
    for _ in range(5):
        payload = LOWRANK.encode({W: matrix}, plan, previous)
        lost.append(float((LOWRANK.decode(payload, shapes, plan)[W] - matrix).norm() / matrix.norm()))
        previous = payload, plan
    assert lost[-1] < lost[0] - 0.05
    assert lost[-1] < 1.1 * best
    wider, narrower = Plan(rank=24), Plan(rank=8)
    for other in (wider, narrower):  # the plan may change between the rounds
        warm, cold = (LOWRANK.encode({W: matrix}, other, start) for start in (previous, None))
        decoded = [LOWRANK.decode(payload, shapes, other)[W] for payload in (warm, cold)]
        assert (decoded[0] - matrix).norm() < (decoded[1] - matrix).norm()


@pytest.mark.parametrize("rank", [1, 2, 3, 6])
def test_degenerate_matrices_have_a_payload(rank: int) -> None:
    """Fewer directions than components, equal rows, single values, and sizes at the ends of the range."""
    one = torch.zeros(24, 20)
    one[3, 4] = -3e4
    ramp = torch.arange(24.0)[:, None] * torch.ones(20)
    both = torch.cat([torch.full((12, 20), 1e4), torch.full((12, 20), 1e-30)])
    spread = 10.0 ** -torch.arange(24.0)[:, None] * _matrix(0, 24, 20, size=1)
    for matrix in (one, ramp, both, spread, torch.full((24, 20), 1e-38), torch.ones(24, 20)):
        payload = LOWRANK.encode({W: matrix}, Plan(rank=rank))
        decoded = _decode(payload, rank, (24, 20))
        assert (decoded - matrix).norm() <= 0.4 * matrix.norm() + 1e-20
        assert LOWRANK.encode({W: decoded}, Plan(rank=rank), (payload, Plan(rank=rank)))


def test_small_matrices_never_get_two_equal_components() -> None:
    for seed in range(300):
        numbers = np.random.default_rng(seed)
        matrix = torch.from_numpy(numbers.integers(-1, 2, size=(9, 8)).astype(np.float32))
        payload = LOWRANK.encode({W: matrix}, Plan(rank=4))
        _decode(payload, 4, (9, 8))  # raises for two equal ones
        exponents = np.frombuffer(payload[:4], np.int8)
        assert all(one >= next for one, next in pairwise(exponents[exponents != 0]))
