"""A chain node's JSON-RPC with the fault of the moment, to stand between a client and any chain node.

In a test: `with FaultProxy(url) as proxy: proxy.fault("hang"); LedgerClient(proxy.url, ...)`. As a process, for nodes:
`python -m tests.ledger.fault_proxy URL PORT` (0: a free one) prints its URL, and takes `POST /fault` with what `fault`
takes: `{"kind": "late", "share": 0.5}`.

| kind | what a client meets |
|---|---|
| `none` | the chain node |
| `hang` | no answer |
| `drip` | an answer of which a byte comes every tenth of a second |
| `429` | HTTP 429 with Retry-After |
| `limited` | error -32005 inside an HTTP 200, without a time |
| `refused` | error `refusal` inside an HTTP answer of status `refusal_status` |
| `html` | a page of a gateway |
| `413` | HTTP 413, as from a gateway that finds the request or its answer too large |
| `moved` | HTTP 308 to another host, in whose URL there is a key |
| `bomb` | an answer in three layers of gzip, of which the innermost never ends |
| `lost` | the request arrives, its answer does not |
| `late` | a chain node that is `behind` blocks behind (`LAG`, unless told otherwise); transactions reach the others |
| `wrong_chain` | the same, of another chain |

In a test it may also lie: `proxy.lie = change`, where `change(method, params, result)` gives the result that is told
(or `{"error": ...}`). It may refuse batches of more than `proxy.most` requests (with `proxy.refusal`, or what
`proxy.refuse` makes of them, and `proxy.refusal_status` for HTTP), and answer HTTP 413, or with
`proxy.too_large_answer`, to those bodies that `proxy.too_large` names. It may take `proxy.delay` seconds for an answer,
and give way to another chain node (`proxy.target = url`).
"""

from __future__ import annotations

import contextlib
import gzip
import json
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from types import TracebackType
from typing import Any

import requests

from tests.patience import PATIENCE

LAG = 8
KINDS = (
    "none", "hang", "drip", "429", "limited", "refused", "html", "lost", "late", "wrong_chain", "bomb", "413", "moved",
)  # fmt: skip
_TAGGED = {"eth_call": 1, "eth_estimateGas": 1, "eth_getBalance": 1, "eth_getTransactionCount": 1, "eth_getCode": 1}


@dataclass(frozen=True)
class Fault:
    """It meets `share` of the requests (0 to 1) for one of `methods` (none: any)."""

    kind: str = "none"
    share: float = 1.0
    methods: tuple[str, ...] = ()


