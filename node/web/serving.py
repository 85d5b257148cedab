"""An HTTP server of this process: where it listens, what it does not say or log, and answers that take long."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any

import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from dlx.node.home.errors import Failure


def listener(host: str, port: int, options: str) -> tuple[socket.socket, str]:
    """A socket bound there, and its URL; port 0 takes a free one. Raises Failure, naming the `options` to change, where
    it cannot be."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
    except OSError as error:
        found.close()
        raise Failure(f"cannot listen on {host}:{port} ({error.strerror}): choose another {options}") from error
    name, bound = found.getsockname()[:2]
    return found, f"http://[{name}]:{bound}" if family == socket.AF_INET6 else f"http://{name}:{bound}"


async def serve_on(found: socket.socket, app: Any, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
    """Serve until cancelled."""
    config = Config()
    config.bind = [f"fd://{found.detach()}"]
    config.errorlog = None
    config.include_server_header = False
    config.graceful_timeout = 1
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(serve, app, config))
        task_status.started()


class LimitedStream(StreamingResponse):
    """An answer that is made while it is sent, of so many at a time: `refusal` is raised for one more."""

    def __init__(
        self,
        content: AsyncIterator[str] | AsyncIterator[bytes],
        media_type: str,
        limiter: trio.CapacityLimiter,
        refusal: Exception,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(content, media_type=media_type, headers=headers)
        self._limiter, self._refusal = limiter, refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._limiter.acquire_on_behalf_of_nowait(self)
        except trio.WouldBlock:
            raise self._refusal from None
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._limiter.release_on_behalf_of(self)
