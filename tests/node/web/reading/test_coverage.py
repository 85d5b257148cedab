"""Which replicas were complete, at any place of the chain."""

import pytest

from dlx.ledger.abi import ZERO_ACCOUNT
from dlx.ledger.events import Convicted, Dismissed, Event, EventPosition, Evicted, Joined, Left, Reclaimed
from dlx.node.web.reading.coverage import Coverage

RUN, FIRST, SECOND, THIRD = b"\x01" * 32, f"0x{1:040x}", f"0x{2:040x}", f"0x{3:040x}"


def at(block: int) -> EventPosition:
    return EventPosition(block, bytes(32), 0, bytes(32), 1000 + block)


@pytest.mark.parametrize(
    "lost",
    [
        Left(RUN, SECOND, 0, 1, at(3)),
        Evicted(RUN, SECOND, 0, 1, 0, at(3)),
        Dismissed(RUN, SECOND, THIRD, 0, 1, ZERO_ACCOUNT, 0, at(3)),
        Reclaimed(RUN, THIRD, SECOND, 0, 1, at(3)),
        Convicted(RUN, SECOND, 1, 0, bytes(32), b"", at(3)),
    ],
    ids=lambda event: type(event).__name__,
)
def test_a_replica_is_complete_until_a_member_loses_its_slot(lost: Event) -> None:
    coverage = Coverage(2)
    for event in (Joined(RUN, FIRST, 0, 0, at(1)), Joined(RUN, SECOND, 0, 1, at(2)), lost):
        coverage.apply(event)
    coverage.apply(Joined(RUN, THIRD, 0, 1, at(4)))
    assert [coverage.complete((block, 0)) for block in (1, 2, 3, 4)] == [0, 1, 0, 1]
