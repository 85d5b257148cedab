"""The draw: fair, reproducible, and bound to everything that it names."""

from collections import Counter

import pytest
from eth_utils import keccak

from dlx.node.round.challenges.draw import Draw, Drawing, Known, checkers, draw, seed_of

RUN, BLOCK = b"\x11" * 32, b"\x22" * 32
DIGESTS = [b"\x33" * 32, b"\x44" * 32]


def test_the_seed_depends_on_everything_it_names() -> None:
    seed = seed_of(BLOCK, RUN, 7, DIGESTS)
    assert seed == keccak(BLOCK + RUN + (7).to_bytes(4, "big") + DIGESTS[0] + DIGESTS[1])
    others = [
        seed_of(RUN, RUN, 7, DIGESTS),
        seed_of(BLOCK, BLOCK, 7, DIGESTS),
        seed_of(BLOCK, RUN, 8, DIGESTS),
        seed_of(BLOCK, RUN, 7, DIGESTS[::-1]),
    ]
    assert len({seed, *others}) == 5
    with pytest.raises(ValueError, match="32 bytes"):
        seed_of(b"short", RUN, 7, DIGESTS)


def test_the_share_is_how_often_a_segment_is_drawn_whichever_it_is() -> None:
    drawn = [one for round in range(200) for one in draw(_seed(round), round, dict.fromkeys(range(8), 5), 1 / 16)]
    assert 437 <= len(drawn) <= 563  # 500 expected, 21.7 the standard deviation
    for part in ("replica", "segment"):
        counts = Counter(getattr(one, part) for one in drawn)
        assert counts.keys() == set(range(8 if part == "replica" else 5))
        assert max(counts.values()) < 1.6 * min(counts.values())
    twice = Counter((one.round, one.replica) for one in drawn)
    assert 34 <= sum(count > 1 for count in twice.values()) <= 77  # 55 expected, 7.3 the standard deviation


def test_a_share_of_one_draws_all_and_of_zero_none() -> None:
    assert draw(_seed(1), 1, {3: 1, 1: 2}, 1.0) == [Draw(1, 1, 0), Draw(1, 1, 1), Draw(1, 3, 0)]
    assert draw(_seed(1), 1, dict.fromkeys(range(64), 1), 0.0) == []


def test_others_that_are_counted_and_later_segments_change_nothing_for_a_segment() -> None:
    alone, among = draw(_seed(4), 4, {2: 9}, 0.5), draw(_seed(4), 4, dict.fromkeys(range(8), 30), 0.5)
    assert alone == [one for one in among if one.replica == 2 and one.segment < 9]


def test_checkers_take_turns_by_round_and_by_segment() -> None:
    members = ["0x" + f"{one:040x}" for one in range(6)]
    assert {checkers(_seed(round), 0, 0, members)[0] for round in range(60)} == set(members)
    assert {checkers(_seed(1), 0, segment, members)[0] for segment in range(60)} == set(members)
    assert checkers(_seed(1), 0, 0, members) == checkers(_seed(1), 0, 0, members[::-1])


@pytest.mark.parametrize(("confirmations", "settled"), [(0, 164), (4, 164), (200, 300)])
def test_a_hash_is_told_once_it_is_confirmed_and_settled_when_no_reorg_takes_it_back(
    confirmations: int, settled: int
) -> None:
    drawing = Drawing((), 100, confirmations, 1.0, 5)
    assert drawing.known(99 + confirmations) is Known.TO_COME
    assert drawing.known(settled - 1) is (Known.TOLD if confirmations < 200 else Known.TO_COME)
    assert drawing.known(settled) is Known.SETTLED


def test_under_a_pinned_head_what_is_there_is_settled() -> None:
    drawing = Drawing((), 100, 4, 1.0, 5)
    assert (drawing.known(99, final=True), drawing.known(100, final=True)) == (Known.TO_COME, Known.SETTLED)


def _seed(round: int) -> bytes:
    return seed_of(BLOCK, RUN, round, DIGESTS)
