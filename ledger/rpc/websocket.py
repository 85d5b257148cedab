"""A websocket to a chain node: requests of any thread with their answers, and each new head as soon as there is one."""

import itertools
import threading
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TooSlow
from contextlib import ExitStack
from typing import Any

import msgspec
from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection, connect

from dlx.ground.meter import Meter
from dlx.ground.untrusted import decode_json

_FRAME = 8  # bytes around a message, about
_SILENCE = 60.0  # s without a new head, after which it is asked for
_SUBSCRIBE = {"jsonrpc": "2.0", "method": "eth_subscribe", "params": ["newHeads"]}
_LATEST = {"jsonrpc": "2.0", "method": "eth_getBlockByNumber", "params": ["latest", False]}


class SocketBroken(Exception):
    """The chain node cannot be reached, hung up, sent no JSON, or left something without an answer."""


class WebSocket:
    """Opened when it is first needed, and again after it broke. Thread-safe."""

    def __init__(self, url: str, direct: bool, most: int, meter: Meter) -> None:
        """`direct`: by no proxy; `most`: bytes of one message, unpacked."""
        self._url, self._direct, self._most, self._meter = url, direct, most, meter
        self._opening = threading.Lock()
        self._line: _Line | None = None

    def ask(self, request: bytes, timeout: float) -> Any:
        """The answer to a JSON-RPC request, or a batch. Raises SocketBroken."""
        return self._opened(timeout).ask(decode_json(request), timeout)

    def tells(self, timeout: float) -> bool:
        """Whether the chain node tells of new heads. Raises SocketBroken."""
        return self._opened(timeout).head is not None

    def newer(self, known: bytes, seconds: float, timeout: float) -> dict[str, Any] | None:
        """The header of the newest block as soon as it is another than `known`; None after so many seconds. Raises
        SocketBroken."""
        return self._opened(timeout).newer("0x" + known.hex(), seconds, timeout)

    def _opened(self, timeout: float) -> "_Line":
        with self._opening:
            if self._line is None or self._line.is_broken:
                self._line = _Line(self._connect(timeout), self._meter, timeout)
            return self._line

    def _connect(self, timeout: float) -> ClientConnection:
        try:
            line = connect(
                self._url, proxy=None if self._direct else True, max_size=self._most, open_timeout=timeout,
                close_timeout=1.0, user_agent_header="dlx-node",
            )  # fmt: skip
            return ExitStack().enter_context(line)  # it is closed where it breaks
        except (OSError, WebSocketException) as error:
            raise SocketBroken(type(error).__name__) from None


class _Line:
    """One connection, from its opening until it breaks."""

    def __init__(self, connection: ClientConnection, meter: Meter, timeout: float) -> None:
        self.is_broken = False
        self.head: dict[str, Any] | None = None  # the newest of which it told; None: it tells of none
        self._connection, self._meter = connection, meter
        self._ids, self._heard = itertools.count(1), 0.0
        self._changed = threading.Condition()
        self._asked: dict[int, Future[Any]] = {}  # by the id of each request
        threading.Thread(target=self._listen, daemon=True, name="websocket").start()
        subscribed = self.ask(_SUBSCRIBE, timeout)
        if isinstance(subscribed, dict) and subscribed.get("result"):
            self._look(timeout)

    def ask(self, request: Any, timeout: float) -> Any:
        """With ids of this line's own on the way, since threads know nothing of each other's."""
        members = request if isinstance(request, list) else [request]
        ids = {next(self._ids): member.get("id") for member in members}
        numbered = [{**member, "id": mine} for mine, member in zip(ids, members, strict=True)]
        answer: Future[Any] = Future()
        with self._changed:
            if self.is_broken:
                raise SocketBroken("it hung up")
            self._asked |= dict.fromkeys(ids, answer)
        try:
            data = msgspec.json.encode(numbered if isinstance(request, list) else numbered[0])
            self._connection.send(data.decode())
            self._meter.add(sent=len(data) + _FRAME)
            found = answer.result(timeout)
        except TooSlow:
            self._break()  # else it could be silent for ever
            raise SocketBroken("no answer in time") from None
        except (OSError, WebSocketException) as error:
            raise SocketBroken(type(error).__name__) from None
        finally:
            with self._changed:
                for mine in ids:
                    self._asked.pop(mine, None)
        for one in found if isinstance(found, list) else [found]:
            if isinstance(one, dict) and isinstance(one.get("id"), int):
                one["id"] = ids.get(one["id"])
        return found

    def newer(self, known: str, seconds: float, timeout: float) -> dict[str, Any] | None:
        if time.monotonic() > self._heard + _SILENCE:  # subscriptions have been seen to end without a word
            self._look(timeout)
        with self._changed:
            self._changed.wait_for(lambda: self.is_broken or self._other(known) is not None, seconds)
            if self.is_broken:
                raise SocketBroken("it hung up")
            return self._other(known)

    def _look(self, timeout: float) -> None:
        latest = self.ask(_LATEST, timeout)
        self._see(_header(latest.get("result") if isinstance(latest, dict) else None))

    def _see(self, head: dict[str, Any] | None) -> None:
        if head is not None:
            with self._changed:
                self.head, self._heard = head, time.monotonic()
                self._changed.notify_all()

    def _other(self, known: str) -> dict[str, Any] | None:
        return self.head if self.head is not None and self.head["hash"] != known else None

    def _listen(self) -> None:
        try:
            while True:
                text = self._connection.recv()
                self._meter.add(received=len(text) + _FRAME)
                self._take(decode_json(text))
        except (OSError, WebSocketException, msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            pass  # whoever waits is told
        finally:
            self._break()

    def _take(self, message: Any) -> None:
        first = message[0] if isinstance(message, list) and message else message
        if not isinstance(first, dict):
            return
        if first.get("method") == "eth_subscription":
            params = first.get("params")
            self._see(_header(params.get("result") if isinstance(params, dict) else None))
            return
        members = message if isinstance(message, list) else [message]
        ids = (one.get("id") for one in members if isinstance(one, dict))
        with self._changed:
            asked = next((self._asked[one] for one in ids if isinstance(one, int) and one in self._asked), None)
        if asked is not None and not asked.done():
            asked.set_result(message)

    def _break(self) -> None:
        with self._changed:
            self.is_broken = True
            waiting = list(self._asked.values())
            self._changed.notify_all()
        for one in waiting:
            if not one.done():
                one.set_exception(SocketBroken("it hung up"))
        self._connection.close()


def _header(found: Any) -> dict[str, Any] | None:
    """What names itself as one; what else it says is judged by who uses it."""
    return found if isinstance(found, dict) and isinstance(found.get("hash"), str) else None
