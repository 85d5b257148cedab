"""`dlx-node chain`: the embedded EVM chain as a JSON-RPC server, with the contracts deployed on it. `dlx-node deploy`:
put the contracts on any EVM chain."""

from __future__ import annotations

import json as jsonlib
import sys
from typing import Annotated, Any

import typer

from dlx.node.cli import options
from dlx.node.home import extras
from dlx.node.home.errors import UsageFailure
from dlx.node.home.values import is_loopback


@options.of_folder("chain_id")
def command(
    given: options.Given,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8545,
    block_time: Annotated[
        float | None,
        typer.Option(
            min=0.05,
            max=60,
            help="Seconds between blocks while transactions wait; thirty times that on an idle chain.",
            show_default="0.1 and 30",
        ),
    ] = None,
    insecure_listen: Annotated[
        bool, typer.Option("--insecure-listen", help="Allow a --host that other machines reach: it has a faucet.")
    ] = False,
    json: options.JsonOption = False,
) -> None:
    """Serve the chain kept in the folder until stopped; deploy the contracts at its first start.

    Where it answers and what is deployed goes to chain/contracts.json, which later commands in this folder read.
    """
    if not is_loopback(host) and not insecure_listen:
        raise UsageFailure(f"--host {host} lets others reach a chain whose faucet pays anybody: add --insecure-listen")
    extras.require("chain")
    from dlx.ledger.chain import serve
    from dlx.node.home.ledgers import check_chain_id, deploy_embedded

    folder, settings = options.folder(given, may_be_new=True)
    check_chain_id(folder, settings.chain_id)
    folder.create()
    folder.chain.mkdir(mode=0o700, exist_ok=True)

    def ready(url: str) -> None:
        found = deploy_embedded(folder, url, settings.chain_id)
        if json:
            sys.stdout.write(jsonlib.dumps(found) + "\n")
        else:
            options.print_fields([(name.replace("_", " "), value) for name, value in found.items()])
        sys.stdout.flush()

    listen: dict[str, Any] = {"host": host, "port": port, "chain_id": settings.chain_id, "on_ready": ready}
    if block_time is not None:
        listen |= {"block_time": block_time, "empty_block_time": 3 * block_time, "heartbeat": 30 * block_time}
    serve(folder.chain, **listen)


@options.of_folder("rpc_url", "chain_id", *options.FEES, "password_file")
def deploy(given: options.Given, json: options.JsonOption = False) -> None:
    """Deploy NodeRegistry, TrainingLedger and Campaigns from the folder's account, which pays the gas.

    Nobody owns the contracts afterwards, the account that deployed them no more than any other.
    """
    folder, settings = options.folder(given)
    from dlx.node.home.keys.identity import load_account
    from dlx.node.home.ledgers import deploy_contracts

    account = load_account(folder, settings)
    found = deploy_contracts(settings, account.secret, folder.outbox)
    if json:
        options.print_json(found)
        return
    options.print_fields([(name.replace("_", " "), value) for name, value in found.items()])
    sys.stdout.write(f'\nFor every node of this network, in config.toml:  ledger = "{found["ledger"]}"\n')
    sys.stdout.write(f'And for who funds a run or is paid:  campaigns = "{found["campaigns"]}"\n')
