"""An endpoint that speaks as OpenAI's does, for trying a version with the clients that people have.

`/v1/models`, `/v1/completions`, `/v1/chat/completions`, whole or streamed. Models compute one token at a time, of one
answer after the other: those that come together take turns.
"""

from __future__ import annotations

import hmac
import time
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import trio
from msgspec import Meta
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dlx.node.web.guard import LOOPBACK_HOSTS, is_foreign

if TYPE_CHECKING:
    from dlx.training.models.generate import Sampling, Writer

MOST_BYTES = 1 << 20  # of a request
WAITING = 16  # answers at a time, written in turns
_Text = Annotated[str, Meta(max_length=MOST_BYTES)]
_Count = Annotated[int, Meta(ge=1, le=1 << 20)]
_Stops = Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=256)], ...], Meta(max_length=4)]


class _Asked(msgspec.Struct, kw_only=True):
    """What both kinds of request have; whatever else clients send is ignored."""

    max_tokens: _Count | None = None
    max_completion_tokens: _Count | None = None  # what newer clients call it
    temperature: Annotated[float, Meta(ge=0, le=10)] = 1.0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    n: Annotated[int, Meta(ge=1, le=1)] = 1
    seed: Annotated[int, Meta(ge=0, lt=1 << 53)] | None = None
    stop: str | _Stops | None = None
    stream: bool = False


class _Completion(_Asked):
    prompt: _Text | Annotated[tuple[_Text, ...], Meta(min_length=1, max_length=1)]

    @property
    def text(self) -> str:
        return self.prompt if isinstance(self.prompt, str) else self.prompt[0]


class _Part(msgspec.Struct):
    type: Literal["text"]
    text: _Text


class _Message(msgspec.Struct):
    role: Annotated[str, Meta(max_length=32)]
    content: _Text | Annotated[tuple[_Part, ...], Meta(max_length=1000)]

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class _Chat(_Asked):
    messages: Annotated[list[_Message], Meta(min_length=1, max_length=1000)]


