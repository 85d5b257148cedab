"""Prompts with expected answers: files of them, when an answer is right, and the commands that ask models."""

import json
from pathlib import Path
from typing import Any

import pytest

from dlx.node.checkpoints import evaluation_store
from dlx.node.checkpoints.prompts import Prompt, is_right, read, said
from dlx.node.home.datadir import DataDir
from dlx.node.home.errors import UsageFailure
from dlx.training.models import chat_templates
from tests.node.command import dlx
from tests.node.tiny_model import write_model

HELLO = [{"role": "user", "content": "hello"}]


def _file(folder: Path, *lines: Any) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text("".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in lines))
    return path


def test_a_file_has_prompts_as_messages_or_text_and_what_is_expected(tmp_path: Path) -> None:
    answered = [*HELLO, {"role": "assistant", "content": "hi"}]
    lines = [
        {"prompt": "hello", "expected": "hi"},
        "",
        {"messages": answered},
        {"messages": HELLO, "expected": "h", "match": "regex"},
        {"messages": answered, "expected": "ho", "match": "contains"},
        {"prompt": "hello", "completion": "hi"},
        {"conversations": [{"from": "human", "value": "hello"}], "expected": "hi"},
        {"prompt": HELLO, "system": "be short", "tools": [{"name": "a"}], "expected": "hi"},
        {"messages": json.dumps(answered)},
        {"messages": json.dumps(HELLO), "expected": "hi"},
        {"conversations": HELLO, "expected": "hi"},
        {"conversations": answered},
        {"conversations": [{"from": "human", "value": "hello"}, {"from": "gpt", "value": "hi"}]},
    ]
    assert read(_file(tmp_path, *lines), judged=True) == [
        Prompt(1, HELLO, "hi", "exact"),
        Prompt(3, HELLO, "hi", "exact"),
        Prompt(4, HELLO, "h", "regex"),
        Prompt(5, HELLO, "ho", "contains"),
        Prompt(6, HELLO, "hi", "exact"),
        Prompt(7, HELLO, "hi", "exact"),
        Prompt(8, [{"role": "system", "content": "be short"}, *HELLO], "hi", "exact", [{"name": "a"}]),
        *(Prompt(line, HELLO, "hi", "exact") for line in range(9, 14)),
    ]
    alone = [Prompt(1, HELLO, None, "exact")]
    assert read(_file(tmp_path, {"prompt": "hello"}), judged=False) == said(["hello"]) == alone


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_file_is_read_as_an_editor_wrote_it(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "grüß mich"}\r\n', encoding=encoding, newline="")
    assert read(path, judged=False) == said(["grüß mich"])


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "malformed|truncated"),
        ([], "Expected `object`"),
        ({"expected": "a"}, "has no conversation"),
        ({"messages": []}, "has no conversation"),
        ({"prompt": "a"}, "no answer is expected"),
        ({"prompt": "a", "expect": "b"}, "`expect` is no key"),
        ({"prompt": "a", "expected": 1}, "Expected `str"),
        ({"prompt": "a", "expected": "b", "match": "fuzzy"}, "fuzzy"),
        ({"prompt": "a", "expected": "(", "match": "regex"}, "no regular expression"),
        ({"messages": [{"content": "a"}], "expected": "b"}, "has no `role`"),
        ({"messages": [{"role": "assistant", "content": "a"}]}, "a message before the answer"),
        ({"messages": [*HELLO, {"role": "assistant", "content": None}]}, "message 2 has no `content`"),
    ],
)
def test_a_line_that_is_no_prompt_is_named(tmp_path: Path, line: Any, why: str) -> None:
    path = _file(tmp_path, {"prompt": "a", "expected": "b"}, line)
    with pytest.raises(UsageFailure, match=f"prompts.jsonl, line 2: .*({why})"):
        read(path, judged=True)


def test_a_file_without_a_prompt_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageFailure, match="has no prompt"):
        read(_file(tmp_path, "", " "), judged=True)


def test_an_answer_is_right_by_the_match_that_the_line_names() -> None:
    def right(match: Any, expected: str | None, answer: str) -> bool | None:
        return is_right(Prompt(1, HELLO, expected, match), answer)

    assert right("exact", "Paris", "Paris\n") and not right("exact", "Paris", "paris")
    assert right("contains", "Paris", "It is Paris.") and not right("contains", "Paris", "Lyon")
    assert right("regex", r"^\d+$", "42") and not right("regex", r"^\d+$", "42 or so")
    assert right("exact", None, "whatever") is None


