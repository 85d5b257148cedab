"""Where the node's settings come from: flag, DLX_* environment, config.toml, embedded chain, default."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from shlex import quote
from typing import Any
from urllib.parse import urlsplit

import msgspec

from dlx.ground import durable, handwritten
from dlx.ground.machine import expand
from dlx.node.home.datadir import DataDir
from dlx.node.home.errors import UsageFailure
from dlx.node.home.program import line, program
from dlx.node.home.settings import SETTINGS, Settings
from dlx.node.home.values import split

_COMMAND_LINE, _ENVIRONMENT = "command line", "environment"
_MOST_BYTES = 1 << 20  # of config.toml
_PLAIN = {bool: "expected true or false", int: "expected a whole number", float: "expected a number"}


def whole_path(key: str, text: str) -> str:
    """A setting's text as it is kept: a relative path is of the folder that the command was given in. Raises
    Homeless."""
    return str(expand(text).absolute()) if key in ("password_file", "private_data") and text else text


def load(datadir: DataDir, flags: Mapping[str, Any], environ: Mapping[str, str]) -> Settings:
    """Settings of a data folder. `flags` holds the command line's values; None means not given.

    Raises UsageFailure naming the source and the key of a value that cannot be.
    """
    return Settings(**{key: value for key, (value, _) in sourced(datadir, flags, environ).items()})


def sourced(datadir: DataDir, flags: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, tuple[Any, str]]:
    """Of every setting that is not its default: its value, and the source that it comes from. Raises as `load`."""
    return _merged(
        (str(datadir.contracts), _embedded_chain(datadir.contracts)),
        (str(datadir.config), _config_file(datadir.config)),
        (_ENVIRONMENT, _environment(environ)),
        (_COMMAND_LINE, flags),
    )


def of_flags(flags: Mapping[str, Any]) -> Settings:
    """Settings of a command that has no data folder. Raises UsageFailure."""
    return Settings(**{key: value for key, (value, _) in _merged((_COMMAND_LINE, flags)).items()})


def write(path: Path, given: Mapping[str, Any]) -> bool:
    """Write a commented config.toml with the given keys set; False, and nothing done, if there is one already."""
    lines = [
        "# Settings of this dlx-node. A flag or a DLX_* environment variable goes before a line here;",
        "# a line that is commented out shows the default.",
    ]
    for key, setting in SETTINGS.items():
        value = given.get(key)
        shown = setting.default if value is None else _checked(_COMMAND_LINE, key, value)
        lines += ["", f"# {setting.help}", f"{'# ' if value is None else ''}{key} = {_toml(shown)}"]
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
    except FileExistsError:
        return False
    return True


def check_key(key: str) -> None:
    """Raises UsageFailure for what is no key of config.toml."""
    if key not in SETTINGS:
        raise UsageFailure(f"{key}: unknown key{_nearest(key)}; `{line('config', 'show')}` shows all")


def change(path: Path, key: str, text: str | None) -> None:
    """Set a key of config.toml to what `text` means in an environment variable; None: to its default. Comments and
    other keys stay. Raises UsageFailure for a key or value that cannot be, or a file that is laid out otherwise."""
    check_key(key)
    setting, before = SETTINGS[key], _config_file(path)
    if text is None:
        line, meant = (
            f"# {key} = {_toml(setting.default)}",
            {name: value for name, value in before.items() if name != key},
        )
    else:
        value = _checked("config set", key, split(text) if setting.is_list else text, is_text=True)
        line = f"{key} = {_toml(value)}"
        meant = before | tomllib.loads(line)
    lines = _text(path).splitlines() if path.is_file() else []
    places = [at for at, one in enumerate(lines) if re.match(rf"(# *)?{key} *=", one)]
    # Where it is set, else where its default is commented out.
    at = next((at for at in places if not lines[at].startswith("#")), places[0] if places else None)
    changed = [*lines, "", f"# {setting.help}", line] if at is None else [*lines[:at], line, *lines[at + 1 :]]
    content = "\n".join(changed) + "\n"
    try:
        found: dict[str, Any] | None = tomllib.loads(content)
    except tomllib.TOMLDecodeError:
        found = None
    if found != meant:
        raise UsageFailure(f"{path} sets {key} over several lines: edit it by hand")
    durable.write_bytes(path, content.encode(), path.stat().st_mode & 0o777 if path.exists() else durable.SECRET)


def _merged(*sources: tuple[str, Mapping[str, Any]]) -> dict[str, tuple[Any, str]]:
    """What each source says, the later ones before the earlier."""
    values: dict[str, tuple[Any, str]] = {}
    for source, given in sources:
        for key, value in given.items():
            if value is not None:
                values[key] = _checked(source, key, value, is_text=source == _ENVIRONMENT), source
    return values


def redacted_urls(urls: Sequence[str]) -> str:
    """The URLs without user, path and query, which hold the API keys of hosted endpoints: fit for logs and status."""
    parts = [urlsplit(url) for url in urls]
    return ", ".join(f"{one.scheme}://{one.netloc.rpartition('@')[2]}" for one in parts)


def public_urls(urls: tuple[str, ...]) -> tuple[str, ...]:
    """Those that name no user, path or query, in which hosted endpoints have their keys."""
    parts = [(url, urlsplit(url)) for url in urls]
    return tuple(
        url
        for url, one in parts
        if not one.username and not one.password and not one.query and not one.fragment and one.path in ("", "/")
    )


def ledger_options(settings: Settings) -> str:
    """The options by which a command on any machine finds the ledger, without what only we may know."""
    url = next(iter(public_urls(settings.rpc_url)), "URL")
    return f"--rpc-url {quote(url)} --chain-id {settings.chain_id} --ledger {settings.ledger}"


def _embedded_chain(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text())
        return {key: found[key] for key in ("rpc_url", "chain_id", "ledger", "campaigns")}
    except (ValueError, KeyError, TypeError) as error:
        raise UsageFailure(f"{path} is damaged ({error!r}): delete it, `chain` writes it again") from error


def _config_file(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = tomllib.loads(_text(path))
    except tomllib.TOMLDecodeError as error:
        raise UsageFailure(f"{path} is not valid TOML: {error}") from error
    unknown = sorted(set(found) - set(SETTINGS))
    if unknown:
        names = ", ".join(repr(key) + _nearest(key) for key in unknown)
        raise UsageFailure(f"{path}: unknown key {names}; `{program()} start --help` has the keys, as options")
    return found


def _text(path: Path) -> str:
    """Of config.toml. Raises UsageFailure."""
    try:
        return handwritten.read(path, _MOST_BYTES)
    except ValueError as error:
        raise UsageFailure(str(error)) from None


def _nearest(key: str) -> str:
    near = get_close_matches(key, SETTINGS, 1)
    return f" (did you mean {near[0]}?)" if near else ""


def _environment(environ: Mapping[str, str]) -> dict[str, Any]:
    given = {key: environ[setting.environment] for key, setting in SETTINGS.items() if setting.environment in environ}
    return {key: split(text) if SETTINGS[key].is_list else text for key, text in given.items()}


def _checked(source: str, key: str, value: Any, is_text: bool = False) -> Any:
    """The value in its field's type, or one line that names where it came from."""
    setting = SETTINGS[key]
    name = setting.environment if source == _ENVIRONMENT else key
    try:
        # The environment knows only text, so there "8545" is a number; in the file it is a mistake.
        result = msgspec.convert(setting.parse(value), setting.type, strict=not is_text)
    except msgspec.ValidationError as error:
        why = f"expected {' or '.join(setting.choices)}" if setting.choices else _PLAIN.get(setting.type, str(error))
        raise UsageFailure(f"{source}: {name}: {why} (got {_in_words(value)})") from None
    if wrong := setting.wrong(result):
        raise UsageFailure(f"{source}: {name}: {wrong} (got {_in_words(value)})")
    return result


def _in_words(value: Any) -> str:
    return (", ".join(map(repr, value)) or "nothing") if isinstance(value, list | tuple) else repr(value)


def _toml(value: Any) -> str:
    """A TOML value; JSON's strings, numbers and lists of strings are TOML's too."""
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)
