"""An OpenAI-compatible endpoint over a tiny model: whole and streamed answers, limits, and who may ask."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import torch
import trio
import trio.testing

from dlx.node.web import completions as module
from dlx.node.web.completions import Completions
from dlx.training.models import chat_templates
from dlx.training.models.evaluate import EvaluateError
from dlx.training.models.generate import Piece, Sampling, Writer, _overlap
from tests.node.command import dlx
from tests.node.tiny_model import write_model
from tests.patience import PATIENCE, until

CONTEXT = 64


# Roles in turns, as many published templates want them.
TEMPLATE = """{% if messages[0].role != 'user' %}{{ raise_exception('begin with the user') }}{% endif %}\
{% for one in messages %}[{{ one.role }}]{{ one.content }}{% endfor %}\
{% if add_generation_prompt %}[assistant]{% endif %}"""


WITH_TOOLS = """{% for tool in tools or [] %}<tool>{{ tool | tojson }}{% endfor %}\
{% for one in messages %}[{{ one.role }}{% if one.name %} {{ one.name }}{% endif %}\
{% if one.tool_call_id %} {{ one.tool_call_id }}{% endif %}]{{ one.content }}\
{% for call in one.tool_calls or [] %}<call {{ call.id }}>{{ call.function | tojson }}{% endfor %}{% endfor %}\
{% if add_generation_prompt %}[assistant]{% endif %}"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"), CONTEXT)


@pytest.fixture(scope="module")
def writer(folder: Path) -> Writer:
    return Writer(folder)


