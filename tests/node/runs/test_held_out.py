"""The ledger's record of held-out losses: the lower median of what drawn members said first."""

from types import SimpleNamespace
from typing import Any

import pytest

from dlx.node.round.challenges.evaluation import evaluation_of
from dlx.node.runs.held_out import HeldOut, held_out
from tests.node.round.challenges.test_evaluation import BLOCK, seal


def view(said: dict[str, tuple[int, int]], rounds: int = 8) -> Any:
    """Of one stage and four replicas; `said` by account: sum and count."""
    sealed = {(0, round): seal(0, [0, 1, 2, 3], round) for round in range(rounds)}
    for one in sealed.values():
        one.at = SimpleNamespace(block=one.round)

    def evaluation(account: str, version: int) -> Any:
        return SimpleNamespace(sum=said[account][0], count=said[account][1]) if account in said else None

    return SimpleNamespace(
        config=SimpleNamespace(stages=1), sealed=sealed, next_round=lambda stage: rounds, evaluation=evaluation
    )


def manifest(every: int = 8, replicas: int = 3) -> Any:
    return SimpleNamespace(
        evaluation=SimpleNamespace(every=every, replicas=replicas),
        audit=SimpleNamespace(draw_after=2),
        model=SimpleNamespace(config={"vocab_size": 256}),
    )


def record(said: dict[str, tuple[int, int]], replicas: int = 3) -> HeldOut:
    return held_out(view(said), manifest(replicas=replicas), lambda number: BLOCK)[8]


def drawn(replicas: int = 3) -> list[str]:
    return [one.accounts[-1] for one in evaluation_of([seal(0, [0, 1, 2, 3])], BLOCK, replicas).evaluators]


def test_the_lower_median_of_those_that_were_drawn_counts() -> None:
    first, second, third = drawn()
    stranger = ({f"account {replica}/0" for replica in range(4)} - {first, second, third}).pop()
    said = {first: (18_000_000, 6), second: (6_000_000, 6), third: (12_000_000, 6), stranger: (1, 6)}
    found = record(said)
    assert (found.loss, found.per, found.missing) == (2.0, "byte", ())
    assert found.said == ((first, 3.0), (second, 1.0), (third, 2.0)), "in the order of the draw, and no stranger"
    assert record({first: (18_000_000, 6), second: (6_000_000, 6)}).loss == 1.0, "of two the lower"


@pytest.mark.parametrize("lie", [1, 10**15])
def test_one_liar_of_three_moves_it_no_further_than_the_honest_are_apart(lie: int) -> None:
    first, second, third = drawn()
    assert record({first: (12_000_000, 6), second: (12_000_006, 6), third: (lie, 6)}).loss in (2.0, 2.000001)


def test_silence_shows() -> None:
    first, second, third = drawn()
    found = record({second: (12_000_000, 6)})
    assert (found.loss, found.missing) == (2.0, (first, third))
    assert record({}) == HeldOut(8, None, "byte", (), (first, second, third))


def test_only_what_is_drawn_is_on_record() -> None:
    found = held_out(view({}), manifest(every=2), {block: BLOCK for block in (3, 7)}.get)
    assert list(found) == [2, 6]
    assert list(held_out(view({}), manifest(every=2), lambda number: BLOCK, 5)) == [6, 8]
    assert held_out(view({}), manifest(every=0), lambda number: BLOCK) == {}
