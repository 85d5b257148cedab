"""Whether a run stops early: windows of held-out losses, which of them count, and what liars and the silent gain."""

import random
from collections.abc import Collection
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest

from dlx.ground.constants import MICRO
from dlx.node.round.challenges.evaluation import evaluation_of
from dlx.node.round.rules.stopping import blocks, has_stalled, is_over, median, seals_needed
from dlx.training.recipe.recipe import Stop
from tests.node.round.challenges.test_evaluation import BLOCK, seal

REPLICAS, ROUNDS, WINDOW = [0, 1, 2, 3], 40, 4
LATE = 10**6  # a block after all others


def manifest(patience: int = 3, every: int = 2, replicas: int = 3) -> Any:
    return SimpleNamespace(
        stop=Stop(patience=patience, min_improvement=0.1),
        evaluation=SimpleNamespace(every=every, replicas=replicas),
        audit=SimpleNamespace(draw_after=2, window=WINDOW),
    )


def drawn(version: int, replicas: int = 3) -> list[str]:
    return [one.accounts[-1] for one in evaluation_of([seal(0, REPLICAS, version - 1)], BLOCK, replicas).evaluators]


def view(said: dict[int, dict[str, float]], late: Collection[tuple[int, str]] = ()) -> Any:
    """Of one stage; `said`: by version what accounts said in the block after its draw, `late` ones never in time."""
    sealed = {(0, round): seal(0, REPLICAS, round) for round in range(ROUNDS)}
    for one in sealed.values():
        one.at = SimpleNamespace(block=10 * one.round, block_hash=one.digest)

    def evaluation(account: str, version: int) -> Any:
        if account not in said.get(version, {}):
            return None
        block = LATE if (version, account) in late else 10 * version - 5
        return SimpleNamespace(sum=round(said[version][account] * 6 * MICRO), count=6, at=SimpleNamespace(block=block))

    return SimpleNamespace(config=SimpleNamespace(stages=1), sealed=sealed, evaluation=evaluation)


def honest(losses: dict[int, float]) -> dict[int, dict[str, float]]:
    return {version: dict.fromkeys(drawn(version), loss) for version, loss in losses.items()}


def over(said: dict[int, dict[str, float]], round: int = 14, **changes: Any) -> bool | None:
    return is_over(view(said, **changes), manifest(), round, lambda number: BLOCK)


FALLING = {version: 5.0 - version / 10 for version in range(2, 14, 2)}
FLAT = dict.fromkeys(range(2, 14, 2), 4.0)


def test_a_run_stops_where_the_newest_window_is_no_better_than_the_one_before() -> None:
    assert over(honest(FLAT)) is True and over(honest(FALLING)) is False
    assert over(honest(FLAT), round=12) is False, "version 12 is not evaluated before round 12 opens"
    assert over(honest({version: 5 - loss for version, loss in FALLING.items()})) is True, "it gets worse"
    slow = {version: 4.0 - version / 100 for version in FLAT}
    assert over(honest(slow)) is True, "0.06 nats are less than the 0.1 that are wanted"


def test_one_lie_about_a_version_moves_nothing_however_large() -> None:
    """By a majority of those that were drawn for it, or in one version of a window alone."""
    for version in FALLING:
        for lie in (0.000001, 900.0):
            for losses, expected in ((FALLING, False), (FLAT, True)):
                said = honest(losses)
                said[version] = dict.fromkeys(said[version], lie)
                assert over(said) is expected, (version, lie)


def test_what_came_after_the_round_opened_decides_nothing() -> None:
    """Else who proposes could wait for a loss that suits it, and members that see the chain later would disagree."""
    version, account = 12, drawn(12)[0]
    assert over(honest(FLAT), late={(version, account)}) is False
    assert over(honest(FLAT), late={(2, drawn(2)[0])}) is True, "of old versions nobody speaks any more: a majority did"


def test_silence_delays_and_a_silent_majority_takes_its_version_away() -> None:
    said = honest(FLAT)
    del said[12][drawn(12)[0]]
    assert over(said) is False and over(said | honest({14: 4.0, 16: 4.0}), round=17) is True
    gone = honest(FLAT)
    for account in drawn(8)[:2]:
        del gone[8][account]
    assert over(gone) is False, "five versions are too few"


def test_who_was_not_drawn_says_nothing() -> None:
    said = {version: one | {"stranger": 0.1} for version, one in honest(FLAT).items()}
    for version in said:
        said[version] |= dict.fromkeys({f"account {replica}/0" for replica in REPLICAS} - {*drawn(version)}, 0.1)
    assert over(said) is True


def test_without_a_blocks_hash_or_an_old_seal_nobody_knows() -> None:
    assert is_over(view(honest(FLAT)), manifest(), 14, lambda number: None) is None
    pruned = view(honest(FLAT))
    del pruned.sealed[0, 3]
    assert blocks(pruned, manifest(), 14) is None and is_over(pruned, manifest(), 14, lambda number: BLOCK) is None
    assert blocks(view({}), manifest(), 14) == [10 * (version - 1) + 2 for version in range(2, 14, 2)]
    assert blocks(view({}), manifest(), 12) == [] == blocks(view({}), manifest(), 0)
    assert is_over(view({}), manifest(), 12, lambda number: None) is False, "too early to ask anybody"


def test_the_seals_that_it_takes_are_those_that_members_keep() -> None:
    asked = manifest(patience=3, every=2)
    for round in range(20, ROUNDS):
        kept = view(honest(dict.fromkeys(range(2, ROUNDS, 2), 4.0)))
        kept.sealed = {key: one for key, one in kept.sealed.items() if round - seals_needed(asked) <= key[1] < round}
        assert is_over(kept, asked, round, lambda number: BLOCK) is True


@pytest.mark.parametrize(
    ("replicas", "liars", "evaluators", "patience", "high", "low"),  # parts of the runs, by what the liars say
    [
        (8, 0, 3, 5, 0.0, 0.0),
        (8, 1, 3, 5, 0.0, 0.0),
        (8, 2, 3, 5, 0.39, 0.38),
        (8, 2, 4, 5, 0.0, 0.93),  # of an even number half is enough for a low lower median
        (8, 2, 5, 5, 0.0, 0.0),
        (8, 2, 3, 10, 0.01, 0.07),
        (32, 8, 9, 5, 0.01, 0.01),
    ],
)
def test_how_often_liars_end_a_run_that_still_improves(
    replicas: int, liars: int, evaluators: int, patience: int, high: float, low: float
) -> None:
    """In 100 evaluations, a fall of 0.02 nats each and as much noise."""
    stop = Stop(patience=patience)
    for lie, expected in ((99.0, high), (0.0, low)):
        chance, ended = random.Random(0), 0
        for _ in range(200):
            losses = []
            for number in range(100):
                loss = 5 - 0.02 * number + chance.gauss(0, 0.02)
                who = chance.sample(range(replicas), evaluators)
                losses.append(median([Fraction(lie if one < liars else loss) for one in who]))
            ended += any(has_stalled(stop, losses[: end + 1]) for end in range(100))
        assert abs(ended / 200 - expected) <= (0.1 if 0.1 < expected < 0.9 else 0.05)