class FaultProxy:
    """Serves from its making until `close`; `seen` has the methods asked for, in order; of a batch one."""

    def __init__(self, target: str, port: int = 0) -> None:
        self.target, self._random = target, Random(1)
        self._fault, self._changed = Fault(), threading.Event()
        self.seen: list[str] = []
        self.most: int | None = None
        self.refusal, self.refusal_status = (-32600, "batch too large"), 200
        self.refuse: Callable[[list[dict[str, Any]]], bytes] = lambda batch: _error({}, *self.refusal)
        self.behind = LAG
        self.delay = 0.0
        self.retry_after = 1  # seconds
        self.lie: Callable[[str, list[Any], Any], Any] | None = None
        self.too_large: Callable[[bytes], bool] = lambda body: False
        self.too_large_answer = (b"<html>413 Request Entity Too Large</html>", 413)  # and its status
        proxy = self

        class Handler(_Handler):
            faults = proxy

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *args: None  # type: ignore[method-assign]  # clients hang up, as they should
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True, name="fault-proxy"
        )
        self._thread.start()

    def __enter__(self) -> FaultProxy:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self.fault("none")
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def fault(self, kind: str, share: float = 1.0, methods: Sequence[str] = ()) -> None:
        """From now on; what hangs or drips is let go."""
        assert kind in KINDS, kind
        self._fault = Fault(kind, share, tuple(methods))
        self._changed.set()
        self._changed = threading.Event()

    def meet(self, method: str) -> tuple[str, threading.Event]:
        """The fault that this request meets, and what ends it."""
        self.seen.append(method)
        fault, changed = self._fault, self._changed
        hit = (not fault.methods or method in fault.methods) and self._random.random() < fault.share
        return (fault.kind if hit else "none"), changed

    def ask(self, method: str, *params: Any) -> Any:
        """The chain node's own result."""
        answer = self.forward(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode())
        return json.loads(answer).get("result")

    def forward(self, body: bytes) -> bytes:
        return requests.post(self.target, body, headers={"Content-Type": "application/json"}, timeout=PATIENCE).content

    def told(self, body: bytes) -> bytes:
        """The chain node's answer to a request or a batch, with the lie."""
        asked = json.loads(body)
        if self.lie is None:
            return self.forward(body)
        answers = json.loads(self.forward(body))
        by_id = {one["id"]: one for one in (asked if isinstance(asked, list) else [asked])}
        for answer in answers if isinstance(answers, list) else [answers]:
            request = by_id[answer["id"]]
            result = self.lie(request["method"], request.get("params") or [], answer.pop("result", None))
            if isinstance(result, dict) and set(result) == {"error"}:
                answer |= result
            elif result is not None or "error" not in answer:
                answer.pop("error", None)
                answer["result"] = result
        return json.dumps(answers).encode()

    def late(self, request: dict[str, Any]) -> bytes:
        """The answer of a chain node that is `behind` blocks behind."""
        method, params = request["method"], list(request.get("params") or [])
        newest = max(0, int(self.ask("eth_blockNumber"), 16) - self.behind)
        if method == "eth_blockNumber":
            return _result(request, hex(newest))
        if method == "eth_getBlockByNumber":
            params[0] = hex(newest) if params[0] in ("latest", "pending") else params[0]
            if int(params[0], 16) > newest:
                return _result(request, None)
        if method == "dlx_waitForBlock":  # it would tell of what a late one does not have
            return _error(request, -32601, "the method does not exist")
        if method in _TAGGED:
            place = _TAGGED[method]
            tag = params[place] if len(params) > place else "latest"
            tag = hex(newest) if tag in ("latest", "pending") else tag
            if int(tag, 16) > newest:
                return _error(request, -32000, "header not found")
            params[place:] = [tag]
        if method == "eth_getLogs":
            query = dict(params[0])
            if "blockHash" in query:
                block = self.ask("eth_getBlockByHash", query["blockHash"], False)
                if block is None or int(block["number"], 16) > newest:
                    return _error(request, -32000, "unknown block")
            else:
                if int(query["fromBlock"], 16) > newest:
                    return _result(request, [])
                query["toBlock"] = hex(min(newest, int(query["toBlock"], 16)))
            params = [query]
        answer = self.forward(json.dumps({**request, "params": params}).encode())
        if method in ("eth_getBlockByHash", "eth_getTransactionReceipt"):
            found = json.loads(answer).get("result") or {}
            if int(found.get("number") or found.get("blockNumber") or "0x0", 16) > newest:
                return _result(request, None)
        return answer


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one segment
    faults: FaultProxy

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/fault":
            self.faults.fault(**json.loads(body))
            self._answer(b"{}")
            return
        request = json.loads(body)
        batch = request if isinstance(request, list) else []  # of one method, as ours are
        request = batch[0] if batch else request
        kind, changed = self.faults.meet(request["method"])
        changed.wait(self.faults.delay)
        kind = "413" if self.faults.too_large(body) else kind
        if kind == "hang":
            changed.wait()
            self.close_connection = True
        elif kind == "drip":
            self._drip(self.faults.forward(body), changed)
        elif kind == "429":
            self._answer(b"slow down", 429, {"Retry-After": str(self.faults.retry_after)})
        elif kind == "413":
            self._answer(*self.faults.too_large_answer)
        elif kind == "moved":
            self._answer(b"", 308, {"Location": "https://user:key@rpc.example.org/v3/key"})
        elif kind == "limited":
            self._answer(_error(request, -32005, "daily request count exceeded"))
        elif kind == "refused":
            self._answer(_error(request, *self.faults.refusal), self.faults.refusal_status)
        elif kind == "bomb":
            self._answer(_bomb(), headers={"Content-Encoding": "gzip, gzip, gzip"})
        elif kind == "html":
            self._answer(b"<html><body>502 Bad Gateway</body></html>", 502)
        elif kind == "lost":
            self.faults.forward(body)
            self.close_connection = True
        elif kind == "late":
            late = [self.faults.late(one) for one in batch or [request]]
            self._answer(b"[" + b",".join(late) + b"]" if batch else late[0])
        elif kind == "wrong_chain" and request["method"] in ("eth_chainId", "net_version"):
            self._answer(_result(request, "0x1"))
        elif self.faults.most is not None and len(batch) > self.faults.most:
            limited = {"Retry-After": str(self.faults.retry_after)} if self.faults.refusal_status in (429, 503) else {}
            self._answer(self.faults.refuse(batch), self.faults.refusal_status, limited)
        else:
            self._answer(self.faults.told(body))

    def _answer(self, body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def _drip(self, body: bytes, changed: threading.Event) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        for at in range(len(body)):
            self.wfile.write(body[at : at + 1])
            self.wfile.flush()
            if changed.wait(0.1):
                break
        self.close_connection = True

    def log_message(self, *args: Any) -> None:
        pass


def _result(request: dict[str, Any], result: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": request.get("id"), "result": result}).encode()


def _bomb() -> bytes:
    """A few kB whose unpacking takes for ever and gives nothing."""
    nothing = gzip.compress(b"")
    return gzip.compress(gzip.compress(nothing * 100_000) * 50)


def _error(request: dict[str, Any], code: int, message: str) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": request.get("id"), "error": {"code": code, "message": message}}).encode()


if __name__ == "__main__":
    with FaultProxy(sys.argv[1], int(sys.argv[2])) as served, contextlib.suppress(KeyboardInterrupt):
        print(served.url, flush=True)
        threading.Event().wait()
