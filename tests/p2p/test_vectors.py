"""The package `msgpack` as a second implementation: it reads what nodes send, and writes the same bytes."""

from typing import Any

import msgpack
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import inspect

from dlx.p2p import wire
from dlx.p2p.frames import PipeFrame, PipeTensor, decode_frame, encode_frame
from tests.vectors import wire as vectors

PUBLISHED = msgpack.unpackb(vectors.FILE.read_bytes())
by_kind = pytest.mark.parametrize("kind", sorted(vectors.kinds(), key=lambda kind: kind.__name__))


def on_the_wire(message: msgspec.Struct) -> tuple[bytes, Any]:
    """A message's bytes, and what `msgpack` should read in them."""
    tag, fields = type(message).__struct_config__.tag, vectors.fields_of(message)
    if isinstance(message, PipeFrame):
        return encode_frame(message), [tag, *fields.values()]
    return wire.encode(message), {"type": tag, **fields}


def strategy(kind: inspect.Type) -> st.SearchStrategy:
    """Values of a field, from its schema: a new kind of message is covered without being written down here."""
    match kind:
        case inspect.IntType(ge=low, le=high):
            return st.integers(low, high)
        case inspect.BytesType(min_length=low, max_length=high):
            return st.binary(min_size=low or 0, max_size=min(high or 1000, 1000))
        case inspect.MemoryViewType(max_length=high):
            return st.binary(max_size=min(high or 1000, 1000)).map(memoryview)
        case inspect.StrType(pattern=str(pattern), max_length=high):
            return st.from_regex(pattern, alphabet=st.characters(max_codepoint=126)).filter(
                lambda text: len(text) <= high
            )
        case inspect.StrType(max_length=high):
            return st.text(max_size=high)
        case inspect.LiteralType(values=values):
            return st.sampled_from(values)
        case inspect.ListType(item_type=item, max_length=high):
            return st.lists(strategy(item), max_size=min(high, 8))
        case inspect.VarTupleType(item_type=item, max_length=high):
            return st.lists(strategy(item), max_size=min(high, 8)).map(tuple)
        case inspect.TupleType(item_types=items):
            return st.tuples(*map(strategy, items))
        case inspect.UnionType(types=types):
            return st.one_of(*map(strategy, types))
        case inspect.BoolType():
            return st.booleans()
        case inspect.NoneType():
            return st.none()
    raise AssertionError(f"no values for {kind}")


@by_kind
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(data=st.data())
def test_msgpack_reads_what_a_node_sends_and_writes_the_same_bytes(kind: type, data: st.DataObject) -> None:
    fields = {field.name: data.draw(strategy(field.type)) for field in inspect.type_info(kind).fields}
    sent, meant = on_the_wire(kind(**fields))
    assert msgpack.unpackb(sent) == meant
    assert msgpack.packb(meant) == sent


def test_a_frame_of_many_bytes_is_read_too() -> None:
    sent, meant = on_the_wire(PipeTensor(1, "activation", 3, 2, 70_000, 0, memoryview(bytes(70_000))))
    assert msgpack.unpackb(sent) == meant and msgpack.packb(meant) == sent


def test_the_published_vectors_are_of_this_protocol() -> None:
    assert vectors.content() == PUBLISHED, "the protocol changed: run python -m tests.vectors.wire and say so in docs"
    published = {vector["kind"] for vector in PUBLISHED["messages"] + PUBLISHED["frames"]}
    assert published == {kind.__name__ for kind in vectors.kinds()}, "every kind of message has its example"


@pytest.mark.parametrize("vector", PUBLISHED["messages"] + PUBLISHED["frames"], ids=lambda vector: vector["kind"])
def test_both_implementations_agree_on_the_published_vectors(vector: dict[str, Any]) -> None:
    """Field by field: what `msgpack` reads, what a node reads, and what is written down."""
    read, data = msgpack.unpackb(vector["bytes"]), vector["bytes"]
    if isinstance(read, list):
        assert read == [vector["tag"], *vector["fields"].values()]
        message: msgspec.Struct = decode_frame(data)
    else:
        assert read == {"type": vector["tag"], **vector["fields"]}
        assert list(read) == ["type", *vector["fields"]], "the order is the schema's"
        message = wire.decode(data)
    assert type(message).__name__ == vector["kind"]
    for name, value in vectors.fields_of(message).items():
        assert value == vector["fields"][name], name
    assert msgpack.packb(read) == data
