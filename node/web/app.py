"""The page's routes: each asks the reader for plain data in a thread, and renders it there."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from functools import partial
from http import HTTPStatus
from typing import TypeVar
from urllib.parse import parse_qsl

import trio
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from dlx.ground.errors import DlxError
from dlx.node.audit.sources.places import Places
from dlx.node.web import guard, versions
from dlx.node.web.audits.runner import Auditing
from dlx.node.web.guard import Guard, is_foreign
from dlx.node.web.reading.chart import AXES, Axis
from dlx.node.web.reading.reader import RUNS, NotThere, Reader
from dlx.node.web.render import STATIC, render
from dlx.node.web.serving import LimitedStream

_LISTENERS = 64  # that are told of seals at a time
_WAITING = 128  # requests at a time, these included, which ask for little
_LOOK_SECONDS = 1.0  # between two looks for new seals
_AUDIT_SECONDS = 0.3  # likewise of an audit
_ALIVE_SECONDS = 20.0  # after which a silent stream says that it is there
_MAX_FORM = 4096  # bytes
_T = TypeVar("_T")


class Page:
    """The ASGI application of a ledger's page. `auditing` and `places` None: nothing can be started or packed here.
    `reachable`: whether peers can connect to the node that serves the page; None: it is no node that does."""

    def __init__(
        self,
        reader: Reader,
        access: Guard,
        auditing: Auditing | None = None,
        places: Places | None = None,
        reachable: Callable[[], str] | None = None,
    ) -> None:
        self._reachable = reachable
        self._reader, self._guard, self._auditing, self._places = reader, access, auditing, places
        self._reading = trio.CapacityLimiter(1)  # the reader's lock lets no second one in
        self._packing = trio.CapacityLimiter(1)
        self._listeners = trio.CapacityLimiter(_LISTENERS)

    def routes(self) -> list[BaseRoute]:
        run = "/runs/{run}"
        found: list[BaseRoute] = [
            Route("/", self._runs),
            Route("/accounts", self._accounts),
            Route(run, self._run),
            Route(run + "/events", self._seals),
            Route(run + "/rounds/{number}", self._round),
            Route(run + "/versions", self._to_version),
            Route(run + "/versions/{number}", self._version),
            Route(run + "/versions/{number}/stage-{stage}.safetensors", self._stage_file),
            Mount("/static", StaticFiles(directory=STATIC)),
        ]
        if self._guard.token is not None:
            found.append(Route("/token", self._token, methods=["GET", "POST"]))
        if self._auditing is not None:
            found += [
                Route(run + "/audit", self._audit, methods=["GET", "POST"]),
                Route(run + "/audit/events", self._audit_events),
                Route(run + "/audit/stop", self._stop_audit, methods=["POST"]),
            ]
        if self._places is not None:
            found.append(Route(run + "/versions/{number}/model.tar", self._packed))
        return found

    def app(self) -> ASGIApp:
        """A server of its own. Without a token it listens on loopback, where a web page can point a name of its own at
        it and read what answers: only our own names are served."""
        hosts = guard.LOOPBACK_HOSTS if self._guard.token is None else ["*"]
        found = Starlette(
            routes=self.routes(),
            middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False)],
            exception_handlers={HTTPException: _refused, DlxError: _refused, OSError: _refused},
        )
        return guard.Headers(found)

    # Reading.

    async def _runs(self, request: Request) -> Response:
        first = _number(request, "from") or 0

        def made() -> str:
            found = self._reader.runs_page(first)
            said = self._reachable and self._reachable()
            return render("runs.html", page=found, source=found.source, live=True, step=RUNS, reachable=said)

        return await self._html(made)

    async def _accounts(self, request: Request) -> Response:
        first = _number(request, "from") or 0

        def made() -> str:
            found = self._reader.accounts_page(first)
            return render("accounts.html", page=found, source=found.source, live=True, step=RUNS)

        return await self._html(made)

    async def _run(self, request: Request) -> Response:
        run = await self._named(request)
        first, by = _number(request, "from"), request.query_params.get("by")
        axis: Axis = next((axis for axis in AXES if axis == by), AXES[0])

        def made() -> str:
            found = self._reader.run_page(run, first, axis)
            can_audit = self._auditing is not None
            return render("run.html", page=found, source=found.source, live=True, can_audit=can_audit)

        return await self._html(made)

    async def _round(self, request: Request) -> Response:
        run, number = await self._named(request), _index(request, "number")

        def made() -> str:
            found = self._reader.round_page(run, number)
            return render("round.html", page=found, source=found.source, live=True)

        return await self._html(made)

    async def _to_version(self, request: Request) -> Response:
        number = _number(request, "number") or 0
        return RedirectResponse(f"{request.url.path}/{number}", 303)

    async def _version(self, request: Request) -> Response:
        run, number, beside = await self._named(request), _index(request, "number"), _number(request, "beside")

        def made() -> str:
            found, may_act = self._reader.version_page(run, number, beside), self._guard.may_act(request)
            packs = self._places is not None
            return render("version.html", page=found, source=found.source, live=True, may_act=may_act, packs=packs)

        return await self._html(made)

    async def _seals(self, request: Request) -> Response:
        """A stream with an event for each round that a stage has sealed."""
        run = await self._named(request)
        return _events(self._news(run, await self._ask(partial(self._reader.sealed, run))), self._listeners)

    async def _news(self, run: bytes, before: list[int]) -> AsyncIterator[str]:
        tip, silent = b"", 0.0
        while True:
            await trio.sleep(_LOOK_SECONDS)
            silent += _LOOK_SECONDS
            newest = await self._ask(self._reader.tip)
            now = before if newest == tip else await self._ask(partial(self._reader.sealed, run))
            tip = newest
            if now != before:
                yield _event("sealed", _news_line(now))
                before, silent = now, 0.0
            elif silent >= _ALIVE_SECONDS:
                yield ": still here\n\n"
                silent = 0.0

    # Acting.

    async def _audit(self, request: Request) -> Response:
        auditing = _required(self._auditing)
        run = await self._named(request)
        if request.method == "POST":
            self._check(request)
            level = 3 if (await _form(request)).get("level") == "3" and auditing.replays() else 2
            await self._ask(partial(self._reader.summary, run))  # that there is one
            await trio.to_thread.run_sync(auditing.start, run, level)
            return RedirectResponse(request.url.path, 303)

        def made() -> str:
            source, summary = self._reader.summary(run)
            busy = auditing.busy()
            return render(
                "audit.html",
                run=summary,
                source=source,
                live=True,
                may_act=self._guard.may_act(request),
                state=auditing.state(run),
                replays=auditing.replays(),
                busy=None if busy is None else "0x" + busy.hex(),
            )

        return await self._html(made)

    async def _stop_audit(self, request: Request) -> Response:
        self._check(request)
        run = await self._named(request)
        await trio.to_thread.run_sync(_required(self._auditing).stop, run)
        return RedirectResponse(request.url.path.removesuffix("/stop"), 303)

    async def _audit_events(self, request: Request) -> Response:
        run = await self._named(request)
        return _events(
            self._audited(run, request.url.path.removesuffix("/audit/events"), self._guard.may_act(request)),
            self._listeners,
        )

    async def _audited(self, run: bytes, base: str, may_act: bool) -> AsyncIterator[str]:
        """What is checked, until all is; then, for who may act, the button for another one."""
        auditing, told = _required(self._auditing), -1
        while (state := auditing.state(run)) is not None:
            if state.number != told:
                told = state.number
                yield _event("state", await self._ask(partial(render, "audit_state.html", state=state)))
            if state.done:
                if may_act:
                    act = partial(render, "audit_act.html", state=state, base=base, replays=auditing.replays())
                    yield _event("act", await self._ask(act))
                break
            await trio.sleep(_AUDIT_SECONDS)
        yield _event("done", "done")

    async def _stage_file(self, request: Request) -> Response:
        self._check(request)
        run, number, stage = await self._named(request), _index(request, "number"), _index(request, "stage")
        found = await self._ask(partial(self._reader.version_page, run, number))
        path = found.files[stage] if stage < len(found.files) else None
        if path is None:
            raise NotThere("no folder of this page's has these weights")
        name = found.version.weights[stage]
        return StreamingResponse(
            versions.checked(path, name),
            media_type="application/octet-stream",
            headers={
                "Content-Length": str(path.stat().st_size),
                "Content-Disposition": f'attachment; filename="version-{number}-stage-{stage}.safetensors"',
            },
        )

    async def _packed(self, request: Request) -> Response:
        self._check(request)
        run, number = await self._named(request), _index(request, "number")
        try:
            self._packing.acquire_nowait()
        except trio.WouldBlock:
            raise HTTPException(503, "another version is being packed: try again later") from None
        try:
            work = partial(versions.packed, self._reader.client, run, number, _required(self._places))
            folder, path = await trio.to_thread.run_sync(work, abandon_on_cancel=True)
        finally:
            self._packing.release()
        name = f"model-{number}.tar"
        return FileResponse(path, filename=name, background=BackgroundTask(folder.cleanup))

    async def _token(self, request: Request) -> Response:
        known = self._guard.may_act(request)
        if request.method == "GET":
            return await self._html(partial(render, "token.html", live=True, known=known, wrong=False))
        if is_foreign(request):
            raise HTTPException(403, "another site's page asks for this")
        form = await _form(request)
        if not self._guard.is_token(form.get("token", "")):
            return await self._html(partial(render, "token.html", live=True, known=known, wrong=True), 403)
        response = RedirectResponse("/", 303)
        response.set_cookie(guard.COOKIE, self._guard.cookie(), httponly=True, samesite="strict")
        return response

    def _check(self, request: Request) -> None:
        """Raises HTTPException for who may not act."""
        if is_foreign(request):
            raise HTTPException(403, "another site's page asks for this")
        if not self._guard.may_act(request):
            raise HTTPException(403, "this needs the page's token: enter it at /token, or send it as a bearer token")

    # Inside.

    async def _named(self, request: Request) -> bytes:
        """The run of the path. Raises NotThere."""
        given = request.path_params["run"]
        if re.fullmatch("0x[0-9a-f]{64}", given):
            return bytes.fromhex(given[2:])
        return await self._ask(partial(self._reader.resolve, given))

    async def _ask(self, work: Callable[[], _T]) -> _T:
        if self._reading.statistics().tasks_waiting >= _WAITING:
            raise HTTPException(503, "too many ask at once: try again")
        return await trio.to_thread.run_sync(work, limiter=self._reading)

    async def _html(self, made: Callable[[], str], code: int = 200) -> Response:
        return HTMLResponse(await self._ask(made), code)


def _events(events: AsyncIterator[str], listeners: trio.CapacityLimiter) -> Response:
    """Server-sent events, to so many listeners at a time."""
    full = HTTPException(503, "too many pages listen for news: reload by hand")
    return LimitedStream(events, "text/event-stream", listeners, full, {"X-Accel-Buffering": "no"})


def _event(name: str, data: str) -> str:
    lines = "".join(f"data: {line}\n" for line in data.splitlines())
    return f"event: {name}\n{lines}\n"


def _news_line(sealed: list[int]) -> str:
    if not max(sealed):
        return "No round is sealed any more: the chain took it back"
    return f"Round {max(sealed) - 1:,} sealed by {sealed.count(max(sealed))} of {len(sealed)} stages"


def _index(request: Request, name: str) -> int:
    """A number in the path. Raises NotThere."""
    if not re.fullmatch("[0-9]{1,9}", given := request.path_params[name]):
        raise NotThere(f"{given[:20]!r} is no number of a {'stage' if name == 'stage' else 'round'}")
    return int(given)


def _number(request: Request, name: str) -> int | None:
    """A query parameter; None where it is no number of up to nine digits."""
    given = request.query_params.get(name, "").replace(",", "")
    return int(given) if re.fullmatch(r"[0-9]{1,9}", given) else None


async def _form(request: Request) -> dict[str, str]:
    """The fields of a small form. Raises HTTPException."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_FORM:
            raise HTTPException(413, "the form is too long")
    try:
        return dict(parse_qsl(body.decode("latin-1"), max_num_fields=8))
    except ValueError:
        raise HTTPException(400, "the form has too many fields") from None


def _required(service: _T | None) -> _T:
    assert service is not None  # else there is no such route
    return service


async def _refused(request: Request, error: Exception) -> Response:
    code = error.status_code if isinstance(error, HTTPException) else 404 if isinstance(error, NotThere) else 503
    text = error.detail if isinstance(error, HTTPException) else str(error)
    if isinstance(error, OSError):  # where its files lie is nobody else's business
        text = error.strerror or "a file of this page's cannot be read"
    if text == HTTPStatus(code).phrase:  # the framework's words: the title says as much
        text = ""
    title = {403: "Not without the token", 404: "Not there", 503: "Not now"}.get(code, "Refused")
    below = re.match("/runs/(0x[0-9a-f]{64})/", request.url.path)  # a page of a run leads back to it
    run = below[1] if below else None
    return HTMLResponse(render("error.html", code=code, title=title, text=text, run=run, live=True), code)
