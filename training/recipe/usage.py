"""How a model is meant to be used: its special tokens, its chat templates, how it writes. Training reads none of it.

A run that starts from a Hugging Face folder takes it from there, as one small blob that its manifest names, so that
whoever pulls a version gets it back. It is data: keys that could load code are none of its keys. A chat template is a
program of the Jinja language, which `transformers` runs in a sandbox.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import rfc8785
from msgspec import Meta, Struct

from dlx.training.recipe.huggingface import MAX_CONFIG_BYTES, read_json
from dlx.training.recipe.strict import ManifestError, convert

MAX_BYTES = 512 * 1024  # of the blob
_MAX_SETTINGS_BYTES = 8 << 20  # of a tokenizer_config.json: some list thousands of tokens
_MAX_TEMPLATE_BYTES = 128 * 1024

_SETTINGS = "tokenizer_config.json"

_Token = Annotated[str, Meta(min_length=1, max_length=256)]
_Tokens = Annotated[list[_Token], Meta(max_length=256)]
_Id = Annotated[int, Meta(ge=0, lt=1 << 20)]
_Ids = _Id | Annotated[list[_Id], Meta(min_length=1, max_length=64)]
_Count = Annotated[int, Meta(ge=0, le=1 << 30)]
_Part = Annotated[float, Meta(ge=0, le=1)]
_Factor = Annotated[float, Meta(ge=0, le=1000)]
_TemplateName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}\Z")]
_Template = Annotated[str, Meta(min_length=1, max_length=_MAX_TEMPLATE_BYTES)]


class Tokens(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Special tokens as text, by the names of a tokenizer_config.json."""

    bos_token: _Token | None = None
    eos_token: _Token | None = None
    unk_token: _Token | None = None
    sep_token: _Token | None = None
    pad_token: _Token | None = None
    cls_token: _Token | None = None
    mask_token: _Token | None = None
    additional_special_tokens: _Tokens = msgspec.field(default_factory=list)


class Ids(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Special tokens by their ids, as config.json and generation_config.json have them."""

    bos_token_id: _Id | None = None
    eos_token_id: _Ids | None = None
    pad_token_id: _Id | None = None


class Generation(Ids, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Of a generation_config.json what a causal model takes."""

    do_sample: bool | None = None
    temperature: _Factor | None = None
    top_k: _Count | None = None
    top_p: _Part | None = None
    min_p: _Part | None = None
    typical_p: _Part | None = None
    repetition_penalty: _Factor | None = None
    no_repeat_ngram_size: _Count | None = None
    max_length: _Count | None = None
    max_new_tokens: _Count | None = None


class Usage(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """What the blob holds. `ids`: those of config.json. The template that is used unless one is named is `default`."""

    version: Literal[1]
    tokens: Tokens = Tokens()
    padding_side: Literal["left", "right"] | None = None
    chat_templates: Annotated[dict[_TemplateName, _Template], Meta(max_length=16)] = msgspec.field(default_factory=dict)
    ids: Ids = Ids()
    generation: Generation = Generation()


def parse(data: bytes) -> Usage:
    """The blob's content, which may come from anyone. Raises ManifestError unless it is canonical."""
    if len(data) > MAX_BYTES:
        raise ManifestError(f"usage: expected at most {MAX_BYTES} bytes, got {len(data)}")
    try:
        raw = msgspec.json.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ManifestError(f"usage: not readable as JSON ({error})") from None
    usage = convert(raw, Usage, "usage.")
    if canonical_bytes(usage) != data:
        raise ManifestError("usage: expected canonical JSON (RFC 8785)")
    return usage


def canonical_bytes(usage: Usage) -> bytes:
    """The blob: RFC 8785 JSON without what is at its default. Raises ManifestError where that is too long."""
    data = rfc8785.dumps({key: value for key, value in msgspec.to_builtins(usage).items() if value != {}})
    if len(data) > MAX_BYTES:
        raise ManifestError(f"usage: expected at most {MAX_BYTES} bytes of templates and tokens, got {len(data)}")
    return data


def read_usage(folder: Path) -> Usage:
    """That of a Hugging Face folder, of unknown origin; what it has no file for stays empty, and keys that are none of
    ours are left behind. Raises ManifestError in one line, which names file and key."""
    settings = _settings(folder)
    usage = {"version": 1, "chat_templates": _templates(folder, settings)}
    usage |= {key: settings[key] for key in ("padding_side",) if key in settings}
    return msgspec.structs.replace(
        convert(usage, Usage, f"{folder / _SETTINGS}: "),
        tokens=_tokens(folder, settings),
        ids=_read(folder, "config.json", Ids),
        generation=_read(folder, "generation_config.json", Generation),
    )


def end_of_text(folder: Path) -> str | int | None:
    """The text or id of the token that ends a text by the folder's tokenizer_config.json, else generation_config.json;
    None where they name none, or several. Raises ManifestError."""
    ids = _read(folder, "generation_config.json", Generation).eos_token_id
    return _tokens(folder, _settings(folder)).eos_token or (ids if isinstance(ids, int) else None)


def _settings(folder: Path) -> dict[str, Any]:
    return _given(_table(folder, _SETTINGS, _MAX_SETTINGS_BYTES))


def _tokens(folder: Path, settings: dict[str, Any]) -> Tokens:
    named = _given(_table(folder, "special_tokens_map.json")) | settings
    if "additional_special_tokens" not in named and "extra_special_tokens" in named:  # as transformers 5 names them
        named["additional_special_tokens"] = named["extra_special_tokens"]
    texts = {key: _texts(named[key]) for key in Tokens.__struct_fields__ if key in named}
    return convert(texts, Tokens, f"{folder / _SETTINGS}: ")


def _read(folder: Path, name: str, kind: type[Any]) -> Any:
    table = _given(_table(folder, name))
    return convert({key: table[key] for key in kind.__struct_fields__ if key in table}, kind, f"{folder / name}: ")


def _table(folder: Path, name: str, limit: int = MAX_CONFIG_BYTES) -> dict[str, Any]:
    """Of a file that need not be there."""
    return read_json(folder / name, limit) if (folder / name).exists() else {}


def _given(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if value is not None}


def _texts(value: Any) -> Any:
    """Tokens that may be written as tables with their `content`, or under names, as their texts alone."""
    if isinstance(value, dict):
        return value["content"] if "content" in value else [_texts(one) for one in value.values()]
    return [_texts(one) for one in value] if isinstance(value, list) else value


def _templates(folder: Path, settings: dict[str, Any]) -> dict[Any, Any]:
    """By name: those in files of their own come before those in the tokenizer's settings, as in transformers."""
    given = settings.get("chat_template")
    if isinstance(given, list):
        found = {one.get("name"): one.get("template") for one in given if isinstance(one, dict)}
    else:
        found = {} if given is None else {"default": given}
    paths = {"default": folder / "chat_template.jinja"}
    paths |= {path.stem: path for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    return found | {name: _text(path) for name, path in paths.items() if path.exists()}


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_TEMPLATE_BYTES + 1)
        if len(content) > _MAX_TEMPLATE_BYTES:
            raise ManifestError(f"{path}: expected at most {_MAX_TEMPLATE_BYTES} bytes")
        return content.decode()
    except OSError as error:
        raise ManifestError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise ManifestError(f"{path}: expected UTF-8 text") from None
