"""HTTP in front of the chain: JSON-RPC over POST with keep-alive, one thread per connection; start and shutdown."""

from __future__ import annotations

import gzip
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import SimpleQueue
from typing import Any

import msgspec

from dlx.ground.machine import LOOK_SECONDS, stop_signals
from dlx.ground.untrusted import decode_json
from dlx.ledger.chain import ChainError
from dlx.ledger.chain.blockchain import Blockchain
from dlx.ledger.chain.methods import Methods
from dlx.ledger.chain.prune import prune_forever
from dlx.ledger.chain.wire import INTERNAL_ERROR, INVALID_REQUEST, LIMIT_EXCEEDED

MAX_REQUEST = 4 * 2**20  # bytes
MAX_RESPONSE = 64 * 2**20  # bytes of a batch
MAX_BATCH = 1_000
MAX_CONNECTIONS = 256
MAX_PER_ADDRESS = 128  # connections, so that one address cannot keep the others out
CROWDED = 3 / 4  # of these: from then on nobody waits here for a block, and a connection ends with its answer
COMPRESSED = 512  # bytes from which on answers are, for who takes that
_IDLE_TIMEOUT = 30.0  # seconds: idle ones must not keep others out

log = logging.getLogger(__name__)


def run(
    chain: Blockchain,
    host: str,
    port: int,
    on_ready: Callable[[str], None] | None,
    stop: threading.Event,
) -> None:
    """Serves the chain, and closes it; see `ledger.chain.serve`."""
    try:
        server = _listen(host, port, Methods(chain))
        chain.calls.start()
    except BaseException:
        chain.close()
        raise
    miner = threading.Thread(target=chain.mine_forever, args=(stop,), name="miner")
    pruner = threading.Thread(target=prune_forever, args=(chain.store, stop), name="pruner")
    listener = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, name="rpc")
    try:
        miner.start()
        pruner.start()
        listener.start()
        with _signals(stop):
            if on_ready is not None:
                name = f"[{host}]" if ":" in host else host
                on_ready(f"http://{name}:{server.server_address[1]}")
            while not stop.wait(LOOK_SECONDS):
                pass
    finally:  # from here a second signal has its usual effect; a torn end loses nothing
        stop.set()
        server.shutdown()
        server.close_connections()
        chain.wake()
        listener.join()
        miner.join()
        pruner.join()
        chain.close()


def _listen(host: str, port: int, methods: Methods) -> _Server:
    try:
        return _Server((host, port), methods)
    except OSError as error:
        raise ChainError(f"cannot listen on {host}:{port}: {error.strerror or error}; choose another port") from None


@contextmanager
def _signals(stop: threading.Event) -> Iterator[None]:
    """A signal to end sets `stop`, which the end of this does too."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked: SimpleQueue[None] = SimpleQueue()  # a handler waits for no lock: its own thread may hold it

    def pass_on() -> None:
        asked.get()
        stop.set()

    waiting = threading.Thread(target=pass_on, name="signals", daemon=True)
    waiting.start()
    previous = {number: signal.signal(number, lambda *_: asked.put(None)) for number in stop_signals()}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        asked.put(None)
        waiting.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True  # a client that keeps its connection open must not delay the end
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], methods: Methods) -> None:
        self.methods = methods
        self._open: dict[socket.socket, str] = {}  # with their client's address
        self._open_lock = threading.Lock()
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)  # `::` is IPv4 too, whatever the system
        super().server_bind()

    def process_request(self, request: Any, client_address: Any) -> None:
        address = client_address[0]
        with self._open_lock:
            everybody, own = self._count(address)
            refused = everybody >= MAX_CONNECTIONS or own >= MAX_PER_ADDRESS
            if not refused:
                self._open[request] = address
        if refused:
            log.warning("refused a connection of %s: %d are open, %d of them its own", address, everybody, own)
            super().shutdown_request(request)
            return
        super().process_request(request, client_address)

    def is_crowded(self, address: str) -> bool:
        """Whether others may soon find no place if the address keeps one."""
        with self._open_lock:
            everybody, own = self._count(address)
        return everybody > CROWDED * MAX_CONNECTIONS or own > CROWDED * MAX_PER_ADDRESS

    def _count(self, address: str) -> tuple[int, int]:
        """Connections of all, and of the address."""
        return len(self._open), list(self._open.values()).count(address)

    def shutdown_request(self, request: Any) -> None:
        with self._open_lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def close_connections(self) -> None:
        self.server_close()
        with self._open_lock:
            for connection in self._open:
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("connection ended", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _IDLE_TIMEOUT
    disable_nagle_algorithm = True
    wbufsize = -1  # headers and body leave in one segment
    server: _Server

    def do_POST(self) -> None:
        # Browsers send Origin with every POST: a page the user visits must not reach the chain behind their back.
        if self.headers.get("Origin") is not None:
            return self._refuse(403, "requests from web pages are not served")
        try:
            size = int(self.headers.get("Content-Length", ""))
        except ValueError:
            return self._refuse(411, "Content-Length is needed")
        if not 0 <= size <= MAX_REQUEST:
            return self._refuse(413, f"a request may have at most {MAX_REQUEST} bytes")
        body = self.rfile.read(size)
        crowded = self.server.is_crowded(self.client_address[0])
        self.close_connection = self.close_connection or crowded
        if len(body) == size:
            self._reply(200, "application/json", _respond(self.server.methods, body, may_wait=not crowded))

    def do_GET(self) -> None:
        self._refuse(405, "this is a JSON-RPC server: send POST requests")

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)

    def _refuse(self, status: int, message: str) -> None:
        self.close_connection = True
        self._reply(status, "text/plain", f"{message}\n".encode())

    def _reply(self, status: int, kind: str, body: bytes) -> None:
        self.send_response_only(status)  # without the server's name and the date: most answers are smaller than those
        if len(body) >= COMPRESSED and "gzip" in self.headers.get("Accept-Encoding", ""):
            body = gzip.compress(body, compresslevel=1)
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()


def _respond(methods: Methods, body: bytes, may_wait: bool) -> bytes:
    try:
        request = decode_json(body)
    except (msgspec.DecodeError, RecursionError):
        return _error(None, -32700, "parse error: the request is not JSON")
    if not isinstance(request, list):
        return _answer(methods, request, may_wait)
    if not request or len(request) > MAX_BATCH:
        return _error(None, INVALID_REQUEST, f"a batch has 1 to {MAX_BATCH} requests")
    answers, size = [], 0
    for member in request:
        if size > MAX_RESPONSE:
            identity = member.get("id") if isinstance(member, dict) else None
            answers.append(_error(identity, LIMIT_EXCEEDED, "the batch's response is too large: send fewer requests"))
            continue
        answers.append(_answer(methods, member, may_wait))
        size += len(answers[-1])
    return b"[" + b",".join(answers) + b"]"


def _answer(methods: Methods, request: Any, may_wait: bool) -> bytes:
    try:
        return msgspec.json.encode(methods.answer(request, may_wait))
    except Exception as error:  # one broken method must answer, and leave the connection and the chain alive
        log.exception("cannot answer")
        identity = request.get("id") if isinstance(request, dict) else None
        return _error(identity, INTERNAL_ERROR, f"internal error: {type(error).__name__}")


def _error(identity: Any, code: int, message: str) -> bytes:
    return msgspec.json.encode({"jsonrpc": "2.0", "id": identity, "error": {"code": code, "message": message}})
