"""One question to a process of its own beside the training process, and its answer; the process ends with that."""

import os
import signal
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn, TypeVar

import msgspec
import trio
from msgspec import Struct

from dlx.node.trainer.spawn import spawn

NICE = 10  # below the training process, which others wait for
_LENGTH = struct.Struct(">I")
_MOST = 1 << 26  # bytes of a message: a trace grows with the inner steps
_Asked = TypeVar("_Asked", bound=Struct)
_Answer = TypeVar("_Answer", bound=Struct)


class JobFailed(Exception):
    """The process ended, or was too slow: it says nothing about what was asked."""


async def ask(kind: bytes, question: Struct, answer: type[_Answer], deadline_s: float) -> _Answer:
    """What a new process of this kind says. Raises JobFailed."""
    try:
        spawned = await trio.to_thread.run_sync(spawn, kind, abandon_on_cancel=True)
    except OSError as error:
        raise JobFailed(f"no process for it: {error}") from None
    try:
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(spawned.channel))
        with trio.move_on_after(deadline_s):
            await stream.send_all(_pack(question))
            data = await _read(stream)
            if data is not None:
                return msgspec.msgpack.decode(data, type=answer)
            raise JobFailed("the process ended")
        raise JobFailed(f"it took longer than {deadline_s:.0f} s")
    except (trio.BrokenResourceError, trio.ClosedResourceError, msgspec.MsgspecError) as error:
        raise JobFailed(f"the process ended: {error}") from None
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(spawned.end)


def serve(descriptor: int, question: type[_Asked], carry_out: Callable[[_Asked], Struct]) -> NoReturn:
    """The process's side: answers one question of the network process, and ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C reaches us too; the network process decides
    os.nice(NICE)
    with socket.socket(fileno=descriptor) as channel, suppress(ConnectionError):
        reader = channel.makefile("rb")
        (size,) = _LENGTH.unpack(reader.read(_LENGTH.size))
        channel.sendall(_pack(carry_out(msgspec.msgpack.decode(reader.read(size), type=question))))
    os._exit(0)


def _pack(message: Struct) -> bytes:
    body = msgspec.msgpack.encode(message)
    return _LENGTH.pack(len(body)) + body


async def _read(stream: trio.SocketStream) -> bytes | None:
    data = bytearray()
    while len(data) < _LENGTH.size or len(data) < _LENGTH.size + _LENGTH.unpack_from(data)[0]:
        part = await stream.receive_some(1 << 20)
        if not part or len(data) > _MOST:
            return None
        data += part
    return bytes(data[_LENGTH.size :])
