"""Who evaluates a version, and on what: fair, reproducible, and nobody's choice."""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from eth_utils import keccak

from dlx.ledger.abi import ZERO32
from dlx.ledger.typed import Evaluation
from dlx.node.round.challenges.draw import seed_of
from dlx.node.round.challenges.evaluation import EvaluationDraw, Evaluator, Part, evaluation_of, is_due, parts
from dlx.training.data.order import permuted

RUN, BLOCK = b"\x11" * 32, b"\x22" * 32
SAID = Evaluation(RUN, 8, 3, 1, b"\x05" * 32, ZERO32, 7, 2)


def seal(stage: int, replicas: list[int], round: int = 7) -> Any:
    records = tuple(SimpleNamespace(replica=replica) for replica in replicas)
    accounts = tuple(f"account {replica}/{stage}" for replica in replicas)
    return SimpleNamespace(run=RUN, round=round, digest=bytes([stage + 3]) * 32, records=records, accounts=accounts)


def test_the_lowest_of_those_that_all_stages_count_are_drawn_with_the_rounds_seed() -> None:
    seals = [seal(0, [0, 2, 3, 5]), seal(1, [0, 1, 3, 5])]
    seed = seed_of(BLOCK, RUN, 7, [one.digest for one in seals])
    lots = sorted([0, 3, 5], key=lambda replica: keccak(seed + b"evaluation" + replica.to_bytes(2, "big")))
    found = evaluation_of(seals, BLOCK, 2)
    assert found == EvaluationDraw(
        8,
        tuple(Evaluator(one, (f"account {one}/0", f"account {one}/1")) for one in lots[:2]),
        keccak(seed + b"held out"),
    )
    assert len(evaluation_of(seals, BLOCK, 64).evaluators) == 3, "as many as there are"
    assert evaluation_of([seal(0, []), seal(1, [])], BLOCK, 3).evaluators == ()


def test_every_replica_is_drawn_as_often() -> None:
    seals = [seal(0, list(range(8)))]
    counts = Counter(
        one.replica for block in range(400) for one in evaluation_of(seals, block.to_bytes(32, "big"), 2).evaluators
    )
    assert len(counts) == 8 and all(65 <= count <= 140 for count in counts.values())  # 100 expected


def test_samples_differ_and_are_of_the_held_out_data() -> None:
    draw = evaluation_of([seal(0, [0])], BLOCK, 1)
    found = draw.places(20, 1000)
    assert found == [permuted(draw.key, place, 1000) for place in range(20)]
    assert len(set(found)) == 20 and set(found) <= set(range(1000))
    assert sorted(draw.places(20, 5)) == [0, 1, 2, 3, 4], "all where there are fewer"
    assert found != evaluation_of([seal(0, [0])], RUN, 1).places(20, 1000)


@pytest.mark.parametrize(("every", "due"), [(0, []), (1, [1, 2, 3, 4, 5, 6]), (3, [3, 6])])
def test_the_genesis_is_not_evaluated(every: int, due: list[int]) -> None:
    manifest: Any = SimpleNamespace(evaluation=SimpleNamespace(every=every))
    assert [version for version in range(7) if is_due(manifest, version)] == due


def test_a_statement_has_to_be_such_as_its_part_makes() -> None:
    draw = EvaluationDraw(8, (Evaluator(3, ("a", "b")),), bytes(32))
    first, last = parts(draw)
    assert (first.before, last.before, last.account) == (None, first, "b")
    passed = replace(SAID, stage=0, previous=ZERO32, activations=b"\x06" * 32, sum=0, count=0)
    assert last.is_of(SAID) and first.is_of(passed) and not last.is_of(passed)
    for wrong in ({"version": 7}, {"replica": 2}, {"previous": ZERO32}, {"activations": RUN}, {"sum": 0}, {"count": 0}):
        assert not last.is_of(replace(SAID, **wrong)), wrong
    for wrong in ({"previous": RUN}, {"activations": ZERO32}, {"sum": 1}, {"count": 1}):
        assert not first.is_of(replace(passed, **wrong)), wrong
    assert Part(draw, draw.evaluators[0], 1) == last