def asked(app: Any, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
    async def go() -> httpx.Response:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            content = body if isinstance(body, str | bytes) or body is None else json.dumps(body)
            return await client.request(method, path, content=content, headers=headers, timeout=PATIENCE)

    return trio.run(go)


def whole(writer: Writer, prompt: str, how: Sampling) -> tuple[str, str | None]:
    pieces = list(writer.write(writer.tokens(prompt), how))
    assert all(piece.end is None for piece in pieces[:-1])
    return "".join(piece.text for piece in pieces), pieces[-1].end


# ---- the model


def test_the_likeliest_tokens_are_transformers_own(writer: Writer) -> None:
    ids = torch.tensor([writer.tokens("hello")])
    expected = writer._model.generate(ids, max_new_tokens=12, do_sample=False)[0, 5:]
    found, _ = whole(writer, "hello", Sampling(12, temperature=0))
    assert found == writer._tokenizer.decode(expected, skip_special_tokens=True)


def test_chance_is_repeated_by_its_seed_and_the_least_top_p_leaves_one_choice(writer: Writer) -> None:
    texts = [whole(writer, "hello", Sampling(20, temperature=2.0, seed=seed))[0] for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    greedy = whole(writer, "hello", Sampling(20, temperature=0))
    assert whole(writer, "hello", Sampling(20, temperature=1e-300, seed=1)) == greedy
    assert whole(writer, "hello", Sampling(20, top_p=1e-6)) == greedy


def test_an_answer_ends_before_a_stop_of_which_nothing_is_said_early(writer: Writer) -> None:
    text, _ = whole(writer, "hello", Sampling(30, temperature=2.0, seed=5))
    stop = text[4:7]
    cut = text[: text.find(stop)]
    pieces = list(writer.write(writer.tokens("hello"), Sampling(30, temperature=2.0, seed=5, stop=(stop,))))
    assert ("".join(piece.text for piece in pieces), pieces[-1].end) == (cut, "stop")
    assert _overlap("abc", "cd") == 1 and _overlap("abc", "abcd") == 3 and _overlap("abc", "x") == 0


def test_a_folder_without_a_model_is_told_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(EvaluateError):
        Writer(tmp_path)


def test_loading_draws_no_bar_into_a_log(writer: Writer, capfd: pytest.CaptureFixture[str]) -> None:
    from transformers.utils import logging

    logging.enable_progress_bar()
    Writer(Path(writer._model.name_or_path))
    assert "%" not in capfd.readouterr().err


# ---- the endpoint


def test_requests_of_other_shapes_that_clients_send_are_the_same_request(writer: Writer) -> None:
    app, how = Completions(writer, "x").app(), {"temperature": 0, "max_tokens": 6}

    def said(path: str, **body: Any) -> Any:
        found = asked(app, "POST", path, how | body)
        assert found.status_code == 200, found.text
        return {name: value for name, value in found.json()["choices"][0].items()}

    assert said("/v1/completions", prompt=["hello"]) == said("/v1/completions", prompt="hello")
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    one, other = ([{"role": "user", "content": content}] for content in ("hello", parts))
    assert said("/v1/chat/completions", messages=one) == said("/v1/chat/completions", messages=other)
    short = said("/v1/completions", prompt="hello", max_completion_tokens=2)
    assert len(short["text"]) < len(said("/v1/completions", prompt="hello")["text"])
    for wrong in ({"prompt": ["a", "b"]}, {"prompt": [1, 2]}, {"prompt": []}):
        assert asked(app, "POST", "/v1/completions", wrong).status_code == 400
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    assert asked(app, "POST", "/v1/chat/completions", {"messages": image}).status_code == 400


def test_a_conversation_is_asked_as_the_models_own_template_has_it(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    own = Writer(folder)
    (folder / "chat_template.jinja").unlink()
    hello = {"role": "user", "content": "hi"}
    assert own.chat([hello]) == "[user]hi[assistant]"
    app = Completions(own, "mine").app()
    answer = asked(app, "POST", "/v1/chat/completions", {"messages": [hello | {"role": "assistant"}]})
    assert answer.status_code == 400 and "begin with the user" in answer.json()["error"]["message"]


ENDLESS = (
    "{% set r = range(100000) %}{% for a in r %}{% for b in r %}{% for c in r %}{% endfor %}{% endfor %}{% endfor %}"
)
GROWING = "{% set it = namespace(text='a') %}{% for _ in range(50) %}{% set it.text = it.text + it.text %}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "why"),
    [
        (ENDLESS, "takes more than 1 s"),
        (GROWING, "takes more than 512 MiB"),
        ("{{ 'a' * 3000000 }}", "writes more than 2,097,152 characters"),
        ("{{ '\\ud800' }}", "refuses this ('utf-8'"),
    ],
)
def test_a_template_without_bounds_is_refused_and_the_next_conversation_is_not(
    template: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_templates, "SECONDS", 1.0 if template == ENDLESS else 60.0)
    write_model(tmp_path, CONTEXT)
    (tmp_path / "chat_template.jinja").write_text(f"{{% if messages[0].content == 'hi' %}}{template}{{% endif %}}")
    app = Completions(Writer(tmp_path), "mine").app()
    answer = asked(app, "POST", "/v1/chat/completions", {"messages": [USER]})
    said = answer.json()["error"]["message"]
    assert answer.status_code == 400 and f"the model's chat template {why}" in said and "\n" not in said
    fine = {"messages": [USER | {"content": "hello"}], "max_tokens": 1}
    assert asked(app, "POST", "/v1/chat/completions", fine).status_code == 200


def test_others_are_answered_while_a_template_takes_its_time(tmp_path: Path) -> None:
    write_model(tmp_path, CONTEXT)
    (tmp_path / "chat_template.jinja").write_text(ENDLESS)
    app, ended = Completions(Writer(tmp_path), "mine").app(), list[tuple[str, int]]()

    async def go() -> None:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:

            async def ask(path: str, body: Any) -> None:
                ended.append((path, (await client.post(path, json=body, timeout=PATIENCE)).status_code))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, "/v1/chat/completions", {"messages": [USER]})
                await trio.testing.wait_all_tasks_blocked()
                await ask("/v1/completions", {"prompt": "hello", "max_tokens": 2})

    trio.run(go)
    assert ended == [("/v1/completions", 200), ("/v1/chat/completions", 400)]


def test_a_server_ends_when_it_is_told_to_whatever_a_template_does(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", CONTEXT)
    (model / "chat_template.jinja").write_text(ENDLESS)
    dlx("init", "--datadir", tmp_path / "node", "--insecure-devnet")
    words = ["serve", model, "--bind", "127.0.0.1:0", "--device", "cpu", "--datadir", tmp_path / "node"]
    command = [sys.executable, "-m", "dlx.node.cli.app", *map(str, words)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        watch = threading.Timer(PATIENCE, server.kill)
        watch.start()
        try:
            assert server.stderr is not None
            url = next(line.split()[-1] for line in server.stderr if "answers at" in line)
            body = {"messages": [USER], "model": "m"}
            asking = threading.Thread(target=_unanswered, args=(f"{url}/chat/completions", body))
            asking.start()
            until("there is the template's process", psutil.Process(server.pid).children)
            server.send_signal(signal.SIGTERM)
            assert server.wait() == 0
            asking.join()
        finally:
            watch.cancel()
            server.kill()


def _unanswered(url: str, body: Any) -> None:
    with suppress(httpx.HTTPError):
        httpx.post(url, json=body, timeout=PATIENCE)


USER = {"role": "user", "content": "hi"}
TOOL = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "b": 1, "a": 2}, "strict": True},
}
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"b": 1, "a": 2}'}}
CALLS = [
    USER,
    {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None},
    {"role": "tool", "tool_call_id": "c1", "name": "add", "content": [{"type": "text", "text": "3"}]},
    {"role": "assistant", "content": "3", "tool_calls": None},
]


