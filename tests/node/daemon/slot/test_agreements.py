"""What a node signs of its pipes, and takes signed of its neighbours."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from dlx.ledger.typed import Domain, account_of
from dlx.node.daemon.slot.agreements import Agreements
from dlx.node.home.keys.slashing_protection import Contradiction, SlashingProtection
from dlx.p2p.frames import PipeTensor
from dlx.p2p.wire import WireError
from dlx.training.inner.traffic import RECORDED

DOMAIN, RUN = Domain(31337, "0x" + "22" * 20), b"r" * 32
FIRST, SECOND = b"\x11" * 32, b"\x12" * 32


def _of(folder: Path, key: bytes, stage: int, replica: int = 3) -> Agreements:
    return Agreements(SlashingProtection(folder / f"{key.hex()}.sqlite", key, DOMAIN), DOMAIN, RUN, (replica, stage))


def _piece(recorded: bytes, kind: str = "barrier", round: int = 7) -> PipeTensor:
    return PipeTensor(round, kind, 10, 0, len(recorded), 0, memoryview(recorded))


def test_neighbours_take_what_each_other_signed_and_nothing_else(tmp_path: Path) -> None:
    first, second = _of(tmp_path, FIRST, 0), _of(tmp_path, SECOND, 1)
    sent = first.signed("next", _piece(b"a" * 32))
    assert sent.total == len(sent.data) == RECORDED and bytes(sent.data[:32]) == b"a" * 32
    second.require("previous", sent, account_of(FIRST))
    back = second.signed("previous", _piece(b"a" * 32, "release"))
    first.require("next", back, account_of(SECOND))
    tampered = replace(sent, data=memoryview(b"b" * 32 + bytes(sent.data[32:])))
    for wrong, member in ((sent, account_of(SECOND)), (sent, None), (tampered, account_of(FIRST)),
                          (replace(sent, round=8), account_of(FIRST)),
                          (replace(sent, data=memoryview(bytes(RECORDED))), account_of(FIRST))):  # fmt: skip
        with pytest.raises(WireError, match="not signed by its member"):
            second.require("previous", wrong, member)
    with pytest.raises(WireError):
        _of(tmp_path, SECOND, 1, replica=2).require("previous", sent, account_of(FIRST))


def test_a_round_that_is_trained_again_with_another_result_is_not_agreed_on_again(tmp_path: Path) -> None:
    """Else a neighbour could publish the first one, and prove us false."""
    first = _of(tmp_path, FIRST, 0)
    sent = first.signed("next", _piece(b"a" * 32))
    assert first.signed("next", _piece(b"a" * 32)) == sent
    with pytest.raises(Contradiction):
        first.signed("next", _piece(b"b" * 32))
