"""How a model is meant to be used: its special tokens, its chat templates, how it writes. Training reads none of it.

A run that starts from a Hugging Face folder takes it from there, as one small blob that its manifest names, so that
whoever pulls a version gets it back. It is data: keys that could load code are none of its keys. A chat template is a
program of the Jinja language, which `transformers` runs in a sandbox.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import rfc8785
from msgspec import Meta, Struct

from dlx.ground.untrusted import decode_json
from dlx.training.recipe.huggingface import MAX_CONFIG_BYTES, read_json, read_text
from dlx.training.recipe.strict import ManifestError, convert

MAX_BYTES = 512 * 1024  # of the blob
_MAX_SETTINGS_BYTES = 8 << 20  # of a tokenizer_config.json: some list thousands of tokens
_MAX_TEMPLATE_BYTES = 128 * 1024
_MAX_TEMPLATES = 16

_SETTINGS = "tokenizer_config.json"

_Kind = TypeVar("_Kind", bound=Struct)

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

    @property
    def texts(self) -> dict[str, str]:
        """Those with a name of their own, as a chat template names them."""
        return {key: value for key, value in msgspec.to_builtins(self).items() if isinstance(value, str)}


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
    chat_templates: Annotated[dict[_TemplateName, _Template], Meta(max_length=_MAX_TEMPLATES)] = msgspec.field(
        default_factory=dict
    )
    ids: Ids = Ids()
    generation: Generation = Generation()


class _Named(Struct, frozen=True):
    """A chat template as a list of several has it."""

    name: _TemplateName
    template: Annotated[str, Meta(min_length=1)]


def parse(data: bytes) -> Usage:
    """The blob's content, which may come from anyone. Raises ManifestError unless it is canonical."""
    if len(data) > MAX_BYTES:
        raise ManifestError(f"usage: expected at most {MAX_BYTES} bytes, got {len(data)}")
    try:
        raw = decode_json(data)
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


def read_usage(folder: Path) -> tuple[Usage, list[str]]:
    """That of a Hugging Face folder, of unknown origin, and a line for each setting that is left behind because it
    cannot be meant. What it has no file for stays empty, and keys that are none of ours are left behind in silence.

    Raises ManifestError in one line, which names the file, for what is no JSON, no text or too long.
    """
    left: list[str] = []
    settings = _table(folder, _SETTINGS, _MAX_SETTINGS_BYTES)
    alone = {"version": 1} | {key: settings[key] for key in ("padding_side",) if key in settings}
    usage = msgspec.structs.replace(
        _kept(alone, Usage, folder / _SETTINGS, left),
        tokens=_tokens(folder, settings, left),
        chat_templates=_templates(folder, settings, left),
        ids=_kept(_table(folder, "config.json"), Ids, folder / "config.json", left),
        generation=_generation(folder, left),
    )
    try:
        canonical_bytes(usage)
    except ManifestError as error:
        raise ManifestError(f"{folder}: {error}") from None
    return usage, left


def end_of_text(folder: Path) -> str | int | None:
    """The text or id of the token that ends a text by the folder's tokenizer_config.json, else generation_config.json;
    None where they name none, or several. Raises ManifestError."""
    ids = _generation(folder, []).eos_token_id
    text = _tokens(folder, _table(folder, _SETTINGS, _MAX_SETTINGS_BYTES), []).eos_token
    return text or (ids if isinstance(ids, int) else None)


def _tokens(folder: Path, settings: Mapping[str, Any], left: list[str]) -> Tokens:
    older = folder / "special_tokens_map.json"
    found = {
        key: value
        for path, table in ((older, _table(folder, older.name)), (folder / _SETTINGS, settings))
        for key, value in msgspec.to_builtins(_kept(_as_texts(table), Tokens, path, left)).items()
    }
    return Tokens(**found)


def _generation(folder: Path, left: list[str]) -> Generation:
    name = "generation_config.json"
    return _kept(_table(folder, name), Generation, folder / name, left)


def _kept(table: Mapping[str, Any], kind: type[_Kind], where: Path, left: list[str]) -> _Kind:
    """What the table has of the struct's keys; those that the struct does not take are told in `left`."""
    kept: dict[str, Any] = {}
    for key in kind.__struct_fields__:
        if key in table:
            try:
                convert(kept | {key: table[key]}, kind, f"{where}: ")
            except ManifestError as error:
                left.append(str(error))
            else:
                kept[key] = table[key]
    return convert(kept, kind)


def _table(folder: Path, name: str, limit: int = MAX_CONFIG_BYTES) -> dict[str, Any]:
    """Of a file that need not be there; what it says is nothing is left out."""
    found = read_json(folder / name, limit) if (folder / name).exists() else {}
    return {key: value for key, value in found.items() if value is not None}


def _as_texts(table: Mapping[str, Any]) -> dict[str, Any]:
    """The table's tokens, which may be written as tables with their `content`, or under names, as their texts alone."""
    texts = {key: _texts(table[key]) for key in Tokens.__struct_fields__ if key in table}
    if "extra_special_tokens" in table:  # as transformers 5 names them
        texts.setdefault("additional_special_tokens", _texts(table["extra_special_tokens"]))
    return texts


def _texts(value: Any) -> Any:
    value = _text(value)
    several = list(value.values()) if isinstance(value, dict) else value
    return [_text(one) for one in several] if isinstance(several, list) else several


def _text(token: Any) -> Any:
    return token["content"] if isinstance(token, dict) and "content" in token else token


def _templates(folder: Path, settings: Mapping[str, Any], left: list[str]) -> dict[str, str]:
    """By name: those in files of their own come before those in the tokenizer's settings, as in transformers."""
    given = settings.get("chat_template", [])
    listed = given if isinstance(given, list) else [{"name": "default", "template": given}]
    found = [(folder / _SETTINGS, one) for one in listed]
    paths = [(folder / "chat_template.jinja", "default")]
    paths += [(path, path.stem) for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))]
    there = [(path, name) for path, name in paths if path.exists()]
    found += [(path, {"name": name, "template": read_text(path, _MAX_TEMPLATE_BYTES)}) for path, name in there]
    kept = dict[str, str]()
    for where, one in found:
        try:
            template = convert(one if isinstance(one, dict) else {}, _Named, f"{where}: chat_template: ")
        except ManifestError as error:
            left.append(str(error))
            continue
        if len(template.template.encode()) > _MAX_TEMPLATE_BYTES:
            raise ManifestError(f"{where}: chat_template: expected at most {_MAX_TEMPLATE_BYTES} bytes")
        kept[template.name] = template.template
    if len(kept) > _MAX_TEMPLATES:
        raise ManifestError(f"{folder}: expected at most {_MAX_TEMPLATES} chat templates, got {len(kept)}")
    return kept
