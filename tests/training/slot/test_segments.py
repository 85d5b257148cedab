import pytest

from dlx.training.slot.segments import segment, segments_in


def test_segments_are_of_one_length_and_the_last_one_the_rest() -> None:
    assert [segments_in(steps, 20) for steps in (1, 20, 21, 40, 41)] == [1, 1, 2, 2, 3]
    assert [segment(index, 100, 45, 20) for index in range(3)] == [(100, 20), (120, 20), (140, 5)]
    assert segment(0, 7, 3, 20) == (7, 3)
    assert [segment(index, 7, 3, 2) for index in range(2)] == [(7, 2), (9, 1)]
    for index in (-1, 3):
        with pytest.raises(IndexError, match="no segment"):
            segment(index, 100, 45, 20)
