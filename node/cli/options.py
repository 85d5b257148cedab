"""Options that several commands share, and how a command finds its folder and prints what it read."""

from __future__ import annotations

import inspect
import os
import re
import shlex
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Optional

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.core import TyperCommand, TyperGroup
from typer.main import get_current_context

from dlx.ground.untrusted import escaped, printable
from dlx.node.home import citation, config
from dlx.node.home.datadir import DataDir
from dlx.node.home.diagnostics import Diagnosis
from dlx.node.home.errors import Failure, UsageFailure
from dlx.node.home.formatting import color_system
from dlx.node.home.program import Called, called_with, program
from dlx.node.home.settings import DEFAULTS, SETTINGS, Setting, Settings
from dlx.node.home.values import wrong_account


class _Help:
    """Help without a type beside flags, as `--json` takes no value, and plain where NO_COLOR asks for that."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from typer import rich_utils  # slow to import

        rich_utils.COLOR_SYSTEM = color_system()
        super().format_help(ctx, formatter)  # type: ignore[misc]

    def get_params(self, ctx: Any) -> Any:
        found = super().get_params(ctx)  # type: ignore[misc]
        for parameter in found:
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
        return found


class _Command(_Help, TyperCommand):
    pass


class _Group(_Help, TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except EOFError as error:  # a prompt that nobody answers is an Abort by now; typer would make one of this, too
            at = traceback.extract_tb(error.__traceback__)[-1]
            problem = f"data ended too soon in {at.filename}, line {at.lineno} ({error or 'EOFError'})"
            raise Failure(f"{problem}: a file of the installation may be cut short, or a process ended") from error


class Verbs(typer.Typer):
    """A group of commands."""

    def __init__(self, **given: Any) -> None:
        super().__init__(cls=_Group, no_args_is_help=True, **given)

    def __call__(self, *arguments: Any, **given: Any) -> int:
        """The exit code. Raises UsageFailure for what the parser does not take: all wrong usage looks one way."""
        try:
            return super().__call__(*arguments, prog_name="dlx-node", standalone_mode=False, **given) or 0
        except typer.TyperException as error:
            typed = [str(one) for one in (arguments[0] if arguments and arguments[0] is not None else sys.argv[1:])]
            why = _plain(error.format_message().rstrip("."))
            if not why:  # a group without a command: its help is shown already
                return error.exit_code
            if _NUMBER.fullmatch(number := str(getattr(error, "option_name", ""))):
                values = [one for one in typed if one.startswith(number)]
                again = shlex.join([*(one for one in typed if one not in values), "--", *values])
                raise UsageFailure(f"{number} looks like an option: if it is a value, `{program()} {again}`") from None
            see = self._path(typed)
            raise UsageFailure(f"{why[0].lower()}{why[1:]}: see `{see} --help`") from None

    def _path(self, words: list[str]) -> str:
        """The command that a line begins with, and its group: the parser does not know it of each error."""
        from typer.main import get_command

        command: Any = get_command(self)
        path = [program()]
        for word in words:
            command = getattr(command, "commands", {}).get(word)
            if command is None:
                break
            path.append(word)
        return " ".join(path)

    def command(self, name: str | None = None, **given: Any) -> Any:
        return super().command(name, cls=_Command, **given)


def _plain(why: str) -> str:
    """What the parser says, without the words of the library that it is made with."""
    for theirs, ours in (
        ("Input should be less than or equal to", "expected at most"),
        ("Input should be greater than or equal to", "expected at least"),
        ("Input should be", "expected"),
        ("Value error, ", ""),
    ):
        why = why.replace(theirs, ours)
    return why.partition(", unable to parse")[0]


class Given(NamedTuple):
    """What the command line says of a folder and its settings."""

    datadir: Path | None
    settings: dict[str, Any]  # by key; None or an empty list where an option was not given


SCHEME = citation.SCHEME
_RUN_ID = re.compile("(0x)?[0-9a-fA-F]{6,64}")
_NUMBER, _WIDEST = re.compile(r"-\d.*"), 10_000  # what the parser takes for an option; columns of a table
LEDGER = ("rpc_url", "chain_id", "ledger")
FEES = ("max_fee", "max_tip", "daily_budget")

DataDirOption = Annotated[
    Path | None,
    typer.Option("--datadir", help="The node's folder. (env DLX_HOME)", show_default="~/.dlx/<network>"),
]


def of_folder(*keys: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The decorated command is about a node's folder: it takes --datadir, --network and the options of these settings,
    after its own options and before --json. Its first parameter is what they say, a `Given`."""
    return _taking(*dict.fromkeys(("datadir", "network", *keys)))


