"""An endpoint that speaks as OpenAI's does, for trying a version with the clients that people have.

`/v1/models`, `/v1/completions`, `/v1/chat/completions`, whole or streamed. Models compute one token at a time, of one
answer after the other: those that come together take turns. What a chat template takes to make a prompt holds up other
chats alone.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator
from functools import partial
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
from starlette.types import Send

from dlx.node.web.guard import LOOPBACK_HOSTS, Guard, is_foreign
from dlx.node.web.serving import LimitedStream

if TYPE_CHECKING:
    from dlx.training.models.generate import Piece, Sampling, Writer

MAX_BYTES = 1 << 20  # of a request
WAITING = 16  # answers at a time, written in turns
_MOST_TOOLS = 128  # of a request, and calls of a message
_Text = Annotated[str, Meta(max_length=MAX_BYTES)]
_Count = Annotated[int, Meta(ge=1, le=1 << 20)]
_Name = Annotated[str, Meta(min_length=1, max_length=256)]
_Stops = Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=256)], ...], Meta(max_length=4)]


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _BothRequests(msgspec.Struct, kw_only=True):
    """What both kinds of request have; whatever else clients send is ignored. null is as if it was not there."""

    max_tokens: _Count | None = None
    max_completion_tokens: _Count | None = None  # what newer clients call it
    temperature: Annotated[float, Meta(ge=0, le=10)] | None = None  # as the model's folder asks for
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    n: int | None = None
    seed: Annotated[int, Meta(ge=0, lt=1 << 53)] | None = None
    stop: str | _Stops | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    echo: bool | None = None
    logprobs: bool | int | None = None
    top_logprobs: int | None = None
    suffix: str | None = None
    best_of: int | None = None
    logit_bias: dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        """Raises ValueError for what would be another answer than the one that is written."""
        if self.n not in (None, 1):
            raise ValueError("`n`: one answer is written to a request; ask again for another")
        if self.echo:
            raise ValueError("`echo`: the prompt is not written again before the answer; leave it out")
        if self.top_logprobs or not (self.logprobs is None or self.logprobs is False):  # 0 asks for some
            raise ValueError("`logprobs`: how likely tokens are is not told; leave it out")
        if self.suffix:
            raise ValueError("`suffix`: what follows the answer is not looked at; leave it out")
        if self.best_of not in (None, 1):
            raise ValueError("`best_of`: one answer is written to a request; leave it out")
        if self.logit_bias:
            raise ValueError("`logit_bias`: no token is made likelier; leave it out")
        if self.response_format and self.response_format != {"type": "text"}:
            raise ValueError("`response_format`: answers are text of no given form; leave it out")


class _CompletionRequest(_BothRequests):
    prompt: _Text | Annotated[tuple[_Text, ...], Meta(min_length=1, max_length=1)]

    def text(self) -> str:
        return self.prompt if isinstance(self.prompt, str) else self.prompt[0]


class _Part(msgspec.Struct):
    type: Literal["text"]
    text: _Text


class _Function(msgspec.Struct):
    """Of a call."""

    name: _Name
    arguments: _Text  # JSON, as a model wrote it

    def __post_init__(self) -> None:
        """Raises ValueError."""
        try:
            self.given()
        except (msgspec.MsgspecError, RecursionError):
            raise ValueError("expected `arguments` that are the text of a JSON object") from None

    def given(self) -> dict[str, Any]:
        return msgspec.json.decode(self.arguments or "{}", type=dict[str, Any])


class _Call(msgspec.Struct):
    id: _Name
    function: _Function
    type: Literal["function"] | None = None


class _Tool(msgspec.Struct):
    type: Literal["function"]
    function: dict[str, Any]  # with its keys in their order, as templates write it out

    def __post_init__(self) -> None:
        """Raises ValueError."""
        if not isinstance(self.function.get("name"), str):
            raise ValueError("expected a `function` with a `name`")


class _Message(msgspec.Struct):
    role: Annotated[str, Meta(max_length=32)]
    content: _Text | Annotated[tuple[_Part, ...], Meta(max_length=1000)] | None = None
    name: _Name | None = None
    tool_calls: Annotated[tuple[_Call, ...], Meta(max_length=_MOST_TOOLS)] | None = None
    tool_call_id: _Name | None = None

    def __post_init__(self) -> None:
        """Raises ValueError."""
        if self.content is None and not self.tool_calls:
            raise ValueError("expected `content`, which only a message with `tool_calls` may lack")

    def for_template(self) -> dict[str, Any]:
        """As templates take it, and as conversations are learnt: a call's arguments are an object."""
        parts = self.content or ""
        text = parts if isinstance(parts, str) else "".join(part.text for part in parts)
        calls = [
            {
                "id": one.id,
                "type": "function",
                "function": {"name": one.function.name, "arguments": one.function.given()},
            }
            for one in self.tool_calls or ()
        ]
        beside = {"name": self.name, "tool_calls": calls, "tool_call_id": self.tool_call_id}
        return {"role": self.role, "content": text} | {key: value for key, value in beside.items() if value}


