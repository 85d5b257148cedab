"""`dlx-node deploy`: put the contracts on an EVM chain."""

from __future__ import annotations

import sys

from dlx.node.cli import options


@options.of_folder("rpc_url", "chain_id", *options.FEES, "password_file")
def command(
    given: options.Given,
    json: options.JsonOption = False,
) -> None:
    """Deploy NodeRegistry and TrainingLedger from the folder's account, which pays the gas.

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