def test_a_folder_is_asked_and_its_answers_are_judged(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", 64)
    path = _file(
        tmp_path, {"prompt": "hello", "expected": ".", "match": "regex"}, {"prompt": "hello", "expected": "\n\nno"}
    )  # fmt: skip
    where = ["evaluate", model, "--chat", path, "--device", "cpu", "--max-tokens", "5"]
    found = json.loads(dlx(*where, "--json").stdout)
    first, second = found["answers"]
    assert (found["model"], found["right"], found["of"]) == ("model", 1, 2)
    assert first["text"] == second["text"] and (first["right"], second["right"]) == (True, False)
    assert (first["line"], first["match"], first["messages"]) == (1, "regex", HELLO)
    assert "model: 1 of 2 answers as expected" in dlx(*where).stdout
    long = _file(tmp_path, {"prompt": "hello", "expected": "a"}, {"prompt": "x" * 100, "expected": "a"})
    assert "line 2: 117 tokens, the model has room for 64" in dlx(*where, code=1).stderr, long
    assert "choose one" in dlx("evaluate", "--chat", path, "--tasks", "a", code=2).stderr
    assert "a folder is asked by --chat" in dlx("evaluate", model, code=2).stderr
    assert "--base is of --chat" in dlx("evaluate", model, "--base", model, code=2).stderr
    assert "all else comes with its base" in dlx(*where, "--base", model, code=2).stderr
    (model / "adapter_config.json").write_text("{}")
    assert "name that by --base" in dlx(*where, code=1).stderr
    assert "it has no file provenance.json" in dlx(*where, "--base", model, code=1).stderr


def test_what_the_template_refuses_is_named_by_its_line(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", 64)
    (model / "chat_template.jinja").write_text("{{ raise_exception('no ' + messages[0].role) }}")
    path = _file(tmp_path, {"messages": [{"role": "system", "content": "a"}], "expected": "a"})
    said = dlx("evaluate", model, "--chat", path, "--device", "cpu", code=1).stderr
    assert "prompts.jsonl, line 1: the model's chat template refuses this" in said and "no system" in said


def test_a_template_without_end_is_named_and_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_templates, "SECONDS", 1.0)
    model = write_model(tmp_path / "model", 64)
    (model / "chat_template.jinja").write_text(
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    )
    path = _file(tmp_path, {"prompt": "hello", "expected": "a"})
    for asked in (["evaluate", model], ["compare", model, model]):
        said = dlx(*asked, "--chat", path, "--device", "cpu", code=1).stderr
        assert "prompts.jsonl, line 1: the model's chat template takes more than 1 s" in said


def test_two_models_are_compared_side_by_side(tmp_path: Path) -> None:
    a, b = (write_model(tmp_path / name, 64, seed) for name, seed in (("a", 1), ("b", 2)))
    where = ["compare", a, b, "--device", "cpu", "--max-tokens", "4"]
    found = json.loads(dlx(*where, "--prompt", "hello", "--prompt", "you", "--json").stdout)
    assert (found["a"], found["b"]) == ("a", "b") and [one["line"] for one in found["answers"]] == [1, 2]
    assert found["answers"][0]["a"]["text"] != found["answers"][0]["b"]["text"]
    assert found["answers"][0]["a"]["right"] is None
    path = _file(tmp_path, {"prompt": "hello", "expected": ".", "match": "regex"})
    said = dlx(*where, "--chat", path).stdout
    assert "1  user: hello" in said and "A (right): " in said and "B  b: 1 of 1 answers as expected" in said
    keep = [*where, "--prompt", "hello", "--page", "--datadir", tmp_path / "node"]
    (tmp_path / "node").mkdir()
    assert "no node's folder" in dlx(*keep, code=2).stderr
    (tmp_path / "node" / "blobs").mkdir()
    assert "does not say of which run" in dlx(*keep, code=2).stderr
    (a / "provenance.json").write_text(json.dumps({"run": "0x" + "7" * 64, "version": 1e300}))
    assert "does not say of which run" in dlx(*keep, code=2).stderr
    for folder, version in ((a, 3), (b, 5)):
        (folder / "provenance.json").write_text(json.dumps({"run": "0x" + "7" * 64, "version": version}))
    dlx(*keep)
    [kept] = evaluation_store.comparison((tmp_path / "node" / "blobs",), bytes.fromhex("7" * 64), (3, 5))
    assert kept.prompt == "hello" and kept.answers == tuple(found["answers"][0][one]["text"] for one in "ab")
    assert "--prompt a\ufffd: is no UTF-8" in dlx(*where, "--prompt", "a\udcff", code=2).stderr
    assert "either --chat FILE or --prompt TEXT" in dlx("compare", a, b, code=2).stderr
    for wrong in ("abcdef@x", "nothing"):
        assert wrong in dlx("compare", a, wrong, "--prompt", "x", code=2).stderr
    cited = [f"dlx:{chain}/0x{'1' * 40}/abcdef@1" for chain in (1, 2)]
    assert "on two ledgers" in dlx("compare", *cited, "--prompt", "x", code=2).stderr


def test_a_measurement_that_a_full_disk_cut_takes_no_other_with_it(tmp_path: Path) -> None:
    run, folder = bytes(32), DataDir(tmp_path)
    evaluation_store.add(folder, run, evaluation_store.Evaluation(1, 2.5))
    with (folder.state_of(run) / evaluation_store.FILE).open("ab") as file:
        file.write(b'{"version":2,"lo')
    evaluation_store.add(folder, run, evaluation_store.Evaluation(3, 2.0))
    assert [one.version for one in evaluation_store.read((tmp_path / "blobs",), run)] == [1, 3]
