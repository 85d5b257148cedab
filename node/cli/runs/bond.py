"""`dlx-node bond show | deposit | withdraw`: what the folder's account has at stake in a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlx.node.cli import options
from dlx.node.home.errors import Failure

if TYPE_CHECKING:
    from dlx.ledger.bonds import Bond

app = options.Verbs(help="Show, pay and take back what the folder's account has at stake in a run.")

_OF = (*options.LEDGER, *options.FEES, "password_file")


@app.command()
@options.of_folder(*options.LEDGER)
def show(given: options.Given, run: options.RunArgument = None, json: options.JsonOption = False) -> None:
    """Show what the account has in the run, and what a slot asks for."""
    from dlx.node.home.keys.identity import account_address
    from dlx.node.home.ledgers import open_index, open_ledger
    from dlx.node.runs import find

    folder, settings = options.folder(given)
    own = account_address(folder)
    with open_ledger(settings, folder) as client, open_index(client) as index:
        view = find.view_of(client, index, find.resolve(index, run))
        bond = client.bond(view.run, own)
    _print(json, view.run, own, bond, view.config.bond)


@app.command()
@options.of_folder(*_OF)
def deposit(given: options.Given, run: options.RunArgument = None, json: options.JsonOption = False) -> None:
    """Pay what a slot of the run asks for and the account lacks.

    The money is the account's: `withdraw` takes back what no slot needs, seven days after the slot was lost.
    """
    from dlx.node.home.keys.identity import load_account
    from dlx.node.home.ledgers import open_index, open_ledger
    from dlx.node.runs import find

    folder, settings = options.folder(given)
    own = load_account(folder, settings)
    with open_ledger(settings, folder, own.secret) as client, open_index(client) as index:
        view = find.view_of(client, index, find.resolve(index, run))
        bond = client.bond(view.run, own.address)
        if bond.slashed:
            raise Failure(f"the bond of {own.address} was slashed: it gets no slot of this run any more")
        if not view.config.bond:
            raise Failure("the run asks for no bond")
        if lacking := bond.lacks(view.config.bond):
            client.deposit(view.run, own.address, lacking)
        bond = client.bond(view.run, own.address)
    _print(json, view.run, own.address, bond, view.config.bond)


@app.command()
@options.of_folder(*_OF)
def withdraw(given: options.Given, run: options.RunArgument = None, json: options.JsonOption = False) -> None:
    """Take back all that is not at stake."""
    from dlx.node.home.keys.identity import load_account
    from dlx.node.home.ledgers import open_index, open_ledger
    from dlx.node.runs import find

    folder, settings = options.folder(given)
    own = load_account(folder, settings)
    with open_ledger(settings, folder, own.secret) as client, open_index(client) as index:
        view = find.view_of(client, index, find.resolve(index, run))
        client.withdraw(view.run)
        bond = client.bond(view.run, own.address)
    _print(json, view.run, own.address, bond, view.config.bond)


def _print(json: bool, run: bytes, account: str, bond: Bond, needed: int) -> None:
    from dlx.ledger.transactions.fees import eth
    from dlx.node.runs.history import utc

    if json:
        options.print_json(
            {
                "run": "0x" + run.hex(),
                "account": account,
                "needed_wei": needed,
                "free_wei": bond.free,
                "locked_wei": bond.locked,
                "unbonding_wei": bond.unbonding,
                "free_at": bond.free_at,
                "slashed": bond.slashed,
            }
        )
        return
    options.print_fields(
        [
            ("run", "0x" + run.hex()),
            ("account", account),
            ("a slot asks for", f"{eth(needed)} ETH"),
            ("at stake", f"{eth(bond.locked)} ETH in a slot"),
            *([("unbonding", f"{eth(bond.unbonding)} ETH until {utc(bond.free_at)}")] if bond.unbonding else []),
            ("free", f"{eth(bond.free)} ETH"),
            *([("slashed", "yes: this account gets no slot of the run any more")] if bond.slashed else []),
        ]
    )
