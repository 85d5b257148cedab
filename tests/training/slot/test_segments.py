import hashlib

import pytest

from dlx.training.slot.segments import SegmentState, prove, proves, segment, segments_in, segments_root


def _leaves(count: int) -> list[bytes]:
    return [SegmentState(bytes([index]) * 32, bytes([255 - index]) * 32).leaf() for index in range(count)]


def test_the_root_is_a_merkle_tree_of_hashed_pairs() -> None:
    def node(left: bytes, right: bytes) -> bytes:
        return hashlib.sha256(left + right).digest()

    a, b, c, d, e = leaves = _leaves(5)
    assert a == hashlib.sha256(bytes(32) + b"\xff" * 32).digest()
    assert segments_root([a]) == a
    assert segments_root([a, b]) == node(a, b)
    assert segments_root([a, b, c]) == node(node(a, b), c)
    assert segments_root(leaves) == node(node(node(a, b), node(c, d)), e)


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8, 11])
def test_every_state_can_be_proved_in_its_place_only(count: int) -> None:
    leaves = _leaves(count)
    root = segments_root(leaves)
    for index, leaf in enumerate(leaves):
        siblings = prove(leaves, index)
        assert proves(root, count - 1, index, leaf, siblings)
        for other in range(count):
            if other != index:
                assert not proves(root, count - 1, other, leaf, siblings)
        assert not proves(root, count - 1, index, leaves[index - 1], siblings)
        assert not proves(bytes(32), count - 1, index, leaf, siblings)
        assert not proves(root, count - 1, index, leaf, [*siblings, bytes(32)])
        assert not proves(root, count - 1, index, leaf, siblings[:-1])
        assert not proves(root, count - 1, count + index, leaf, siblings)
        assert not proves(root, count - 1, -1, leaf, siblings)


def test_an_inner_node_is_no_state() -> None:
    leaves = _leaves(4)
    left = segments_root(leaves[:2])
    assert not proves(segments_root(leaves), 3, 0, left, [segments_root(leaves[2:])])


def test_segments_are_twenty_steps_and_the_last_one_the_rest() -> None:
    assert [segments_in(steps) for steps in (1, 20, 21, 40, 41)] == [1, 1, 2, 2, 3]
    assert [segment(index, 100, 45) for index in range(3)] == [(100, 20), (120, 20), (140, 5)]
    assert segment(0, 7, 3) == (7, 3)
    for index in (-1, 3):
        with pytest.raises(IndexError, match="no segment"):
            segment(index, 100, 45)
