"""What commands that answer over HTTP have in common: where they listen, who may ask, and how they end."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Any

from dlx.ground import handwritten
from dlx.ground.machine import stop_signals
from dlx.node.cli import options
from dlx.node.home.errors import UsageFailure
from dlx.node.home.values import is_loopback

_MOST_BYTES = 1 << 20  # of a token's file


def listen_options(bind: str, token_file: Path | None) -> tuple[str, int, str | None]:
    """Host, port and token. Raises UsageFailure, and Failure where others may read the token's file."""
    host, port = _place(bind)
    token = None if token_file is None else _token(token_file)
    if token is None and not is_loopback(host):
        raise UsageFailure(f"--bind {bind}: others could reach that, so name a --token-file, or bind to 127.0.0.1")
    return host, port, token


def serve_until_stopped(found: socket.socket, app: Any, line: str) -> None:
    """Serve on a listening socket until Ctrl-C; `line` is told once it answers."""
    import trio

    from dlx.node.web.serving import serve_on

    async def serve() -> None:
        with trio.open_signal_receiver(*stop_signals()) as signals:
            async with trio.open_nursery() as nursery:
                await nursery.start(serve_on, found, app)
                options.note(line)
                await anext(aiter(signals))
                nursery.cancel_scope.cancel()

    trio.run(serve)


def _place(bind: str) -> tuple[str, int]:
    """Host and port of a --bind. Raises UsageFailure."""
    found = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]]+):([0-9]{1,5})", bind)
    if found is None or int(found[2]) > 65535:
        raise UsageFailure(f"--bind {bind}: expected HOST:PORT, such as 127.0.0.1:4680 or [::1]:4680")
    return found[1].strip("[]"), int(found[2])


def _token(path: Path) -> str:
    """The token of a --token-file. Raises UsageFailure, and Failure where others may read it."""
    from dlx.node.home.datadir import check_private
    from dlx.node.web.guard import MAX_TOKEN, MIN_TOKEN

    options.existing_file(path, "--token-file")
    try:
        check_private(path)
        token = handwritten.read(path, _MOST_BYTES).partition("\n")[0].strip()
    except OSError as error:
        raise UsageFailure(f"--token-file {path}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise UsageFailure(f"--token-file {error}") from None
    if not MIN_TOKEN <= len(token) <= MAX_TOKEN or not token.isascii():
        raise UsageFailure(f"--token-file {path}: its first line needs {MIN_TOKEN} to {MAX_TOKEN} ASCII characters")
    return token