def test_the_template_gets_tools_and_their_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(tmp_path, 1024)
    (tmp_path / "chat_template.jinja").write_text(WITH_TOOLS)
    tokens, prompts = Writer.tokens, list[str]()
    monkeypatch.setattr(Writer, "tokens", lambda self, text: (prompts.append(text), tokens(self, text))[1])
    app, how = Completions(Writer(tmp_path), "mine").app(), {"max_tokens": 1, "tool_choice": "auto"}
    for body in ({"messages": CALLS, "tools": [TOOL]}, {"messages": [USER], "tools": None}):
        answer = asked(app, "POST", "/v1/chat/completions", how | body)
        assert answer.status_code == 200, answer.text
    assert prompts == [
        '<tool>{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "b": 1, "a": 2}, '
        '"strict": true}}[user]hi[assistant]<call c1>{"name": "add", "arguments": {"b": 1, "a": 2}}'
        "[tool add c1]3[assistant]3[assistant]",
        "[user]hi[assistant]",
    ]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"tools": [{"type": "web_search"}]}, "$.tools[0]"),
        ({"tools": [{"type": "function", "function": {"parameters": {}}}]}, "expected a `function` with a `name`"),
        ({"tools": [TOOL] * 129}, "$.tools"),
        ({"messages": [USER | {"content": None}]}, "expected `content`"),
        ({"messages": [{"role": "assistant", "tool_calls": []}]}, "expected `content`"),
        ({"messages": [{"role": "assistant", "tool_calls": [CALL] * 129}]}, "tool_calls"),
        *(
            ({"messages": [{"role": "assistant", "tool_calls": [CALL | {"function": function}]}]}, why)
            for function, why in (
                ({"name": "add", "arguments": "a + b"}, "expected `arguments`"),
                ({"name": "add", "arguments": "[1]"}, "expected `arguments`"),
                ({"name": "add", "arguments": "[" * 100_000}, "expected `arguments`"),
                ({"name": "add", "arguments": {"a": 1}}, "arguments"),
                ({"name": "a" * 257, "arguments": ""}, "name"),
            )
        ),
        ({"messages": [USER | {"tool_call_id": 5}]}, "tool_call_id"),
        ({"tools": [TOOL]}, "no chat template, which tools need"),
        ({"messages": CALLS}, "no chat template, which tools need"),
    ],
)
def test_tools_that_cannot_be_taken_are_refused_in_a_line(writer: Writer, changes: dict[str, Any], why: str) -> None:
    answer = asked(Completions(writer, "m").app(), "POST", "/v1/chat/completions", {"messages": [USER]} | changes)
    said = answer.json()["error"]["message"]
    assert answer.status_code == 400 and why in said and "\n" not in said and len(said) < 300


