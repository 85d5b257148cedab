"""Options that several commands share, and how a command finds its folder and prints what it read."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from dlx.node.home import config
from dlx.node.home.config import Settings
from dlx.node.home.datadir import DataDir

_DEFAULTS = Settings()


def setting(key: str) -> Any:
    """The option of a setting: what it means, its environment variable and its default come from node.config."""
    default = getattr(_DEFAULTS, key)
    shown = " ".join(default) if isinstance(default, tuple) else str(default)
    return typer.Option(
        "--" + key.replace("_", "-"),
        help=f"{config.HELP[key]} (env DLX_{key.upper()})",
        show_default=shown or "none",
    )


DataDirOption = Annotated[
    Path | None,
    typer.Option("--datadir", help="The node's folder. (env DLX_HOME)", show_default="~/.dlx/<network>"),
]
NetworkOption = Annotated[str | None, setting("network")]
RpcUrlOption = Annotated[str | None, setting("rpc_url")]
ChainIdOption = Annotated[int | None, setting("chain_id")]
LedgerOption = Annotated[str | None, setting("ledger")]
ListenOption = Annotated[list[str] | None, setting("listen")]
AnnounceOption = Annotated[list[str] | None, setting("announce")]
BootstrapOption = Annotated[list[str] | None, setting("bootstrap")]
HttpHostOption = Annotated[str | None, setting("http_host")]
HttpPortOption = Annotated[int | None, setting("http_port")]
LogFormatOption = Annotated[str | None, setting("log_format")]
PasswordFileOption = Annotated[str | None, setting("password_file")]
PrivateDataOption = Annotated[str | None, setting("private_data")]
CheckpointActivationsOption = Annotated[bool | None, setting("checkpoint_activations")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
RunOption = Annotated[
    str | None,
    typer.Option("--run", help="Run id in hex, or a prefix of 6 digits or more.", show_default="the ledger's only run"),
]


def folder(datadir: Path | None, network: str | None, **flags: Any) -> tuple[DataDir, Settings]:
    """The data folder and its settings; `flags` are setting options as given, None where they were not."""
    name = network or os.environ.get("DLX_NETWORK") or _DEFAULTS.network
    found = DataDir.locate(datadir, name, os.environ)
    given = {key: value for key, value in flags.items() if value != []}  # typer's word for a list not given
    return found, config.load(found, {"network": network, **given}, os.environ)


def note(line: str) -> None:
    """A line for the person at the terminal; stdout is for what was asked."""
    sys.stderr.write(f"dlx-node: {line}\n")


def print_json(value: Any) -> None:
    """One JSON object on stdout; bytes become 0x hex, paths their text."""
    sys.stdout.write(msgspec.json.encode(value, enc_hook=str).decode() + "\n")


def print_table(columns: list[str], rows: list[list[Any]]) -> None:
    """A table that a pipe gets whole: never cut to a width that is not a terminal's."""
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*("" if cell is None else str(cell) for cell in row))
    console().print(table)


def print_fields(fields: list[tuple[str, Any]]) -> None:
    """Name and value, one pair per line."""
    width = max(len(name) for name, _ in fields)
    for name, value in fields:
        sys.stdout.write(f"{name:<{width}}  {value}\n")


def console() -> Console:
    """The terminal, or 200 columns where there is none."""
    return Console(width=None if sys.stdout.isatty() else 200, highlight=False, markup=False)
