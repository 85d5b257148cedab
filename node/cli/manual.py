"""The man pages and the operator's table of settings: `python -m dlx.node.cli.manual docs` writes them (`make man`).

The pages are made from the parser itself: one for each command that `dlx-node --help` shows; a group's page has all its
commands. The table is made from the fields of `home.settings`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from dlx.node.cli.app import app
from dlx.node.home.settings import SETTINGS

_NAME = "dlx-node"
_EXITS = (
    ("0", "fine"),
    ("1", "failed"),
    ("2", "wrong usage: an argument, a setting, a draft or a folder that cannot be"),
    ("3", "not ready: a key, a running node or a chain is missing"),
    ("130", "interrupted"),
)


def pages() -> dict[str, str]:
    """File name -> page."""
    root = typer.main.get_command(app)
    found = {f"{_NAME}.1": _page(root, _NAME, listed=True)}
    for name, command in root.commands.items():  # type: ignore[attr-defined]
        found[f"{_NAME}-{name}.1"] = _page(command, f"{_NAME} {name}", listed=False)
    return found


def write(docs: Path) -> None:
    """Write all pages, remove those of commands that are gone, and put the table into the operator's guide."""
    folder = docs / "man"
    folder.mkdir(exist_ok=True)
    made = pages()
    for old in folder.glob(f"{_NAME}*.1"):
        if old.name not in made:
            old.unlink()
    for name, text in made.items():
        (folder / name).write_text(text)
    guide = docs / "operator.md"
    guide.write_text(with_settings(guide.read_text()))


def with_settings(guide: str) -> str:
    """The operator's guide with a current table of settings between its two marks."""
    before, begin, rest = guide.partition("<!-- settings: `make man` writes this table -->\n")
    _, end, after = rest.partition("<!-- end of settings -->\n")
    return f"{before}{begin}\n{settings_table(guide)}\n{end}{after}"


def settings_table(guide: str) -> str:
    """All settings, with links to the guide's sections that have more."""
    lines = ["| `config.toml` | option | environment | default | |", "|---|---|---|---|---|"]
    for key, setting in SETTINGS.items():
        more = f" See {_link(guide, setting.section)}." if setting.section else ""
        names = f"`{key}` | `{setting.option}` | `{setting.environment}`"
        default = setting.text(setting.default)
        shown = default if default == "none" and setting.default != default else f"`{default}`"
        lines.append(f"| {names} | {shown} | {setting.help.replace('<', '&lt;')}{more} |")
    return "\n".join(lines) + "\n"


def _link(guide: str, section: str) -> str:
    """To the section of that name, whatever its number. Raises ValueError where there is none."""
    found = re.search(rf"^#+ ([\d.]+) {re.escape(section)}$", guide, re.MULTILINE)
    if found is None:
        raise ValueError(f"docs/operator.md has no section {section}, which a setting in node/home/settings.py names")
    anchor = f"{found[1]} {section}".lower().replace(".", "").replace(" ", "-")
    return f"[{section}](#{anchor})"


def _page(command: Any, path: str, listed: bool) -> str:
    """`listed`: the commands of a group are named, and described elsewhere."""
    short = _paragraphs(command)[0].rstrip(".").replace("\n", " ")
    lines = [f'.TH "{path.upper().replace(" ", "-")}" 1 "" "{_NAME}" "{_NAME} manual"', ".SH NAME"]
    lines += [f"{_text(path.replace(' ', '-'))} \\- {_text(short)}", ".SH SYNOPSIS", *_synopsis(command, path)]
    lines += [".SH DESCRIPTION", *_described(command)]
    if listed:
        lines.append(".SH COMMANDS")
        for name, one in command.commands.items():
            lines += [".TP", f".BR {_text(f'{_NAME}-{name}')} (1)", _text(_paragraphs(one)[0].replace("\n", " "))]
    lines += _options(command, path, ".SH OPTIONS")
    for name, one in ({} if listed else getattr(command, "commands", {})).items():
        lines += [f'.SH "{_text(f"{path} {name}")}"', *_synopsis(one, f"{path} {name}"), ".PP", *_described(one)]
        lines += _options(one, f"{path} {name}", ".PP")
    lines += [".SH EXIT STATUS"]
    for code, meaning in _EXITS:
        lines += [".TP", f".B {code}", _text(meaning)]
    lines += [".SH SEE ALSO", f".BR {_text(_NAME)} (1); the operator's guide, docs/operator.md"]
    return "\n".join(lines) + "\n"


def _synopsis(command: Any, path: str) -> list[str]:
    arguments = [_argument(one) for one in command.params if _is_argument(one)]
    more = ["COMMAND"] if getattr(command, "commands", None) else []
    return [f".B {_text(path)}", _text(" ".join(["[OPTIONS]", *arguments, *more]))]


def _described(command: Any) -> Iterator[str]:
    for at, paragraph in enumerate(_paragraphs(command)):
        if at:
            yield ".PP"
        yield from map(_text, paragraph.split("\n"))


def _options(command: Any, path: str, head: str) -> list[str]:
    context = _context(command, path)
    helped = [row for one in command.get_params(context) if (row := one.get_help_record(context))]
    lines = [head] if helped else []
    for names, meaning in helped:
        lines += [".TP", f".B {_text(names)}", _text(" ".join(meaning.split()))]
    return lines


def _context(command: Any, path: str) -> Any:
    return command.make_context(path, [], resilient_parsing=True, help_option_names=["-h", "--help"])


def _paragraphs(command: Any) -> list[str]:
    return [one.strip() for one in (command.help or "").split("\n\n") if one.strip()]


def _argument(parameter: Any) -> str:
    name = parameter.metavar or parameter.name.upper()
    return name if parameter.required else f"[{name}]"


def _is_argument(parameter: Any) -> bool:
    return parameter.param_type_name == "argument"


def _text(plain: str) -> str:
    escaped = plain.replace("\\", "\\e").replace("-", "\\-").replace("`", "").strip()
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


if __name__ == "__main__":
    write(Path(sys.argv[1]))
