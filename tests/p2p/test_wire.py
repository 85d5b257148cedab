import os

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlx.p2p import wire
from dlx.p2p.frames import PipeTensor, PipeWant, decode_frame, encode_frame, in_two

H, S = b"h" * 32, b"s" * 65
MESSAGES = [
    wire.Hello((1, 4), ("f" * 32,) * 16, 2**63 - 1, b"L" * 20, H, "0.1.0" + 27 * "a", b"i" * 8),
    wire.ContributionMessage(bytes(961)),
    wire.ProposalMessage(H, 3, 7, 0, bytes(209 + 64 * 44), S),
    wire.AttestationMessage(H, 3, 7, H, S),
    wire.ReportMessage(H, 3, 7, 8, [H] * 128, [H] * 64, S),
    wire.RecordsRequest(3, 7, True, [b"8 bytes "] * 1400),
    wire.RecordsReply([bytes(8000), bytes(8000)]),
    wire.EvaluationMessage(H, bytes(321)),
    wire.PipeHello(H, 0, 1, b"a" * 20),
    wire.PipeAnswer("no such stage"),
    wire.BlobRequest(H, None, False, 0, 1 << 20),
    wire.BlobReply(None, None, 0),
]
kinds = pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)


def refused(data: bytes) -> str:
    with pytest.raises(wire.WireError) as info:
        wire.decode(data)
    return info.value.reason


@kinds
def test_every_message_survives_the_wire_and_fits_gossip(message):
    data = wire.encode(message)
    assert len(data) <= wire.GOSSIP_LIMIT
    assert wire.decode(data) == message
    assert wire.decode_as(type(message), data) == message


@kinds
def test_anything_but_the_exact_bytes_is_refused(message):
    data = wire.encode(message)
    fields = msgspec.msgpack.decode(data)
    assert refused(data + b"\0") == "malformed"
    assert refused(data[:-1]) == "malformed"
    assert refused(msgspec.msgpack.encode({**fields, "extra": 1})) == "schema"
    assert refused(msgspec.msgpack.encode(dict(reversed(fields.items())))) == "malformed"  # another order
    for name in fields:
        assert refused(msgspec.msgpack.encode({k: v for k, v in fields.items() if k != name})) == "schema"


def test_the_longest_hello_is_read_by_the_host():
    assert len(wire.encode(MESSAGES[0])) <= 1024


def test_versions_in_the_wrong_order_have_nothing_in_common():
    ours, theirs = (wire.Hello(versions, (), 1, b"L" * 20, H, "", b"i" * 8) for versions in ((2, 3), (9, 1)))
    assert ours.common_version(theirs) is None and theirs.common_version(ours) is None


@pytest.mark.parametrize(
    "message",
    [
        wire.ContributionMessage(bytes(928)),
        wire.ProposalMessage(H, 3, 7, 0, bytes(208), S),
        wire.ProposalMessage(H, 3, 7, 0, bytes(209 + 64 * 44 + 1), S),
        wire.AttestationMessage(H, 65536, 7, H, S),
        wire.ReportMessage(H, 3, 7, 8, [H] * 129, [], S),
        wire.EvaluationMessage(H, bytes(320)),
        wire.ReportMessage(H, 3, 7, 8, [b"short"], [], S),
        wire.Hello((1, 1), (), -1, b"L" * 20, H, "0.1.0", b"i" * 8),
        wire.Hello((1, 1), (), 1, b"L" * 20, H, "\x1b[2J", b"i" * 8),
        wire.Hello((1, 2**32), (), 1, b"L" * 20, H, "", b"i" * 8),
        wire.Hello((1,), (), 1, b"L" * 20, H, "", b"i" * 8),
        wire.Hello((1, 1), ("relay",) * 17, 1, b"L" * 20, H, "", b"i" * 8),
        wire.Hello((1, 1), ("r" * 33,), 1, b"L" * 20, H, "", b"i" * 8),
        wire.Hello((1, 1), ("",), 1, b"L" * 20, H, "", b"i" * 8),
        wire.PipeAnswer("two\nlines"),
    ],
)
def test_limits_of_the_schema_hold_both_ways(message):
    with pytest.raises(wire.WireError, match="schema"):
        wire.encode(message)
    assert refused(msgspec.msgpack.encode(message)) == "schema"


def test_size_is_checked_before_the_content():
    assert refused(bytes(wire.GOSSIP_LIMIT + 1)) == "oversize"


def test_another_kind_of_message_is_refused_where_one_is_expected():
    with pytest.raises(wire.WireError, match="expected Hello"):
        wire.decode_as(wire.Hello, wire.encode(MESSAGES[5]))


def decodes_or_wire_error(data: bytes) -> None:
    for decode in (wire.decode, decode_frame):
        try:
            decode(data)
        except wire.WireError as error:
            assert error.reason in ("oversize", "malformed", "schema")


@given(st.binary(max_size=2000))
def test_random_bytes_give_nothing_but_wire_errors(data):
    decodes_or_wire_error(data)


@given(st.sampled_from(MESSAGES), st.data())
def test_damaged_messages_give_nothing_but_wire_errors(message, draw):
    data = bytearray(wire.encode(message))
    for _ in range(draw.draw(st.integers(1, 4))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    decodes_or_wire_error(bytes(data))


leaves = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary()
trees = st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


@given(trees, st.sampled_from([type(m).__struct_config__.tag for m in MESSAGES]))
def test_wellformed_nonsense_gives_nothing_but_wire_errors(tree, tag):
    if isinstance(tree, dict):
        tree["type"] = tag
    decodes_or_wire_error(msgspec.msgpack.encode(tree))


def test_deep_nesting_is_an_error_like_any_other():
    decodes_or_wire_error(b"\x91" * 16_000)
    decodes_or_wire_error(b"\x81\xa4type" * 2_000)


def test_pipe_frames_survive_the_wire():
    for frame in (PipeTensor(1, "activation", 3, 2, 1000, 0, memoryview(os.urandom(1000))), PipeWant(4, True, 5)):
        assert decode_frame(encode_frame(frame)) == frame
        assert b"".join(in_two(frame)) == encode_frame(frame)
    for size in (0, 1, 255, 256, 65535, 65536):
        tensor = PipeTensor(1, "activation", 3, 2, size, 0, memoryview(bytes(size)))
        head, data = in_two(tensor)
        assert head + data == encode_frame(tensor) and data is tensor.data
