"""`dlx-node deploy`: put the contracts on an EVM chain."""

from __future__ import annotations

import sys

from dlx.node.cli import options


def command(
    datadir: options.DataDirOption = None,
    network: options.NetworkOption = None,
    rpc_url: options.RpcUrlOption = None,
    chain_id: options.ChainIdOption = None,
    max_fee: options.MaxFeeOption = None,
    max_tip: options.MaxTipOption = None,
    daily_budget: options.DailyBudgetOption = None,
    password_file: options.PasswordFileOption = None,
    json: options.JsonOption = False,
) -> None:
    """Deploy NodeRegistry and TrainingLedger from the folder's account, which pays the gas.

    Nobody owns the contracts afterwards, the account that deployed them no more than any other.
    """
    folder, settings = options.folder(
        datadir, network, rpc_url=rpc_url, chain_id=chain_id, max_fee=max_fee, max_tip=max_tip,
        daily_budget=daily_budget, password_file=password_file,
    )  # fmt: skip
    from dlx.node.home.keys.identity import load_account
    from dlx.node.home.ledgers import deploy_contracts

    account = load_account(folder, settings)
    found = deploy_contracts(settings, account.secret, folder.outbox)
    if json:
        options.print_json(found)
        return
    options.print_fields([(name.replace("_", " "), value) for name, value in found.items()])
    sys.stdout.write(f'\nFor every node of this network, in config.toml:  ledger = "{found["ledger"]}"\n')
