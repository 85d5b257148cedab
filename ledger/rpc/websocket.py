"""JSON-RPC by websocket: requests of any thread with their answers, and each new head as soon as there is one."""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TimedOut
from contextlib import ExitStack
from typing import Any

import msgspec
from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection, connect

from dlx.ground.meter import Meter
from dlx.ground.untrusted import decode_json
from dlx.ledger.rpc.json_rpc import MAX_ANSWER, NoAnswer, Request, encode, results

_FRAME = 8  # bytes around a message, about
_SILENCE = 15.0  # s without a new head, after which it is asked for
_SUBSCRIBE: Request = ("eth_subscribe", ("newHeads",))
_LATEST: Request = ("eth_getBlockByNumber", ("latest", False))


class WebSocketTransport:
    """As `endpoint.Transport` says. Opened when it is first needed, and again after it broke."""

    def __init__(self, url: str, direct: bool, meter: Meter) -> None:
        """`direct`: by no proxy."""
        self._url, self._direct, self._meter = url, direct, meter
        self._opening = threading.Lock()
        self._connection: _Connection | None = None

    def ask(self, requests: Sequence[Request], timeout: float) -> list[Any]:
        answer, first_id = self._opened(timeout).exchange(requests, timeout)
        return results(requests, answer, first_id=first_id)

    def tells(self, timeout: float) -> bool:
        return self._opened(timeout).head is not None

    def next_head(self, seen: bytes, seconds: float, timeout: float, contracts: Sequence[str]) -> Any:
        return self._opened(timeout).next_head("0x" + seen.hex(), seconds, timeout)

    def _opened(self, timeout: float) -> "_Connection":
        with self._opening:
            if self._connection is None or self._connection.is_broken:
                self._connection = _Connection(self._connect(timeout), self._meter, timeout)
            return self._connection

    def _connect(self, timeout: float) -> ClientConnection:
        try:
            socket = connect(
                self._url, proxy=None if self._direct else True, max_size=MAX_ANSWER, open_timeout=timeout,
                close_timeout=1.0, user_agent_header="dlx-node",
            )  # fmt: skip
            return ExitStack().enter_context(socket)  # it is closed where it breaks
        except (OSError, WebSocketException) as error:
            raise NoAnswer(type(error).__name__) from None


class _Connection:
    """From its opening until it breaks: unreachable, hung up, no JSON, or a request without an answer."""

    def __init__(self, socket: ClientConnection, meter: Meter, timeout: float) -> None:
        self.is_broken = False
        self.head: dict[str, Any] | None = None  # the newest of which it told; None: it tells of none
        self._socket, self._meter = socket, meter
        self._next_id, self._told_at = 1, 0.0
        self._changed = threading.Condition()
        self._waiting: dict[int, Future[Any]] = {}  # by the id of each request
        threading.Thread(target=self._listen, daemon=True, name="websocket").start()
        subscribed, _ = self.exchange([_SUBSCRIBE], timeout)
        if isinstance(subscribed, dict) and subscribed.get("result"):
            self._look(timeout)

    def exchange(self, requests: Sequence[Request], timeout: float) -> tuple[Any, int]:
        """The message that answers one request, or a batch of several, and the first of their ids: each thread has its
        own. Raises NoAnswer."""
        answer: Future[Any] = Future()
        with self._changed:
            if self.is_broken:
                raise NoAnswer("it hung up")
            first_id, self._next_id = self._next_id, self._next_id + len(requests)
            ids = range(first_id, self._next_id)
            self._waiting |= dict.fromkeys(ids, answer)
        try:
            data = encode(requests, first_id)
            self._socket.send(data.decode())
            self._meter.add(sent=len(data) + _FRAME)
            return answer.result(timeout), first_id
        except TimedOut:
            self._break()  # else it could be silent for ever
            raise NoAnswer("no answer in time") from None
        except (OSError, WebSocketException) as error:
            raise NoAnswer(type(error).__name__) from None
        finally:
            with self._changed:
                for identity in ids:
                    self._waiting.pop(identity, None)

    def next_head(self, seen: str, seconds: float, timeout: float) -> dict[str, Any] | None:
        if time.monotonic() > self._told_at + _SILENCE:  # subscriptions have been seen to end without a word
            self._look(timeout)
        with self._changed:
            self._changed.wait_for(lambda: self.is_broken or self._other(seen) is not None, seconds)
            if self.is_broken:
                raise NoAnswer("it hung up")
            return self._other(seen)

    def _look(self, timeout: float) -> None:
        latest, _ = self.exchange([_LATEST], timeout)
        self._see(_header(latest.get("result") if isinstance(latest, dict) else None))

    def _see(self, head: dict[str, Any] | None) -> None:
        if head is not None:
            with self._changed:
                self.head, self._told_at = head, time.monotonic()
                self._changed.notify_all()

    def _other(self, seen: str) -> dict[str, Any] | None:
        return self.head if self.head is not None and self.head["hash"] != seen else None

    def _listen(self) -> None:
        try:
            while True:
                text = self._socket.recv()
                self._meter.add(received=len(text) + _FRAME)
                self._take(decode_json(text))
        except (OSError, WebSocketException, msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            pass  # whoever waits is told
        finally:
            self._break()

    def _take(self, message: Any) -> None:
        parts = [part for part in (message if isinstance(message, list) else [message]) if isinstance(part, dict)]
        if parts and parts[0].get("method") == "eth_subscription":
            params = parts[0].get("params")
            self._see(_header(params.get("result") if isinstance(params, dict) else None))
            return
        ids = [part.get("id") for part in parts]
        with self._changed:
            answer = next((self._waiting[i] for i in ids if isinstance(i, int) and i in self._waiting), None)
        if answer is not None and not answer.done():
            answer.set_result(message)

    def _break(self) -> None:
        with self._changed:
            self.is_broken = True
            waiting = list(self._waiting.values())
            self._changed.notify_all()
        for answer in waiting:
            if not answer.done():
                answer.set_exception(NoAnswer("it hung up"))
        self._socket.close()


def _header(found: Any) -> dict[str, Any] | None:
    """What names itself as one; what else it says is judged by who uses it."""
    return found if isinstance(found, dict) and isinstance(found.get("hash"), str) else None
