"""A page served in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import trio

from dlx.node.web.app import Page
from dlx.node.web.serving import listener, serve_on
from tests.patience import PATIENCE


@contextmanager
def served(page: Page) -> Iterator[str]:
    """The URL where it answers."""
    found, url = listener("127.0.0.1", 0, "--bind")
    ready, stop = threading.Event(), threading.Event()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(serve_on, found, page.app())
            ready.set()
            await trio.to_thread.run_sync(stop.wait)
            nursery.cancel_scope.cancel()

    thread = threading.Thread(target=trio.run, args=(main,), daemon=True)
    thread.start()
    try:
        if not ready.wait(PATIENCE):
            raise TimeoutError("the page is not served")
        yield url
    finally:
        stop.set()
        thread.join(PATIENCE)