def of_settings(*keys: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """As `of_folder`, for a command that has no data folder."""
    return _taking(*keys)


def _taking(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        _, *own = inspect.signature(command, eval_str=True).parameters.values()
        options = [_parameter(name) for name in names]
        parameters = sorted([*own, *options], key=lambda one: (one.name == "json", one in options))

        def taking(**given: Any) -> None:
            settings = {name: given.pop(name) for name in names}
            command(Given(settings.pop("datadir", None), settings), **given)

        taking.__name__, taking.__doc__ = command.__name__, command.__doc__
        taking.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # what typer goes by
            [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters]
        )
        return taking

    return decorate


def _parameter(name: str) -> inspect.Parameter:
    annotation = DataDirOption if name == "datadir" else _option(SETTINGS[name])
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _option(setting: Setting) -> Any:
    option = typer.Option(
        setting.option,
        help=f"{setting.help} (env {setting.environment})",
        metavar=setting.metavar,
        show_default=setting.text(setting.default),
    )
    return Annotated[Optional[setting.option_type], option]  # noqa: UP045


BaseOption = Annotated[
    Path | None,
    typer.Option(
        "--base",
        metavar="DIR",
        help="Of an adapter's folder: the Hugging Face folder that it was trained beside.",
        show_default="none",
        readable=False,
    ),
]
BlobsOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--blobs",
        metavar="DIR",
        help="A blob folder of your own; can be given more than once.",
        show_default="none",
        readable=False,  # typer would call that a wrong command
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def _run_id(given: str | None) -> str | None:
    return None if given is None else named_run(given)


def named_run(given: str) -> str:
    """The id of a run, or its first digits. A citation also says on which chain and ledger the run is: see `folder` and
    `cited_version`. Raises UsageFailure."""
    if given.startswith(SCHEME):
        cited, before = citation.parse(given), _cited()
        if before is not None and before[:2] != cited[:2]:
            raise UsageFailure(f"{before} and {cited} are on two ledgers: pull one of them to a folder first")
        get_current_context().meta[_CITED] = cited
        return cited.run
    citation.id_digits(given)
    return given


_CITED = "dlx.cited"
_RUN: dict[str, Any] = {
    "help": "Run id in hex, a prefix of 6 digits or more, or dlx:CHAIN/LEDGER/RUN@VERSION.",
    "show_default": "the ledger's only run",
    "callback": _run_id,
}
RunOption = Annotated[str | None, typer.Option("--run", **_RUN)]
EitherRunOption = Annotated[
    str | None, typer.Option("--run", **_RUN | {"help": f"{_RUN['help']} This, or --manifest.", "show_default": "none"})
]
RunArgument = Annotated[str | None, typer.Argument(metavar="RUN", **_RUN)]


def _run_or_kit(given: str | None) -> str | None:
    return given if given is not None and names_kit(given) else _run_id(given)


def names_kit(given: str) -> bool:
    """Whether that is the folder of an audit kit, and no run."""
    if given.startswith(SCHEME) or _RUN_ID.fullmatch(given):
        return False
    return "/" in given or Path(given, "kit.json").is_file()


RunOrKitArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN|FOLDER",
        **_RUN | {"help": f"{_RUN['help']} Or the folder of an audit kit.", "callback": _run_or_kit},
    ),
]


def folder(given: Given, *, may_be_new: bool = False) -> tuple[DataDir, Settings]:
    """The data folder and its settings.

    Raises UsageFailure for a folder that is named and not there, or is no node's, unless the command may make it.
    """
    name = given.settings.get("network") or os.environ.get(SETTINGS["network"].environment) or DEFAULTS.network
    found = DataDir.locate(given.datadir, name, os.environ)
    if may_be_new:
        check_new_place(found.root)
    else:
        _check_place(found, named=bool(given.datadir or os.environ.get("DLX_HOME")))
    flags = {key: value for key, value in given.settings.items() if value != []}  # typer's word for a list not given
    if (cited := _cited()) is not None:
        for key, value in (("chain_id", cited.chain_id), ("ledger", cited.ledger)):
            if str(flags.get(key) or value).lower() != str(value).lower():
                raise UsageFailure(f"{cited} is of {key} {value}, {SETTINGS[key].option} says {flags[key]}")
            flags[key] = value
    settings = config.load(found, flags, os.environ)
    called_with(Called(found.root, tuple(_ledger_words(flags))))
    return found, settings


def _ledger_words(flags: dict[str, Any]) -> list[str]:
    """The options that name the ledger again. A URL that may hold a key is left to whoever pastes them."""
    given = [(SETTINGS[key], flags[key]) for key in LEDGER if flags.get(key) is not None]
    values = [(one, config.public_urls(tuple(value)) or ("URL",) if one.is_list else (value,)) for one, value in given]
    return [str(word) for one, texts in values for text in texts for word in (one.option, text)]


def cited_version(round: int | None) -> int | None:
    """The version that --round, or else a citation, names. Raises UsageFailure where they differ."""
    cited = _cited()
    if cited is None or cited.version is None or round == cited.version:
        return round
    if round is not None:
        raise UsageFailure(f"{cited} is version {cited.version}, --round says {round}")
    return cited.version


