"""`dlx-node init`: make a node's folder, keys and configuration."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dlx.node.cli import options
from dlx.node.home import config
from dlx.node.home.datadir import DataDir
from dlx.node.home.errors import UsageFailure
from dlx.node.home.program import line
from dlx.node.home.settings import Settings

if TYPE_CHECKING:
    from dlx.node.home.keys.identity import Created


@options.of_folder(
    *options.LEDGER,
    *options.FEES,
    "listen",
    "announce",
    "bootstrap",
    "http_host",
    "http_port",
    "log_format",
    "password_file",
    "private_data",
)
def command(
    given: options.Given,
    insecure_devnet: Annotated[
        bool, typer.Option("--insecure-devnet", help="Lock the keystore with a password that everybody knows.")
    ] = False,
    json: options.JsonOption = False,
) -> None:
    """Make the node key, the account's keystore and config.toml, where they are missing.

    Settings given here are written to config.toml. Nothing that exists is ever overwritten.
    """
    for key in ("password_file", "private_data"):
        if given.settings[key] is not None:
            given.settings[key] = config.whole_path(key, given.settings[key])
    from dlx.node.home.keys import identity

    folder, settings = options.folder(given, may_be_new=True)
    stated = {key: value for key, value in given.settings.items() if value not in (None, [])}
    created = create_keys(folder, settings, insecure_devnet)
    wrote_config = config.write(folder.config, stated)
    made = {"node key": created.node_key, "account": created.account, "config.toml": wrote_config}
    account, peer_id = identity.account_address(folder), identity.node_peer_id(folder)
    insecure = identity.is_insecure(folder)
    if not wrote_config and stated:
        options.note(f"{folder.config} was there before and is unchanged: edit it to change settings")
    if insecure:
        options.note("INSECURE: everybody knows this keystore's password; use it on a devnet only")
    elif insecure_devnet:
        options.note("the keystore was there before and keeps its own password")
    if json:
        options.print_json(
            {
                "datadir": folder.root,
                "account": account,
                "peer_id": peer_id,
                "insecure": insecure,
                "created": [name for name, new in made.items() if new],
                "kept": [name for name, new in made.items() if not new],
            }
        )
        return
    then = ["start"] if config.load(folder, {}, os.environ).ledger else ["config", "set", "ledger", "ADDRESS"]
    options.print_fields(
        [
            ("folder", folder.root),
            ("account", account),
            ("peer id", peer_id),
            *((name, "created" if new else "kept") for name, new in made.items()),
            ("next", line(*then, folder=folder.root)),
        ]
    )


def create_keys(folder: DataDir, settings: Settings, insecure_devnet: bool) -> Created:
    """The folder, with a node key and an account where it has none. Raises UsageFailure where no password is given, and
    what `identity.create` raises."""
    from dlx.node.home.keys import identity

    def password() -> str:
        if not settings.password_file:
            raise UsageFailure(
                "a new account needs a password: put one into a file and give --password-file FILE "
                "(or --insecure-devnet for a devnet where nothing has value)"
            )
        return identity.password_in(Path(settings.password_file))

    lacks = not folder.node_key.exists() or not identity.keystores(folder)
    if lacks and not insecure_devnet and not identity.is_insecure(folder):
        password()  # before anything is made
    folder.create()
    folder.check_secrets()
    return identity.create(folder, password, insecure_devnet=insecure_devnet)
