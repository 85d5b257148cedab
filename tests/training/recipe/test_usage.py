"""How a model is used: read from folders of unknown origin, and from blobs of unknown origin."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from dlx.training.recipe.strict import ManifestError
from dlx.training.recipe.usage import (
    MAX_BYTES,
    Generation,
    Ids,
    Tokens,
    Usage,
    canonical_bytes,
    end_of_text,
    parse,
    read_usage,
)


def write(folder: Path, **files: Any) -> Path:
    for name, table in files.items():
        (folder / f"{name}.json").write_text(json.dumps(table))
    return folder


def named(count: int, length: int) -> list[dict[str, str]]:
    return [{"name": f"t{number}", "template": "x" * length} for number in range(count)]


NESTED: Any = 3  # and deeper than Python calls itself
for _ in range(900):
    NESTED = [NESTED]


def test_a_folder_with_nothing_says_nothing(tmp_path: Path) -> None:
    assert read_usage(tmp_path) == (Usage(version=1), [])
    assert end_of_text(tmp_path) is None
    assert canonical_bytes(Usage(version=1)) == b'{"version":1}'


def test_tokens_templates_and_settings_are_read_and_nothing_that_could_be_code(tmp_path: Path) -> None:
    settings = {
        "bos_token": {"__type": "AddedToken", "content": "<s>", "normalized": False},
        "eos_token": "</s>",
        "pad_token": None,
        "extra_special_tokens": {"image_token": "<image>"},
        "padding_side": "left",
        "chat_template": [{"name": "default", "template": "old"}, {"name": "rag", "template": "with documents"}],
        "auto_map": {"AutoTokenizer": ["evil.Evil", None]},
        "trust_remote_code": True,
    }
    map_ = {"pad_token": "<pad>", "eos_token": "of the older file"}
    generation = {"eos_token_id": [2, 7], "temperature": 1, "top_k": 20, "custom_generate": "evil"}
    config = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None, "auto_map": {}, "hidden_size": 8}
    write(tmp_path, tokenizer_config=settings, special_tokens_map=map_, generation_config=generation, config=config)
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    found, left = read_usage(tmp_path)
    assert left == []
    assert found == Usage(
        version=1,
        tokens=Tokens(bos_token="<s>", eos_token="</s>", pad_token="<pad>", additional_special_tokens=["<image>"]),
        padding_side="left",
        chat_templates={"default": "{{ messages }}", "rag": "with documents", "tool_use": "tools"},
        ids=Ids(bos_token_id=1, eos_token_id=2),
        generation=Generation(eos_token_id=[2, 7], temperature=1.0, top_k=20),
    )
    assert parse(canonical_bytes(found)) == found
    assert b"evil" not in canonical_bytes(found)


@pytest.mark.parametrize(
    ("files", "end"),
    [
        ({"tokenizer_config": {"eos_token": {"content": "</s>"}}, "generation_config": {"eos_token_id": 3}}, "</s>"),
        ({"special_tokens_map": {"eos_token": "</s>"}}, "</s>"),
        ({"generation_config": {"eos_token_id": 3}}, 3),
        ({"generation_config": {"eos_token_id": [3, 4]}}, None),
        ({"tokenizer_config": {"eos_token": None}}, None),
    ],
)
def test_the_end_of_a_text_is_known_where_it_is_said_once(files: Any, end: str | int | None, tmp_path: Path) -> None:
    assert end_of_text(write(tmp_path, **files)) == end


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"tokenizer_config": {"eos_token": 3}}, "tokenizer_config.json: eos_token: expected text"),
        ({"tokenizer_config": {"pad_token": ""}}, "tokenizer_config.json: pad_token: expected"),
        ({"tokenizer_config": {"eos_token": NESTED}}, "tokenizer_config.json: eos_token: expected text"),
        ({"special_tokens_map": {"eos_token": 3}}, "special_tokens_map.json: eos_token: expected text"),
        ({"tokenizer_config": {"chat_template": [{"name": "../x", "template": "x"}]}}, "1 to 64 letters"),
        ({"tokenizer_config": {"chat_template": [{"name": ["x"], "template": "y"}]}}, "name: expected text"),
        ({"tokenizer_config": {"chat_template": ["x"]}}, "tokenizer_config.json: chat_template: name: missing"),
        ({"tokenizer_config": {"chat_template": 3}}, "tokenizer_config.json: chat_template: template: expected text"),
        ({"tokenizer_config": {"chat_template": ""}}, "tokenizer_config.json: chat_template: template: expected"),
        ({"tokenizer_config": {"padding_side": "up"}}, "padding_side: not a supported value"),
        ({"generation_config": {"temperature": -1}}, "generation_config.json: temperature: expected a number >= 0"),
        ({"generation_config": {"top_k": -1}}, "generation_config.json: top_k: expected a whole number >= 0"),
        ({"generation_config": {"eos_token_id": "</s>"}}, "generation_config.json: eos_token_id: expected"),
        ({"generation_config": {"eos_token_id": []}}, "generation_config.json: eos_token_id: expected"),
        ({"generation_config": {"do_sample": "evil"}}, "generation_config.json: do_sample: expected true or false"),
        ({"config": {"pad_token_id": -1}}, "config.json: pad_token_id: expected a whole number >= 0, got -1"),
        ({"config": {"bos_token_id": 1 << 40}}, "config.json: bos_token_id: expected"),
    ],
)
def test_a_setting_that_cannot_be_meant_is_left_behind_by_file_and_key(files: Any, said: str, tmp_path: Path) -> None:
    found, (line,) = read_usage(write(tmp_path, **files))
    assert found == Usage(version=1)
    assert said in line and "\n" not in line and len(line) < 600
    assert end_of_text(tmp_path) is None


def test_what_is_left_behind_takes_nothing_else_with_it(tmp_path: Path) -> None:
    settings = {"eos_token": "</s>", "pad_token": "", "padding_side": "left"}
    generation = {"temperature": 0.5, "top_k": -1}
    write(tmp_path, tokenizer_config=settings, special_tokens_map={"pad_token": "<pad>"}, generation_config=generation)
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "two words.jinja").write_text("x")
    found, left = read_usage(tmp_path)
    assert found == Usage(
        version=1,
        tokens=Tokens(eos_token="</s>", pad_token="<pad>"),
        padding_side="left",
        generation=Generation(temperature=0.5),
    )
    assert [line.partition(":")[0] for line in left] == [
        f"{tmp_path}/{name}"
        for name in ("tokenizer_config.json", "additional_chat_templates/two words.jinja", "generation_config.json")
    ]


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"tokenizer_config": {"chat_template": "x" * (1 << 18)}}, "tokenizer_config.json: chat_template: expected at"),
        ({"tokenizer_config": {"chat_template": named(17, 1)}}, "expected at most 16 chat templates, got 17"),
        ({"tokenizer_config": {"chat_template": named(5, 1 << 17)}}, "expected at most 524288 bytes"),
        ({"generation_config": [1]}, "generation_config.json: expected a table"),
    ],
)
def test_what_is_no_settings_or_too_long_is_refused(files: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(ManifestError) as caught:
        read_usage(write(tmp_path, **files))
    assert said in str(caught.value) and str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["chat_template.jinja", "config.json", "tokenizer_config.json"])
def test_a_pipe_in_place_of_a_file_is_refused_and_not_waited_for(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(ManifestError, match=f"{name}: is no plain file"):
        read_usage(tmp_path)


@pytest.mark.parametrize(
    ("content", "said"),
    [("é".encode() * (1 << 16) + b"x", "expected at most 131,072 bytes"), (b"\xff", "is neither UTF-8")],
)
def test_a_template_that_is_no_text_or_too_long_is_refused(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(content)
    with pytest.raises(ManifestError, match=f"chat_template.jinja: {said}"):
        read_usage(tmp_path)


@pytest.mark.parametrize(
    ("blob", "said"),
    [
        (b"", "not readable as JSON"),
        (b"[" * 100_000, "not readable as JSON"),
        (b"{}", "usage.version: missing"),
        (b'{"version":2}', "usage.version: not a supported value, got 2"),
        (b'{"auto_map":{},"version":1}', "usage.auto_map: unknown key"),
        (b'{"generation":{"custom_generate":"x"},"version":1}', "usage.generation.custom_generate: unknown key"),
        (b'{"tokens":{},"version":1}', "expected canonical JSON"),
        (b'{"version": 1}', "expected canonical JSON"),
        (b'{"version":1,"version":1}', "expected canonical JSON"),
        (b'{"chat_templates":{"a/b":"x"},"version":1}', "usage.chat_templates"),
        (b'{"tokens":{"eos_token":"\\ud800"},"version":1}', "not readable as JSON"),
        (b'{"version":1}' + b" " * MAX_BYTES, "expected at most"),
    ],
)
def test_a_strangers_blob_is_refused_in_one_line(blob: bytes, said: str) -> None:
    with pytest.raises(ManifestError) as caught:
        parse(blob)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_templates_that_are_too_long_together_are_refused(tmp_path: Path) -> None:
    templates = {f"t{number}": "x" * (1 << 17) for number in range(5)}
    with pytest.raises(ManifestError, match="expected at most"):
        canonical_bytes(Usage(version=1, chat_templates=templates))
