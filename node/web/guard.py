"""Who may do what on the page: everybody who reaches it may read, not everybody start or download what costs much.

On loopback without a token whoever reaches the page may act. With a token only who has it. A browser acts for
whatever page it shows, so what another site asks for is refused either way.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request

COOKIE = "dlx-page"
MIN_TOKEN, MAX_TOKEN = 16, 256  # characters
LOOPBACK_HOSTS = ["127.0.0.1", "localhost", "[::1]"]
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # with none at all a browser would not say whose page posts a form
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_App = Callable[[MutableMapping[str, Any], Any, Any], Awaitable[None]]


class Guard:
    """Of one server. `token` None: it listens on loopback alone, and who reaches it may act."""

    def __init__(self, token: str | None) -> None:
        self.token = token

    def may_act(self, request: Request) -> bool:
        """Whether the one who asks may start and download what costs something."""
        if self.token is None:
            return True
        given = request.cookies.get(COOKIE, "")
        return self.bears_token(request) or hmac.compare_digest(given.encode(), self.cookie().encode())

    def bears_token(self, request: Request) -> bool:
        """Whether the request itself has the token, as programs send it."""
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        return kind.lower() == "bearer" and self.is_token(given)

    def is_token(self, given: str) -> bool:
        return self.token is not None and hmac.compare_digest(given.encode(), self.token.encode())

    def cookie(self) -> str:
        """What a browser keeps once the token was entered: not the token."""
        return hmac.new((self.token or "").encode(), b"dlx-node web", hashlib.sha256).hexdigest()


def is_foreign(request: Request) -> bool:
    """Whether another site's page has the browser ask."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = request.headers.get("origin")
    return origin is not None and urlsplit(origin).netloc != request.headers.get("host")


class Headers:
    """Adds what keeps a browser from running, sending or storing anything that is not the page's own."""

    def __init__(self, app: _App) -> None:
        self._app = app

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        async def sent(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                if scope["path"].startswith("/static/"):
                    headers["Cache-Control"] = "no-cache"  # asks whether it is still the same
            await send(message)

        await self._app(scope, receive, sent)
