"""Conversations: what a row says, what a template makes of it, and which tokens are learnt."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from dlx.training.data import entries, template_check, tokenising
from dlx.training.data.conversations import ConversationError, Template, conversation
from dlx.training.data.prepare import Preparation, prepare_folder
from dlx.training.data.rows import IDS, SILENT
from dlx.training.data.shards import DataError, Dataset, PreparationError, check
from dlx.training.data.vocabulary import Vocabulary
from dlx.training.models.batches import documents, parted
from tests.training import texts

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MARKED = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
    "<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}\n{% endfor %}"
)
FORGETS = (  # what was thought, once the conversation went on: as the templates of thinking models
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.last %}<think></think>{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_LISTED = "{% for tool in tools %}<tool>{{ tool | tojson }}\n{% endfor %}"
_CALLED = (
    "{% for call in m.tool_calls or [] %}"
    "{% if not call.function.arguments %}{{ raise_exception('a call without arguments') }}{% endif %}"
    "<call>{{ call.function | tojson }}{% endfor %}{{ m.content }}<|im_end|>"
)
CALLS = _LISTED + CHATML.replace("{{ m.content }}<|im_end|>", _CALLED)
MARKED_CALLS = _LISTED + MARKED.replace("{{ m.content }}<|im_end|>", _CALLED)
ASKED = [{"role": "user", "content": "What is 2 + 2?"}, {"role": "assistant", "content": "Four."}]
LONGER = [*ASKED, {"role": "user", "content": "Ünd 漢字 🙂?"}, {"role": "assistant", "content": "  Five,\n\n🙂 six. "}]


def _messages(row: dict[str, Any]) -> Any:
    found = conversation(row)
    assert found is not None
    return json.loads(found)["messages"]


def test_rows_of_every_shape_say_the_same() -> None:
    shared = [{"from": "human", "value": "What is 2 + 2?"}, {"from": "gpt", "value": "Four."}]
    for row in (
        {"messages": ASKED, "id": 7},
        {"messages": json.dumps(ASKED)},
        {"conversations": shared},
        {"conversations": ASKED},
        {"prompt": "What is 2 + 2?", "completion": "Four."},
        {"prompt": ASKED[:1], "completion": ASKED[1:]},
        {"instruction": "What is 2 + 2?", "input": "", "output": "Four.", "text": "Below is an instruction"},
        {"messages": [ASKED[0], ASKED[1] | {"weight": 1}]},
        {"messages": [{"content": [{"type": "text", "text": "What is 2 + 2?"}], "role": "user"}, ASKED[1]]},
    ):
        assert _messages(row) == ASKED, row
    system = {"role": "system", "content": "Be brief."}
    assert _messages({"conversations": shared, "system": "Be brief."}) == [system, *ASKED]
    assert _messages({"messages": [system, *ASKED], "system": "Other."}) == [system, *ASKED]
    (asked, _) = _messages({"instruction": "Translate.", "input": "Four", "output": "Vier"})
    assert asked["content"] == "Translate.\n\nFour"
    assert conversation({"instruction": "", "output": ""}) is None
    assert conversation({"messages": None}) is conversation({"prompt": "", "completion": ""}) is None


@pytest.mark.parametrize("ending", [".jsonl", ".json"])
def test_what_pythons_json_writes_is_read(ending: str, tmp_path: Path) -> None:
    asked, said = ASKED[0] | {"content": "cut \ud83d"}, ASKED[1] | {"logprob": float("nan")}
    rows: list[dict[str, Any]] = [
        {"messages": [asked, said], "score": float("inf")},
        {"messages": json.dumps([asked, said]), "score": float("inf")},
        {"prompt": "cut \ud83d", "completion": "Four.", "\udfff": None},
    ]
    path = tmp_path / f"a{ending}"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="ascii")
    found = [json.loads(b"".join(one.pieces)) for one in entries.documents("a", path, None, False) or ()]
    assert [row["messages"] for row in found] == [[asked | {"content": "cut \ufffd"}, ASKED[1]]] * 3


def test_calls_of_tools_keep_their_keys_and_their_order() -> None:
    call = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"function": {"name": "f", "arguments": {"b": 1, "a": 2}}}],
    }
    as_text = {"function": {"name": "f", "arguments": '{"b": 1, "a": 2}'}}
    assert _messages({"messages": [ASKED[0], call]}) == _messages(
        {"messages": [ASKED[0], call | {"tool_calls": [as_text]}]}
    ), "as the wire has it"
    for other in ("not JSON", "[1]"):
        kept = [{"function": {"name": "f", "arguments": other}}]
        assert _messages({"messages": [ASKED[0], call | {"tool_calls": kept}]})[1]["tool_calls"] == kept
    found = conversation({"messages": [ASKED[0], call], "tools": json.dumps([{"type": "function", "name": "f"}])})
    assert found is not None and b'"arguments":{"b":1,"a":2}' in found and b'"content":""' in found
    assert json.loads(found)["tools"] == [{"type": "function", "name": "f"}]


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ([], "expected an object"),
        ({"text": "a"}, "has no conversation: .* got 'text'"),
        ({"messages": ASKED[:1]}, "no message is an assistant's"),
        ({"messages": {}}, "no list"),
        ({"messages": "Hello"}, "no list of messages"),
        ({"messages": ["Hello"]}, "message 1 is no object"),
        ({"messages": [{"content": "a"}]}, "message 1 has no `role`"),
        ({"messages": [*ASKED, {"role": "user"}]}, "message 3 has no `content`"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "message 1 holds something else than text"),
        ({"messages": [ASKED[0], ASKED[1] | {"weight": 0.5}]}, "message 2 has the `weight` 0.5: expected 0 or 1"),
        ({"messages": [ASKED[0], ASKED[1] | {"weight": [0]}]}, "message 2 has the `weight`"),
        ({"messages": [ASKED[0], ASKED[1] | {"weight": "0"}]}, "message 2 has the `weight` '0': expected 0 or 1"),
        ({"messages": [ASKED[0] | {"weight": 0}]}, "no message is an assistant's"),
        ({"messages": [ASKED[0], ASKED[1] | {"weight": 0}]}, "every message of an assistant has `weight` 0"),
        ({"instruction": "a", "response": "b"}, "has no `output`"),
        ({"instruction": "", "input": "a", "output": "b"}, "has no `instruction`"),
        ({"instruction": "a", "input": {"b": 1}, "output": "c"}, "`input` is no text"),
        ({"conversations": [{"from": "martian", "value": "a"}]}, "message 1 is from 'martian': expected system, human"),
        ({"conversations": [{"from": ["human"], "value": "a"}]}, r"message 1 is from .\['human'\].: expected"),
        ({"prompt": "a", "chosen": "b"}, "has no `completion`"),
        ({"completion": "a"}, "has no `prompt`"),
        ({"messages": ASKED, "tools": "f()"}, "`tools` are no JSON"),
    ],
)
def test_a_row_that_is_no_conversation_is_refused(row: Any, why: str) -> None:
    with pytest.raises(ConversationError, match=why):
        conversation(row)


def _spoken(template: str, messages: list[dict[str, Any]]) -> list[list[str]]:
    found = conversation({"messages": messages})
    assert found is not None
    rendered = Template(template, {}).rendered(found)
    return [[one.text[low:high] for low, high in one.spoken] for one in rendered]


def test_what_an_assistant_says_is_learnt() -> None:
    assert _spoken(CHATML, LONGER) == [["Four.<|im_end|>\n", "  Five,\n\n🙂 six. <|im_end|>\n"]]
    assert _spoken(MARKED, LONGER) == [["Four.<|im_end|>", "  Five,\n\n🙂 six. <|im_end|>"]]
    turns = [["<think></think>Four.<|im_end|>\n"], ["<think></think>  Five,\n\n🙂 six. <|im_end|>\n"]]
    assert _spoken(FORGETS, LONGER) == turns, "each answer as it is asked for, where it is written in another way later"


def test_what_an_assistant_says_with_weight_0_is_not_learnt() -> None:
    said: list[dict[str, Any]] = [LONGER[0], LONGER[1] | {"weight": 0}, *LONGER[2:], LONGER[0]]
    said.append({"role": "assistant", "content": "Seven."})
    assert _spoken(CHATML, said) == [["  Five,\n\n🙂 six. <|im_end|>\n", "Seven.<|im_end|>\n"]]
    assert _spoken(MARKED, said) == [["  Five,\n\n🙂 six. <|im_end|>", "Seven.<|im_end|>"]]
    assert len(_spoken(FORGETS, said)) == 2, "no sample for what is not learnt"
    shared = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b", "weight": 0}]
    found = conversation({"conversations": [*shared, *[one | {"weight": 1} for one in shared]], "system": "Be brief."})
    assert found is not None and json.loads(found)["silent"] == [2] and b"weight" not in found
    only_once = MARKED.replace("m.role == 'assistant'", "m.role == 'assistant' and loop.last")
    with pytest.raises(ConversationError, match=r"marks 1 places in 3 answers, .* `weight` 0 is not clear"):
        _spoken(only_once, said)
    content_alone = MARKED.replace("<|im_end|>{% endgeneration %}", "{% endgeneration %}<|im_end|>")
    with pytest.raises(ConversationError, match="marks nothing"):
        _spoken(content_alone, [LONGER[0], LONGER[1] | {"weight": 0}, LONGER[0], LONGER[1] | {"content": ""}])


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{% if", "cannot be read"),
        ("{{ raise_exception('no system here') }}", "refuses it .no system here."),
        ("{{ messages[0].content.x.y }}", "refuses it"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "refuses it"),
        (
            "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}A:{% endif %}",
            "message 2 in an",
        ),
        ("{% if false %}{% generation %}{% endgeneration %}{% endif %}{{ messages }}", "marks nothing"),
    ],
)
def test_what_a_template_refuses_is_said(template: str, why: str) -> None:
    with pytest.raises(ConversationError, match=why):
        _spoken(template, ASKED)


def _folder(folder: Path, template: str = CHATML) -> Path:
    """With a tokenizer, and how it is used."""
    texts.tokenizer(folder / "tokenizer.json", SPECIAL, size=320)
    settings = {"eos_token": "<|im_end|>", "tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def test_the_loss_mask_is_that_of_transformers(tmp_path: Path) -> None:
    folder = _folder(tmp_path, MARKED)
    theirs = AutoTokenizer.from_pretrained(folder).apply_chat_template(
        LONGER, return_assistant_tokens_mask=True, return_dict=True
    )
    found = conversation({"messages": LONGER})
    assert found is not None
    (sample,) = Vocabulary.read(folder / "tokenizer.json").spoken(Template(MARKED, {}).rendered(found))
    assert list(sample.ids) == theirs["input_ids"]
    assert list(map(int, sample.counts)) == theirs["assistant_masks"]


def _rows(count: int) -> list[dict[str, Any]]:
    return [
        {"messages": [ASKED[0] | {"content": f"Say {index}."}, ASKED[1] | {"content": f"{index} " * (index % 7 + 1)}]}
        for index in range(count)
    ]


def _preparation(source: Path, folder: Path, **changes: Any) -> Preparation:
    options: dict[str, Any] = {"tokenizer": folder / "tokenizer.json", "chat": True, "sequence_length": 128}
    return Preparation([source], **(options | changes))


def _conversations(data: Dataset, split: Any, folder: Path, length: int = 128) -> list[str]:
    """What lies in the rows: what is learnt in brackets."""
    tokenizer, found = AutoTokenizer.from_pretrained(folder), []
    words = data.batch(split, range(data.len_samples(split, length)), length)
    for ids, labels in documents(parted(words, rows=True)):
        whole = [*ids[0].tolist(), int(labels[0, -1])]
        learnt = [one for one in labels[0].tolist() if one >= 0]
        found.append(f"{tokenizer.decode(whole[: len(whole) - (whole[-1] < 0)])}[{tokenizer.decode(learnt)}]")
    return found


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "folder"])
def test_every_conversation_lies_whole_in_one_row(kind: str, tmp_path: Path) -> None:
    folder, rows = _folder(tmp_path / "model"), _rows(60)
    source = tmp_path / "in" / "chat"
    if kind == "jsonl":
        source = texts.json_lines(source.with_suffix(".jsonl"), rows)
    elif kind == "parquet":
        source = texts.parquet(source.with_suffix(".parquet"), {"messages": [row["messages"] for row in rows]})
    else:
        texts.saved_to_disk(source, [row["messages"] for row in rows], column="messages")
    manifest = prepare_folder(_preparation(source, folder), tmp_path / "out")
    assert not list(check(manifest, tmp_path / "out"))
    assert manifest.rows is not None and manifest.dtype == "uint32"
    assert (manifest.rows.tokens, manifest.rows.conversations, manifest.rows.cut, manifest.rows.left_out) == (
        129,
        60,
        0,
        0,
    )
    data = Dataset(manifest, tmp_path / "out")
    found = {split: _conversations(data, split, folder) for split in ("train", "heldout")}
    tail = "<|im_end|>\n"
    expected = [
        f"<|im_start|>user\n{ask}{tail}<|im_start|>assistant\n{answer}{tail}[{answer}{tail}]"
        for ask, answer in ((row["messages"][0]["content"], row["messages"][1]["content"]) for row in rows)
    ]
    assert sorted(found["train"] + found["heldout"]) == sorted(expected) and 1 <= len(found["heldout"]) <= 6
    again = prepare_folder(_preparation(source, folder, workers=2), tmp_path / "again")
    assert again == manifest


def test_long_rows_are_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenising, "BATCH", 1)  # so that the batch is as large as the rows want it
    folder, rows = _folder(tmp_path / "model"), _rows(2000)
    source = texts.json_lines(tmp_path / "chat.jsonl", rows)
    manifest = prepare_folder(_preparation(source, folder, sequence_length=512), tmp_path / "out")
    for split, least in (("train", 0.95), ("heldout", 0.75)):
        data = Dataset(manifest, tmp_path / "out")
        words = data.batch(split, range(data.len_samples(split, 512)), 512)
        separators = (words & IDS == manifest.separator).sum()
        assert 1 - separators / words.numel() > least, split


def test_conversations_are_counted_whatever_samples_they_are(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "model", FORGETS)
    long = [*LONGER[:3], {"role": "assistant", "content": "7 " * 400}]
    late = [{"role": "user", "content": "7 " * 400}, *LONGER[1:]]
    turns = [{"messages": one} for one in (long, late, *([*ASKED, *row["messages"]] for row in _rows(8)))]
    manifest = prepare_folder(_preparation(texts.json_lines(tmp_path / "a.jsonl", turns), folder), tmp_path / "out")
    assert manifest.rows is not None
    assert (manifest.rows.conversations, manifest.rows.cut, manifest.rows.left_out) == (9, 1, 1)


def test_a_conversation_longer_than_a_row_is_cut_at_its_end(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "model")
    long = {"messages": [{"role": "user", "content": "Count."}, {"role": "assistant", "content": "7 " * 400}]}
    asks = {"messages": [{"role": "user", "content": "7 " * 400}, {"role": "assistant", "content": "Why?"}]}
    source = texts.json_lines(tmp_path / "chat.jsonl", [long, asks, *_rows(40)])
    manifest = prepare_folder(_preparation(source, folder), tmp_path / "out")
    assert manifest.rows is not None
    assert (manifest.rows.conversations, manifest.rows.cut, manifest.rows.left_out) == (41, 1, 1)
    words = Dataset(manifest, tmp_path / "out").batch("train", [0], 128)[0]
    assert (words[1:] & SILENT == 0).sum() > 100 and int(words[0] & IDS) == 1, "the longest one fills the first row"


def test_what_cannot_be_prepared_is_named_with_its_line_and_leaves_nothing(tmp_path: Path) -> None:
    refuses = CHATML + "{% if messages[0].content == 'Say 7.' %}{{ raise_exception('not that') }}{% endif %}"
    source = texts.json_lines(tmp_path / "chat.jsonl", _rows(20))
    with pytest.raises(DataError, match=r"chat.jsonl, line 8: the chat template refuses it \(not that\)"):
        prepare_folder(_preparation(source, _folder(tmp_path / "model", refuses)), tmp_path / "out")
    columns = texts.parquet(tmp_path / "chat.parquet", {"messages": [row["messages"] for row in _rows(9)]})
    with pytest.raises(DataError, match=r"chat.parquet, entry 7: the chat template refuses it \(not that\)"):
        prepare_folder(_preparation(columns, tmp_path / "model"), tmp_path / "out")
    second = texts.json_lines(tmp_path / "second.jsonl", _rows(9))
    with pytest.raises(DataError, match=r"2 of 2 files .*chat.jsonl, line 8: the chat .*; and 1 more"):
        _ = replace(_preparation(source, tmp_path / "model"), sources=[source, second]).survey
    assert not (tmp_path / "out").exists()
    lines = texts.json_lines(tmp_path / "bad.jsonl", [*_rows(3), {"messages": ASKED[:1]}])
    with pytest.raises(DataError, match=r"bad.jsonl, line 4: no message is an assistant's"):
        prepare_folder(_preparation(lines, tmp_path / "model"), tmp_path / "out")
    columns = texts.parquet(tmp_path / "bad.parquet", {"prompt": ["a", "b"], "completion": ["c", None]})
    with pytest.raises(DataError, match=r"bad.parquet, entry 1: has no `completion`"):
        prepare_folder(_preparation(columns, tmp_path / "model"), tmp_path / "out")
    columns = texts.parquet(tmp_path / "alpaca.parquet", {"instruction": ["a"], "input": [None], "output": [""]})
    with pytest.raises(DataError, match=r"alpaca.parquet, entry 0: has no `output`"):
        prepare_folder(_preparation(columns, tmp_path / "model"), tmp_path / "out")
    with pytest.raises(DataError, match="has 'text'"):
        prepare_folder(
            _preparation(texts.parquet(tmp_path / "t.parquet", {"text": ["a"]}), tmp_path / "model"), tmp_path / "out"
        )
    (tmp_path / "notes.txt").write_text("a text")
    with pytest.raises(DataError, match="conversations are read from entries"):
        prepare_folder(_preparation(tmp_path / "notes.txt", tmp_path / "model"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "takes more than 1 s"),
        ("{{ range(99999) | map('string') | join('a' * 99999) }}", "takes more than 512 MiB"),
    ],
)
def test_a_template_without_bounds_is_named_with_the_line_that_it_never_ends_with(
    template: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template_check, "SECONDS", 1.0)
    endless = CHATML + "{% if messages[0].content == 'Say 7.' %}" + template + "{% endif %}"
    first, second = (texts.json_lines(tmp_path / name, _rows(20)) for name in ("a.jsonl", "b.jsonl"))
    preparation = _preparation(first, _folder(tmp_path / "model", endless))
    with pytest.raises(DataError, match=f"2 of 2 files .*a.jsonl, line 8: the chat template {why}; and 1 more"):
        _ = replace(preparation, sources=[first, second]).survey


def test_a_template_is_needed_and_the_end_that_it_names(tmp_path: Path) -> None:
    source, bare = texts.json_lines(tmp_path / "chat.jsonl", _rows(20)), tmp_path / "bare"
    texts.tokenizer(bare / "tokenizer.json", SPECIAL)
    with pytest.raises(PreparationError, match="has no chat template: name one"):
        prepare_folder(_preparation(source, bare), tmp_path / "out")
    (named := tmp_path / "chat.jinja").write_text(CHATML)
    manifest = prepare_folder(_preparation(source, bare, template=named), tmp_path / "out")
    assert manifest.rows is not None
    assert (tmp_path / "out" / manifest.rows.template.sha256).read_text() == CHATML
    named.write_text(CHATML.replace("<|im_end|>", "{{ eos_token }}"))
    with pytest.raises(PreparationError, match="does not say the chat template's eos_token"):
        prepare_folder(_preparation(source, bare, template=named), tmp_path / "second")
    with pytest.raises(PreparationError, match="conversations need a tokenizer"):
        prepare_folder(_preparation(source, bare, tokenizer=None), tmp_path / "second")


def _called(count: int, arguments: dict[str, Any]) -> dict[str, Any]:
    """A row in which an assistant asks a tool, and then says what it said."""
    call = {"id": "1", "type": "function", "function": {"name": "double", "arguments": arguments}}
    said = [
        {"role": "user", "content": f"Double {count}."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": f"{2 * count}"},
        {"role": "assistant", "content": f"It is {2 * count}."},
    ]
    return {"messages": said, "tools": [{"type": "function", "function": {"name": "double"}}]}


@pytest.mark.parametrize(("template", "end"), [(CALLS, "<|im_end|>\n"), (MARKED_CALLS, "<|im_end|>")])
def test_an_assistants_calls_of_tools_are_learnt_and_what_tools_say_is_not(
    template: str, end: str, tmp_path: Path
) -> None:
    folder, rows = _folder(tmp_path / "model", template), [_called(count, {"n": count}) for count in range(40)]
    source = texts.json_lines(tmp_path / "chat.jsonl", rows)
    data = Dataset(
        prepare_folder(_preparation(source, folder, sequence_length=512), tmp_path / "out"), tmp_path / "out"
    )
    found = [one for split in ("train", "heldout") for one in _conversations(data, split, folder, 512)]
    assert len(found) == len(rows)
    for count in range(len(rows)):
        call = f'<call>{{"name": "double", "arguments": {{"n": {count}}}}}'
        (one,) = [text for text in found if call in text]
        assert one.startswith('<tool>{"type": "function", "function": {"name": "double"}}\n<|im_start|>user\n')
        assert one.endswith(f"[{call}{end}It is {2 * count}.{end}]") and f"tool\n{2 * count}<|im_end|>" in one
    refused = texts.json_lines(tmp_path / "refused.jsonl", [*rows[:6], _called(6, {})])
    with pytest.raises(DataError, match=r"refused.jsonl, line 7: the chat .* refuses it \(a call without arguments\)"):
        prepare_folder(_preparation(refused, folder, sequence_length=512), tmp_path / "none")