class _ChatRequest(_BothRequests):
    messages: Annotated[list[_Message], Meta(min_length=1, max_length=1000)]
    tools: Annotated[tuple[_Tool, ...], Meta(max_length=_MOST_TOOLS)] | None = None

    def text(self, writer: Writer) -> str:
        """Raises EvaluateError where the model's template refuses the conversation, or has no end."""
        tools = [{"type": one.type, "function": one.function} for one in self.tools or ()]
        return writer.chat([message.for_template() for message in self.messages], tools or None)


_AnyRequest = _CompletionRequest | _ChatRequest
# For what is bounded and changes nothing: a server that is told to stop does not wait for it.
_in_thread = partial(trio.to_thread.run_sync, abandon_on_cancel=True)


class Refused(Exception):
    """What is wrong with a request, and the HTTP status."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Completions:
    """The ASGI application. `name`: what the model is called; `token`: what whoever asks has to have, None where only
    this machine reaches it."""

    def __init__(self, writer: Writer, name: str, token: str | None = None) -> None:
        self._writer, self._name, self._guard, self._since = writer, name, Guard(token), int(time.time())
        self._turn, self._answers = trio.CapacityLimiter(1), trio.CapacityLimiter(WAITING)
        self._template = trio.CapacityLimiter(1)  # its turn: one conversation at a time

    def app(self) -> Starlette:
        hosts = LOOPBACK_HOSTS if self._guard.token is None else ["*"]
        return Starlette(
            routes=[
                Route("/v1/models", self._models),
                Route("/v1/completions", partial(self._answer, kind=_CompletionRequest), methods=["POST"]),
                Route("/v1/chat/completions", partial(self._answer, kind=_ChatRequest), methods=["POST"]),
            ],
            middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False)],
            exception_handlers={Refused: _refusal},
        )

    async def _models(self, request: Request) -> Response:
        self._admit(request)
        model = {"id": self._name, "object": "model", "created": self._since, "owned_by": "dlx"}
        return _json({"object": "list", "data": [model]})

    async def _answer(self, request: Request, kind: type[_AnyRequest]) -> Response:
        self._admit(request)
        body = await _body(request, kind)
        self._find_room()
        text = await self._text(body)
        prompt, sampling = await _in_thread(self._prepared, body, text, limiter=self._turn)
        self._find_room()
        return _Answer(self._pieces(prompt, sampling), len(prompt), body, self._name, self._answers)

    async def _pieces(self, prompt: list[int], sampling: Sampling) -> AsyncIterator[Piece]:
        """Each in a thread, in turn with the other answers."""
        pieces, end = self._writer.write(prompt, sampling), None
        while end is None:
            piece = await trio.to_thread.run_sync(next, pieces, limiter=self._turn)
            end = piece.end
            yield piece

    def _find_room(self) -> None:
        waiting = sum(one.statistics().tasks_waiting for one in (self._turn, self._template))
        if not self._answers.available_tokens or waiting >= WAITING:
            raise _no_room()

    def _admit(self, request: Request) -> None:
        if is_foreign(request):
            raise Refused(403, "another site's page asks")
        if self._guard.token is not None and not self._guard.bears_token(request):
            raise Refused(401, "the token is missing or wrong: Authorization: Bearer TOKEN")

    async def _text(self, body: _AnyRequest) -> str:
        """Of the prompt. A template may take long over a conversation: that holds up other conversations alone."""
        if isinstance(body, _CompletionRequest):
            return body.text()
        return await _in_thread(self._rendered, body, limiter=self._template)

    def _rendered(self, body: _ChatRequest) -> str:
        from dlx.training.models.evaluate import EvaluateError

        try:
            return body.text(self._writer)
        except EvaluateError as error:
            raise Refused(400, str(error)) from None

    def _prepared(self, body: _AnyRequest, text: str) -> tuple[list[int], Sampling]:
        from dlx.training.models.generate import Sampling

        writer = self._writer
        prompt = writer.tokens(text)
        room = writer.context - max(1, len(prompt))
        wanted = body.max_completion_tokens or body.max_tokens or min(room, 256)
        if not 0 < wanted <= room:
            raise Refused(400, f"{len(prompt)} tokens and {wanted} more: the model has room for {writer.context}")
        stops = (body.stop,) if isinstance(body.stop, str) else body.stop or ()
        temperature = writer.temperature if body.temperature is None else body.temperature
        return prompt, Sampling(wanted, temperature, body.top_p or writer.top_p, body.seed, stops)


class _Answer(LimitedStream):
    """Sent in pieces while it is written, or whole. Whoever hangs up ends it."""

    def __init__(
        self,
        pieces: AsyncIterator[Piece],
        asked: int,  # tokens of the prompt
        body: _AnyRequest,
        model: str,
        answers: trio.CapacityLimiter,
    ) -> None:
        self._pieces, self._asked, self._is_chat, self._model = pieces, asked, isinstance(body, _ChatRequest), model
        self._streams_usage = bool(body.stream_options and body.stream_options.include_usage)
        self._id, self._made = f"dlx-{uuid.uuid4().hex}", int(time.time())
        self._in_pieces = body.stream
        kind = "text/event-stream" if body.stream else "application/json"
        super().__init__(self._events(), kind, answers, _no_room(), {"cache-control": "no-store"})

    async def stream_response(self, send: Send) -> None:
        """A whole answer begins once it is there: what fails before is an error, and not half an answer."""
        if self._in_pieces:
            await super().stream_response(send)
            return
        body = await self._whole()
        length = (b"content-length", str(len(body)).encode())
        await send({"type": "http.response.start", "status": self.status_code, "headers": [*self.raw_headers, length]})
        await send({"type": "http.response.body", "body": body, "more_body": False})

    async def _events(self) -> AsyncIterator[bytes]:
        tokens, usage = 0, {"usage": None} if self._streams_usage else {}
        role = {"role": "assistant"}  # of the first piece
        async for piece in self._pieces:
            tokens = piece.tokens
            choice = {"delta": {**role, "content": piece.text}} if self._is_chat else {"text": piece.text}
            role = {}
            yield _event(self._said("chat.completion.chunk", [_choice(choice, piece.end)]) | usage)
        if self._streams_usage:
            yield _event(self._said("chat.completion.chunk", []) | self._usage(tokens))
        yield b"data: [DONE]\n\n"

    async def _whole(self) -> bytes:
        text, why, tokens = "", None, 0
        async for piece in self._pieces:
            text, why, tokens = text + piece.text, piece.end, piece.tokens
        choice = {"message": {"role": "assistant", "content": text}} if self._is_chat else {"text": text}
        return msgspec.json.encode(self._said("chat.completion", [_choice(choice, why)]) | self._usage(tokens))

    def _said(self, chat: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": chat if self._is_chat else "text_completion",
            "created": self._made,
            "model": self._model,
            "choices": choices,
        }

    def _usage(self, written: int) -> dict[str, Any]:
        tokens = {"prompt_tokens": self._asked, "completion_tokens": written, "total_tokens": self._asked + written}
        return {"usage": tokens}


def _choice(said: dict[str, Any], end: str | None) -> dict[str, Any]:
    return {"index": 0, **said, "finish_reason": end}


def _event(said: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(said) + b"\n\n"


async def _body(request: Request, kind: type[_AnyRequest]) -> _AnyRequest:
    """Raises Refused."""
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > MAX_BYTES:
            raise Refused(413, f"more than {MAX_BYTES} bytes")
    try:
        return msgspec.json.decode(bytes(data), type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(400, str(error)) from None


def _no_room() -> Refused:
    return Refused(429, f"{WAITING} answers are being written or asked for: try again later")


def _refusal(_: Request, error: Exception) -> Response:
    code = error.code if isinstance(error, Refused) else 500
    return _json({"error": {"message": str(error), "type": "invalid_request_error", "code": code}}, code)


def _json(body: Any, code: int = 200) -> Response:
    return Response(msgspec.json.encode(body), code, media_type="application/json")