@pytest.mark.parametrize(
    ("settings", "usual"),
    [
        (None, (1.0, 1.0)),
        ({"eos_token_id": 0}, (1.0, 1.0)),
        ({"do_sample": True, "temperature": 2, "top_p": 0.5}, (2.0, 0.5)),
        ({"temperature": 0.25}, (0.25, 1.0)),
        ({"do_sample": False}, (0.0, 1.0)),
        ({"do_sample": False, "temperature": 0.7, "top_p": 0.9}, (0.0, 0.9)),
        ({"do_sample": True, "temperature": -1, "top_p": 0}, (1.0, 1.0)),
        ({"do_sample": True, "temperature": "hot", "top_p": True}, (1.0, 1.0)),
    ],
)
def test_who_says_no_temperature_gets_that_of_the_models_folder(
    settings: dict[str, Any] | None, usual: tuple[float, float], tmp_path: Path
) -> None:
    path = write_model(tmp_path, CONTEXT) / "generation_config.json"
    path.unlink() if settings is None else path.write_text(json.dumps(settings))
    app, given = Completions(Writer(tmp_path), "m").app(), {"prompt": "hello", "max_tokens": 20, "seed": 3}

    def said(**changes: Any) -> str:
        found = asked(app, "POST", "/v1/completions", given | changes)
        assert found.status_code == 200, found.text
        return found.json()["choices"][0]["text"]

    temperature, top_p = usual
    assert said() == said(temperature=None) == said(temperature=temperature, top_p=top_p)
    assert said(temperature=3) == said(temperature=3, top_p=top_p)


