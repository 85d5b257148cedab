"""The node's HTTP endpoint on loopback: health, readiness, metrics and status, for people and tools on this machine."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import trio
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from dlx.ground import durable
from dlx.node.daemon.api.status import NodeStatus, Peers, Rounds, RoundView
from dlx.node.home.errors import UsageFailure
from dlx.node.home.values import is_loopback
from dlx.node.web.serving import listener, serve_on


async def serve_http(
    host: str,
    port: int,
    status: Callable[[], NodeStatus],
    peers: Callable[[], Peers],
    rounds: Callable[[], list[RoundView]],
    registry: CollectorRegistry,
    address_file: Path,
    page: Callable[[], ASGIApp],
    task_status: Any = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled. Starts with the URL, which `address_file` holds as long as this runs. `page` makes the
    ASGI application of all other paths, in a thread, once somebody asks for one.

    Raises UsageFailure for a host that others could reach, Failure when the port is taken.
    """
    if not is_loopback(host):
        raise UsageFailure(f"the HTTP endpoint has no password: {host!r} is not a loopback address such as 127.0.0.1")
    found, url = listener(host, port, "--http-port")
    _write_address(address_file, url)
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(serve_on, found, _app(status, peers, rounds, registry, page))
            task_status.started(url)
    finally:
        address_file.unlink(missing_ok=True)


def _app(
    status: Callable[[], NodeStatus],
    peers: Callable[[], Peers],
    rounds: Callable[[], list[RoundView]],
    registry: CollectorRegistry,
    page: Callable[[], ASGIApp],
) -> Any:
    async def healthz(_: Request) -> Response:
        return _json({"healthy": True})

    async def readyz(_: Request) -> Response:
        said = status()
        body = {"ready": not said.not_ready, "reasons": said.not_ready, "reachable": said.reachable}
        return _json(body, 503 if said.not_ready else 200)

    async def metrics(_: Request) -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    async def v1_status(_: Request) -> Response:
        return _json(status())

    async def v1_peers(_: Request) -> Response:
        return _json(peers())

    async def v1_rounds(_: Request) -> Response:
        return _json(Rounds(rounds()))

    return Starlette(
        routes=[
            Route("/healthz", healthz),
            Route("/readyz", readyz),
            Route("/metrics", metrics),
            Route("/v1/status", v1_status),
            Route("/v1/peers", v1_peers),
            Route("/v1/rounds", v1_rounds),
            Mount("/", _Later(page)),
        ],
        # A web page can point a name of its own at 127.0.0.1 and read what answers: only our own names are served.
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost", "[::1]"], www_redirect=False)
        ],
    )


class _Later:
    """An application that is made when it is first asked: most nodes' pages nobody looks at."""

    def __init__(self, make: Callable[[], ASGIApp]) -> None:
        self._make, self._making = make, trio.Lock()
        self._made: ASGIApp | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async with self._making:
            made = self._made = self._made or await trio.to_thread.run_sync(self._make)
        await made(scope, receive, send)


def _json(body: Any, code: int = 200) -> Response:
    return Response(msgspec.json.encode(body), code, media_type="application/json")


def _write_address(path: Path, url: str) -> None:
    durable.write_bytes(path, json.dumps({"url": url, "pid": os.getpid()}).encode() + b"\n")
