"""The file of messages, as its owner writes it and as a stranger may."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlx.node.daemon.mailbox.messages_file import MOST_BYTES, MOST_BYTES_OF_ONE, pack, unpack
from dlx.p2p.wire import WireError


@given(st.lists(st.binary(min_size=1, max_size=50)))
def test_what_is_packed_is_unpacked(messages: list[bytes]) -> None:
    assert unpack(pack(messages)) == messages


@given(st.binary(max_size=100))
def test_junk_is_messages_or_refused(data: bytes) -> None:
    with suppress(WireError):
        assert pack(unpack(data)) == data


def test_what_has_no_room_is_left_out_from_the_end() -> None:
    most = [bytes([at]) * MOST_BYTES_OF_ONE for at in range(100)]
    found = unpack(pack(most))
    assert found == most[: len(found)] and len(found) > 30 and len(pack(most)) <= MOST_BYTES
    for wrong in (b"\0", b"\0\0", b"\0\2x", (MOST_BYTES_OF_ONE + 1).to_bytes(2, "big") + bytes(9000)):
        with pytest.raises(WireError):
            unpack(wrong)