def test_models_completions_and_chats_are_answered(writer: Writer) -> None:
    app = Completions(writer, "dlx:1/0x/0x@3").app()
    assert asked(app, "GET", "/v1/models").json()["data"][0]["id"] == "dlx:1/0x/0x@3"
    given = {"model": "any", "prompt": "hello", "max_tokens": 6, "temperature": 0, "user": "ignored"}
    found = asked(app, "POST", "/v1/completions", given).json()
    text = whole(writer, "hello", Sampling(6, temperature=0))[0]
    assert found["object"] == "text_completion" and found["choices"][0]["text"] == text
    assert found["choices"][0]["finish_reason"] in ("length", "stop")
    chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "temperature": 0}
    found = asked(app, "POST", "/v1/chat/completions", chat).json()
    assert found["object"] == "chat.completion" and found["choices"][0]["message"]["role"] == "assistant"
    expected = whole(writer, "user: hi\nassistant:", Sampling(4, temperature=0))[0]
    assert found["choices"][0]["message"]["content"] == expected


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_streamed_answer_is_the_whole_one_in_pieces(writer: Writer, path: str) -> None:
    app = Completions(writer, "m").app()
    given: dict[str, Any] = {"max_tokens": 10, "temperature": 0}
    chat = "chat" in path
    given |= {"messages": [{"role": "user", "content": "hi"}]} if chat else {"prompt": "hi"}
    one = asked(app, "POST", path, given).json()["choices"][0]
    streamed = asked(app, "POST", path, given | {"stream": True})
    assert streamed.headers["content-type"].startswith("text/event-stream")
    *lines, done = [line.removeprefix("data: ") for line in streamed.text.split("\n\n") if line]
    assert done == "[DONE]"
    choices = [json.loads(line)["choices"][0] for line in lines]
    texts = [each["delta"]["content"] if chat else each["text"] for each in choices]
    assert "".join(texts) == (one["message"]["content"] if chat else one["text"])
    if chat:
        assert [each["delta"].get("role") for each in choices] == ["assistant"] + [None] * (len(choices) - 1)
    assert [each["finish_reason"] for each in choices][:-1] == [None] * (len(choices) - 1)
    assert choices[-1]["finish_reason"] == one["finish_reason"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_null_is_as_if_the_field_was_not_there(writer: Writer, path: str) -> None:
    app = Completions(writer, "m").app()
    given: dict[str, Any] = {"messages": [USER]} if "chat" in path else {"prompt": "hi"}
    fields = ["max_tokens", "max_completion_tokens", "temperature", "top_p", "n", "seed", "stop", "stream"]
    fields += ["suffix", "best_of", "logit_bias", "response_format"]
    fields += ["stream_options", "echo", "logprobs", "top_logprobs", *(["tools"] if "chat" in path else [])]
    answer = asked(app, "POST", path, given | dict.fromkeys(fields))
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_usage_counts_tokens_of_prompt_and_answer(writer: Writer, path: str) -> None:
    app = Completions(writer, "m").app()
    given: dict[str, Any] = {"messages": [USER]} if "chat" in path else {"prompt": "hi"}
    given |= {"max_tokens": 7, "temperature": 0}
    prompt = len("user: hi\nassistant:") if "chat" in path else len("hi")  # a byte is a token
    whole_answer = asked(app, "POST", path, given).json()
    assert whole_answer["choices"][0]["finish_reason"] == "length"
    usage = {"prompt_tokens": prompt, "completion_tokens": 7, "total_tokens": prompt + 7}
    assert whole_answer["usage"] == usage

    def streamed(**options: Any) -> list[dict[str, Any]]:
        *lines, done = asked(app, "POST", path, given | {"stream": True} | options).text.strip().split("\n\n")
        assert done == "data: [DONE]"
        return [json.loads(line.removeprefix("data: ")) for line in lines]

    *pieces, last = streamed(stream_options={"include_usage": True})
    assert (last["choices"], last["usage"]) == ([], usage)
    assert all(piece["choices"] and piece["usage"] is None for piece in pieces)
    for options in ({}, {"stream_options": None}, {"stream_options": {"include_usage": None}}):
        assert all(piece["choices"] and "usage" not in piece for piece in streamed(**options))


def test_every_token_that_the_model_wrote_is_counted(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that end an answer, of which nothing is said."""
    how, written = Sampling(30, temperature=2.0, seed=5), list[int]()
    text = whole(writer, "hello", how)[0]
    hook = writer._model.register_forward_hook(lambda *_: written.append(1))
    try:
        for changes, end in (({}, "length"), ({"stop": (text[4:7],)}, "stop"), ({"max_tokens": 3}, "length")):
            written.clear()
            *_, last = writer.write(writer.tokens("hello"), how._replace(**changes))
            assert (last.end, last.tokens) == (end, len(written))
        monkeypatch.setattr(writer, "_ends", frozenset(range(256)))
        assert list(writer.write(writer.tokens("hello"), how)) == [Piece("", "stop", 1)]
    finally:
        hook.remove()


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"n": 2}, "`n`"),
        ({"n": 0}, "`n`"),
        ({"echo": True}, "`echo`"),
        ({"logprobs": 1}, "`logprobs`"),
        ({"logprobs": 0}, "`logprobs`"),  # of the chosen tokens alone
        ({"logprobs": True, "top_logprobs": 5}, "`logprobs`"),
        ({"suffix": "b"}, "`suffix`"),
        ({"best_of": 3}, "`best_of`"),
        ({"logit_bias": {"5": -100}}, "`logit_bias`"),
        ({"response_format": {"type": "json_object"}}, "`response_format`"),
    ],
)
def test_what_would_be_another_answer_is_refused_in_plain_words(
    writer: Writer, changes: dict[str, Any], field: str
) -> None:
    app, given = Completions(writer, "m").app(), {"prompt": "a", "max_tokens": 1}
    answer = asked(app, "POST", "/v1/completions", given | changes)
    assert answer.status_code == 400 and answer.json()["error"]["message"].startswith(f"{field}: ")
    nothing: dict[str, Any] = {"echo": False, "logprobs": False, "top_logprobs": 0, "n": 1}
    nothing |= {"suffix": "", "best_of": 1, "logit_bias": {}, "response_format": {"type": "text"}}
    assert asked(app, "POST", "/v1/completions", given | nothing).status_code == 200


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("{", 400),
        ({"prompt": 5}, 400),
        ({}, 400),
        ({"prompt": "a", "n": 2}, 400),
        ({"prompt": "a", "temperature": -1}, 400),
        ({"prompt": "a", "max_tokens": CONTEXT}, 400),
        ({"prompt": "a" * CONTEXT}, 400),
        (b"x" * (module.MAX_BYTES + 1), 413),
        ("[" * 100_000, 400),
    ],
)
def test_what_cannot_be_answered_is_refused_in_openais_form(writer: Writer, body: Any, code: int) -> None:
    found = asked(Completions(writer, "m").app(), "POST", "/v1/completions", body)
    assert found.status_code == code and found.json()["error"]["message"]


def test_too_many_at_a_time_are_sent_away(writer: Writer) -> None:
    served = Completions(writer, "m")
    for other in range(module.WAITING):
        served._answers.acquire_on_behalf_of_nowait(other)
    assert asked(served.app(), "POST", "/v1/completions", {"prompt": "a"}).status_code == 429


def test_those_whose_turn_has_not_come_count_too(writer: Writer) -> None:
    served, codes = Completions(writer, "m"), list[int]()
    given = {"prompt": "a", "max_tokens": 1}

    async def go() -> None:
        transport = httpx.ASGITransport(app=served.app())
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:

            async def ask() -> None:
                codes.append((await client.post("/v1/completions", json=given, timeout=PATIENCE)).status_code)

            async with trio.open_nursery() as nursery:
                async with served._turn:
                    for _ in range(module.WAITING):
                        nursery.start_soon(ask)
                    await trio.testing.wait_all_tasks_blocked()
                    await ask()
        assert codes == [429] + [200] * module.WAITING

    trio.run(go)


def test_only_this_machine_or_who_has_the_token_is_answered(writer: Writer) -> None:
    near, far = Completions(writer, "m").app(), Completions(writer, "m", token="t" * 16).app()
    given = {"prompt": "a", "max_tokens": 1}
    assert asked(near, "POST", "/v1/completions", given, host="evil.example").status_code == 400
    assert asked(near, "POST", "/v1/completions", given, origin="http://evil.example").status_code == 403
    for headers, code in (
        ({}, 401),
        ({"authorization": "Bearer wrong"}, 401),
        ({"authorization": "Bearer " + "t" * 16}, 200),
    ):
        assert asked(far, "POST", "/v1/completions", given, host="node.example", **headers).status_code == code


def test_a_whole_answer_that_fails_is_an_error_and_not_half_an_answer(writer: Writer, monkeypatch) -> None:
    def failing(*_: Any) -> Any:
        yield Piece("half", None, 1)
        raise MemoryError("no room")

    monkeypatch.setattr(Writer, "write", failing)
    app = Completions(writer, "m").app()

    async def go() -> int:
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return (await client.post("/v1/completions", json={"prompt": "a"})).status_code

    assert trio.run(go) == 500


def test_an_answer_is_written_in_pieces_and_is_the_same_as_the_whole(writer: Writer) -> None:
    app, given = Completions(writer, "m").app(), {"prompt": "hello", "max_tokens": 12, "temperature": 0}
    whole_answer = asked(app, "POST", "/v1/completions", given)
    assert int(whole_answer.headers["content-length"]) == len(whole_answer.content)
    lines = asked(app, "POST", "/v1/completions", given | {"stream": True}).text.split("\n\n")
    pieces = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    assert len(pieces) > 2
    assert "".join(piece["choices"][0]["text"] for piece in pieces) == whole_answer.json()["choices"][0]["text"]


def test_who_hangs_up_ends_the_answer(writer: Writer) -> None:
    served = Completions(writer, "m")
    app, sent = served.app(), list[Any]()
    body = json.dumps({"prompt": "a", "max_tokens": 60, "stream": True, "temperature": 0, "stop": None}).encode()
    scope = {
        "type": "http", "method": "POST", "path": "/v1/completions", "query_string": b"", "root_path": "",
        "headers": [(b"host", b"127.0.0.1")], "http_version": "1.1", "scheme": "http",
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
    }  # fmt: skip
    came, pieces = trio.Event(), 0

    async def receive() -> dict[str, Any]:
        if not sent:
            sent.append("asked")
            return {"type": "http.request", "body": body, "more_body": False}
        await came.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        nonlocal pieces
        if message.get("body"):
            pieces += 1
            came.set()
            await trio.sleep(0.05)

    async def go() -> None:
        nonlocal came
        came = trio.Event()
        with trio.fail_after(PATIENCE):
            await app(scope, receive, send)

    trio.run(go)
    assert pieces < 20 and served._answers.borrowed_tokens == 0
