"""`dlx-node config show | set | unset`: the folder's settings, and where each comes from."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from dlx.ground import handwritten
from dlx.node.cli import options
from dlx.node.home import config
from dlx.node.home.settings import SETTINGS

app = options.Verbs(help="Show and change a node's settings.")
KeyArgument = Annotated[str, typer.Argument(metavar="KEY", help="A key of config.toml, such as rpc_url.")]


@app.command()
@options.of_folder()
def show(
    given: options.Given,
    key: Annotated[str | None, typer.Argument(metavar="KEY", help="Only this key.", show_default="all")] = None,
    json: options.JsonOption = False,
) -> None:
    """Show each setting, its value, and where that comes from: environment, config.toml, embedded chain or default.

    Flags go before all of these. URLs are shown without user, path and query, which may be keys.
    """
    folder, settings = options.folder(given)
    if key is not None:
        config.check_key(key)
    sources = config.sourced(folder, given.settings, os.environ)
    found = {
        name: {
            "value": _shown(name, getattr(settings, name)),
            "from": sources[name][1] if name in sources else "default",
        }
        for name in SETTINGS
        if key in (None, name)
    }
    if json:
        options.print_json(found)
    else:
        rows = [[name, SETTINGS[name].text(one["value"]), one["from"]] for name, one in found.items()]
        options.print_table(["KEY", "VALUE", "FROM"], rows)


@app.command("set")
@options.of_folder()
def set_(
    given: options.Given,
    key: KeyArgument,
    value: Annotated[
        list[str],
        typer.Argument(metavar="VALUE", help="What it is to be, lists with blanks between; - reads a line of stdin."),
    ],
) -> None:
    """Set a key of config.toml, which keeps its comments. A running node goes on with what it has until restarted.

    An URL with a key in it is best given by - and stdin: other users of the machine see a command's arguments.
    """
    folder, _ = options.folder(given, may_be_new=True)
    text = handwritten.piped(65_536, one_line=True).strip() if value == ["-"] else " ".join(value)
    folder.create()
    config.change(folder.config, key, config.whole_path(key, text))


@app.command()
@options.of_folder()
def unset(given: options.Given, key: KeyArgument) -> None:
    """Have a key of config.toml take its default again."""
    folder, _ = options.folder(given)
    config.change(folder.config, key, None)


def _shown(key: str, value: Any) -> Any:
    if SETTINGS[key].secret:
        return [config.redacted_urls([url]) for url in value]
    return list(value) if isinstance(value, tuple) else value
