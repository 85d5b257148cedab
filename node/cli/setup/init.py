"""`dlx-node init`: make a node's folder, keys and configuration."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from dlx.ground.machine import expand
from dlx.node.cli import options
from dlx.node.home import config
from dlx.node.home.errors import UsageFailure


def command(
    datadir: options.DataDirOption = None,
    network: options.NetworkOption = None,
    rpc_url: options.RpcUrlOption = None,
    chain_id: options.ChainIdOption = None,
    ledger: options.LedgerOption = None,
    max_fee: options.MaxFeeOption = None,
    max_tip: options.MaxTipOption = None,
    daily_budget: options.DailyBudgetOption = None,
    listen: options.ListenOption = None,
    announce: options.AnnounceOption = None,
    bootstrap: options.BootstrapOption = None,
    http_host: options.HttpHostOption = None,
    http_port: options.HttpPortOption = None,
    log_format: options.LogFormatOption = None,
    password_file: options.PasswordFileOption = None,
    private_data: options.PrivateDataOption = None,
    insecure_devnet: Annotated[
        bool, typer.Option("--insecure-devnet", help="Lock the keystore with a password that everybody knows.")
    ] = False,
    json: options.JsonOption = False,
) -> None:
    """Make the node key, the account's keystore and config.toml, where they are missing.

    Settings given here are written to config.toml. Nothing that exists is ever overwritten.
    """
    given: dict[str, Any] = {
        "network": network,
        "rpc_url": rpc_url or None,
        "chain_id": chain_id,
        "ledger": ledger,
        "max_fee": max_fee,
        "max_tip": max_tip,
        "daily_budget": daily_budget,
        "listen": listen or None,
        "announce": announce or None,
        "bootstrap": bootstrap or None,
        "http_host": http_host,
        "http_port": http_port,
        "log_format": log_format,
        "password_file": None if password_file is None else str(expand(password_file).absolute()),
        "private_data": None if private_data is None else str(expand(private_data).absolute()),
    }
    from dlx.node.home.keys import identity

    folder, settings = options.folder(datadir, may_be_new=True, **given)

    def password() -> str:
        if not settings.password_file:
            raise UsageFailure(
                "a new account needs a password: put one into a file and give --password-file FILE "
                "(or --insecure-devnet for a devnet where nothing has value)"
            )
        return identity.password_in(Path(settings.password_file))

    folder.create()
    folder.check_secrets()
    created = identity.create(folder, password, insecure_devnet=insecure_devnet)
    wrote_config = config.write(folder.config, given)
    made = {"node key": created.node_key, "account": created.account, "config.toml": wrote_config}
    account, peer_id = identity.account_address(folder), identity.node_peer_id(folder)
    insecure = identity.is_insecure(folder)
    if not wrote_config and any(value is not None for value in given.values()):
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
    options.print_fields(
        [
            ("folder", folder.root),
            ("account", account),
            ("peer id", peer_id),
            *((name, "created" if new else "kept") for name, new in made.items()),
            ("next", f"dlx-node start --datadir {shlex.quote(str(folder.root))}"),
        ]
    )
