"""The draw: fair, reproducible, and bound to everything that it names."""

import pytest
from eth_utils import keccak

from dlx.node.round.challenges.draw import Draw, checkers, draw, seed_of

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


def test_the_share_is_how_often_a_replica_is_drawn() -> None:
    drawn = [one for round in range(500) for one in draw(_seed(round), round, dict.fromkeys(range(8), 5), 1 / 16)]
    assert 200 <= len(drawn) <= 300  # 250 expected, 15.3 the standard deviation
    assert {one.segment for one in drawn} == set(range(5))
    assert {one.replica for one in drawn} == set(range(8))


def test_a_share_of_one_draws_all_and_of_zero_none() -> None:
    assert [one.replica for one in draw(_seed(1), 1, {3: 1, 1: 1}, 1.0)] == [1, 3]
    assert draw(_seed(1), 1, dict.fromkeys(range(64), 1), 0.0) == []


def test_others_that_are_counted_change_nothing_for_a_replica() -> None:
    alone, among = draw(_seed(4), 4, {2: 9}, 1.0), draw(_seed(4), 4, dict.fromkeys(range(8), 9), 1.0)
    assert alone == [Draw(4, 2, among[2].segment)]


def test_a_replica_that_did_fewer_steps_is_drawn_as_often_and_in_a_segment_that_it_has() -> None:
    short = {replica: 1 + replica % 3 for replica in range(64)}
    drawn = draw(_seed(5), 5, short, 0.5)
    assert [one.replica for one in drawn] == [one.replica for one in draw(_seed(5), 5, dict.fromkeys(short, 9), 0.5)]
    assert {(one.replica % 3, one.segment) for one in drawn} == {(0, 0), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2)}


def test_checkers_take_turns() -> None:
    members = ["0x" + f"{one:040x}" for one in range(6)]
    firsts = {checkers(_seed(round), 0, members)[0] for round in range(60)}
    assert firsts == set(members)
    assert checkers(_seed(1), 0, members) == checkers(_seed(1), 0, members[::-1])


def _seed(round: int) -> bytes:
    return seed_of(BLOCK, RUN, round, DIGESTS)
