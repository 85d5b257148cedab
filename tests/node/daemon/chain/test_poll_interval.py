"""When a chain that tells nothing is looked at."""

import pytest

from dlx.node.daemon.chain.poll_interval import QUICK, RARE, next_look


@pytest.mark.parametrize(
    ("spacing", "since_block", "is_awaited", "notice", "expected"),
    [
        (None, 0, False, 600, QUICK),  # nothing is known yet
        (12, 0, True, 600, 12),  # no block comes earlier
        (12, 11, True, 600, 1.5),  # one is due: it may be late
        (12, 500, True, 600, 1.5),
        (0.25, 0, True, 600, QUICK),
        (2, 0, False, 600, RARE),  # a round trains, and nothing is due
        (2, 0, False, 15, 15 / 4),  # an accusation has to be seen in time
        (12, 0, False, 15, 12),
        (0, 9, False, 0, QUICK),
    ],
)
def test_no_look_is_wasted_and_none_comes_too_late(
    spacing: float | None, since_block: float, is_awaited: bool, notice: float, expected: float
) -> None:
    assert next_look(spacing, since_block, is_awaited, notice) == expected