class Refused(Exception):
    """What is wrong with a request, and the HTTP status."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Completions:
    """The ASGI application. `name`: what the model is called; `token`: what whoever asks has to have, None where only
    this machine reaches it."""

    def __init__(self, writer: Writer, name: str, token: str | None = None) -> None:
        self._writer, self._name, self._token, self._since = writer, name, token, int(time.time())
        self._turn = trio.CapacityLimiter(1)
        self._answering = 0

    def app(self) -> Starlette:
        hosts = ["*"] if self._token is not None else LOOPBACK_HOSTS
        return Starlette(
            routes=[
                Route("/v1/models", self._models),
                Route("/v1/completions", self._completion, methods=["POST"]),
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
            ],
            middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False)],
        )

    async def _models(self, request: Request) -> Response:
        try:
            self._admit(request)
        except Refused as error:
            return _refusal(error)
        model = {"id": self._name, "object": "model", "created": self._since, "owned_by": "dlx"}
        return _json({"object": "list", "data": [model]})

    async def _completion(self, request: Request) -> Response:
        return await self._answer(request, _Completion)

    async def _chat(self, request: Request) -> Response:
        return await self._answer(request, _Chat)

    async def _answer(self, request: Request, kind: type[_Completion] | type[_Chat]) -> Response:
        try:
            self._admit(request)
            asked = await _body(request, kind)
            self._find_room()
            prompt, how = await trio.to_thread.run_sync(self._prepared, asked, limiter=self._turn)
            self._find_room()
        except Refused as error:
            return _refusal(error)
        return _Answer(self, asked, prompt, how)

    def _find_room(self) -> None:
        if max(self._answering, self._turn.statistics().tasks_waiting) >= WAITING:
            raise Refused(429, f"{WAITING} answers are being written or asked for: try again later")

    def _admit(self, request: Request) -> None:
        if is_foreign(request):
            raise Refused(403, "another site's page asks")
        if self._token is not None:
            kind, _, given = request.headers.get("authorization", "").partition(" ")
            if kind.lower() != "bearer" or not hmac.compare_digest(given.encode(), self._token.encode()):
                raise Refused(401, "the token is missing or wrong: Authorization: Bearer TOKEN")

    def _prepared(self, asked: _Completion | _Chat) -> tuple[list[int], Sampling]:
        from dlx.training.models.evaluate import EvaluateError
        from dlx.training.models.generate import Sampling

        writer = self._writer
        if isinstance(asked, _Chat):
            try:
                said = writer.chat([{"role": one.role, "content": one.text} for one in asked.messages])
            except EvaluateError as error:
                raise Refused(400, str(error)) from None
            prompt = writer.tokens(said)
        else:
            prompt = writer.tokens(asked.text)
        room = writer.context - max(1, len(prompt))
        wanted = asked.max_completion_tokens or asked.max_tokens or min(room, 256)
        if not 0 < wanted <= room:
            raise Refused(400, f"{len(prompt)} tokens and {wanted} more: the model has room for {writer.context}")
        stops = (asked.stop,) if isinstance(asked.stop, str) else asked.stop or ()
        return prompt, Sampling(wanted, asked.temperature, asked.top_p, asked.seed, stops)


class _Answer(Response):
    """Written while it is sent; whoever hangs up ends it."""

    def __init__(self, of: Completions, asked: _Completion | _Chat, prompt: list[int], how: Sampling) -> None:
        self._of, self._asked, self._prompt, self._how = of, asked, prompt, how
        self._id, self._made = f"dlx-{uuid.uuid4().hex}", int(time.time())
        self._is_chat = isinstance(asked, _Chat)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def hang_up() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            nursery.cancel_scope.cancel()

        self._of._answering += 1
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(hang_up)
                await (self._stream(send) if self._asked.stream else self._whole(send))
                nursery.cancel_scope.cancel()
        finally:
            self._of._answering -= 1

    async def _stream(self, send: Any) -> None:
        headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        pieces = self._of._writer.write(self._prompt, self._how)
        end: str | None = None
        while end is None:
            text, end = await self._next(pieces)
            said = {"delta": {"role": "assistant", "content": text}} if self._is_chat else {"text": text}
            await _send(send, b"data: " + msgspec.json.encode(self._said("chunk", said, end)) + b"\n\n")
        await _send(send, b"data: [DONE]\n\n")
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _whole(self, send: Any) -> None:
        pieces = self._of._writer.write(self._prompt, self._how)
        found, end = "", None
        while end is None:
            text, end = await self._next(pieces)
            found += text
        said = {"message": {"role": "assistant", "content": found}} if self._is_chat else {"text": found}
        body = msgspec.json.encode(self._said("", said, end))
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})

    async def _next(self, pieces: Iterator[tuple[str, str | None]]) -> tuple[str, str | None]:
        """In a thread, in turn with the other answers."""
        return await trio.to_thread.run_sync(next, pieces, limiter=self._of._turn)

    def _said(self, kind: str, choice: dict[str, Any], end: str | None) -> dict[str, Any]:
        name = "chat.completion" if self._is_chat else "text_completion"
        return {
            "id": self._id,
            "object": f"{name}.{kind}" if kind and self._is_chat else name,
            "created": self._made,
            "model": self._of._name,
            "choices": [{"index": 0, **choice, "finish_reason": end}],
        }


async def _body(request: Request, kind: type[_Completion] | type[_Chat]) -> _Completion | _Chat:
    """Raises Refused."""
    data = bytearray()
    async for piece in request.stream():
        data += piece
        if len(data) > MOST_BYTES:
            raise Refused(413, f"more than {MOST_BYTES} bytes")
    try:
        return msgspec.json.decode(bytes(data), type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(400, str(error)) from None


def _refusal(error: Refused) -> Response:
    return _json({"error": {"message": str(error), "type": "invalid_request_error", "code": error.code}}, error.code)


def _json(body: Any, code: int = 200) -> Response:
    return Response(msgspec.json.encode(body), code, media_type="application/json")


async def _send(send: Any, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})