def cited_average(sealed: bool) -> bool | None:
    """Whether a version's mean is meant: None for what the manifest says. Raises UsageFailure."""
    cited = _cited()
    if sealed and cited is not None and cited.average:
        raise UsageFailure(f"{cited} is a mean, --sealed asks for the version itself")
    return False if sealed else None if cited is None or cited.version is None else cited.average


def _cited() -> citation.Citation | None:
    context = get_current_context(silent=True)
    return None if context is None else context.meta.get(_CITED)


def check_new_place(root: Path) -> None:
    """Raises UsageFailure unless `root` is a folder, or can be made in one that is there."""
    parent = root.parent
    if root.exists() and not root.is_dir():
        raise UsageFailure(f"{root} is not a folder: name another --datadir")
    if not root.exists() and not parent.is_dir() and not root.is_relative_to(os.path.expanduser("~/.dlx")):
        raise UsageFailure(f"there is no folder {parent} to make {root.name} in: make it, or name another --datadir")


def account(text: str, name: str) -> str:
    """An account's address with its checksum. Raises UsageFailure, naming what it was given as, for what is none."""
    from dlx.ledger.abi import checksum

    if wrong := wrong_account(text):
        raise UsageFailure(f"{name} {text[:60]!r}: {wrong}")
    return checksum(bytes.fromhex(text[2:]))


def existing_folder(path: Path, option: str) -> Path:
    """`path` itself. Raises UsageFailure, naming the option that it was given by, where it is no folder."""
    if not path.is_dir():
        raise UsageFailure(f"{option} {path}: there is no such folder")
    return path


def existing_file(path: Path, option: str) -> Path:
    """`path` itself. Raises UsageFailure, naming the option that it was given by, where it is no file."""
    if not path.is_file():
        raise UsageFailure(f"{option} {path}: there is no such file")
    return path


def check_placement(settings: Settings) -> None:
    """Raises UsageFailure for what no machine could train with."""
    from dlx.training.models.placement import PlacementError, check

    try:
        check(settings.placement)
    except PlacementError as error:
        raise UsageFailure(str(error)) from None


def _check_place(folder: DataDir, named: bool) -> None:
    root = folder.root
    if not root.exists():
        if named:
            from dlx.node.home.keys.identity import making  # slow to import

            raise UsageFailure(f"there is no folder {root}: make it with `{making(folder)}`, or name another --datadir")
    elif not root.is_dir() or (any(root.iterdir()) and not folder.is_a_nodes):
        raise UsageFailure(f"{root} is not the folder of a node or chain: name another --datadir")


def note(line: str) -> None:
    """A line for the person at the terminal; stdout is for what was asked."""
    sys.stderr.write(f"dlx-node: {printable(line)}\n")


def say(text: str) -> None:
    """Lines on stdout, for people."""
    sys.stdout.write("".join(f"{printable(line)}\n" for line in text.split("\n")))


def print_json(value: Any) -> None:
    """One JSON object on stdout; bytes become 0x hex, paths their text."""
    sys.stdout.write(escaped(msgspec.json.encode(value, enc_hook=str).decode()) + "\n")


def print_table(columns: list[str], rows: list[list[Any]]) -> None:
    """A table whose cells are whole, however narrow the terminal is."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, no_wrap=True)  # a narrow terminal wraps lines, which stay whole when they are copied
    for row in rows:
        table.add_row(*("" if cell is None else printable(str(cell)) for cell in row))
    made = console()
    made.width = max(made.width, made.measure(table, options=made.options.update_width(_WIDEST)).maximum)
    made.print(table)


def print_fields(fields: list[tuple[str, Any]]) -> None:
    """Name and value, one pair per line."""
    width = max(len(name) for name, _ in fields)
    for name, value in fields:
        shown = value if isinstance(value, Text) else Text(printable(str(value)))
        console().print(Text(f"{name:<{width}}  ") + shown, soft_wrap=True)


def print_diagnosis(diagnosis: Diagnosis) -> None:
    """One line, and one more with what mends it."""
    colour = {"PASS": "green", "WARN": "yellow", "FAIL": "red"}[diagnosis.verdict]
    line = Text(f"{diagnosis.verdict}  ", style=colour) + Text(f"{diagnosis.check:<14}{printable(diagnosis.text)}")
    console().print(line, soft_wrap=True)
    if diagnosis.mend:
        console().print(Text(f"{'':<20}mend: {printable(diagnosis.mend)}"), soft_wrap=True)


def amber(text: str) -> Text:
    """For what is no error but wants a look; plain where stdout is no terminal."""
    return Text(printable(text), style="yellow")


def console() -> Console:
    """The terminal, or 200 columns where there is none."""
    width = None if sys.stdout.isatty() else 200
    return Console(width=width, highlight=False, markup=False, color_system=color_system())
