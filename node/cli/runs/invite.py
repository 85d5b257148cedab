"""`dlx-node run invite | revoke | steward`: who may join an invited run."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dlx.node.cli import options
from dlx.node.home.errors import Failure, UsageFailure

if TYPE_CHECKING:
    from dlx.ledger.client import LedgerClient
    from dlx.node.home.datadir import DataDir
    from dlx.node.home.settings import Settings

_DAY = 86_400
_DAYS = 30  # until an invitation has to be used
_GUESTS = typer.Argument(
    metavar="ACCOUNT", help="The accounts that are invited, or sites by --site.", show_default="none: the run is open"
)
_SITE = typer.Option("--site", help="What is named are addresses of sites, with all their machines.")


@options.of_folder(*options.LEDGER, *options.FEES, "bootstrap", "password_file")
def command(
    given: options.Given,
    guests: Annotated[list[str] | None, _GUESTS] = None,
    run: options.RunOption = None,
    site: Annotated[bool, _SITE] = False,
    accounts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Commit a list in place of the run's last: one account a line, `#` begins a comment.",
            show_default="none",
        ),
    ] = None,
    expires: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=3650,
            metavar="DAYS",
            help="Days until it has to be used; who joined stays.",
            show_default=str(_DAYS),
        ),
    ] = None,
    steward_key: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Keystore, or 64 hex digits in a 0600 file, of the creator or a steward.",
            show_default="the folder's account",
        ),
    ] = None,
    json: options.JsonOption = False,
) -> None:
    """Print a line for each account that is invited: `dlx-node join LINE` makes a folder that joins the run.

    It costs no transaction: the guest's node sends the invitation as it joins. The line holds no secret, and only its
    account can use it. An open run has one line for everybody: name no account.

    `--accounts FILE` is for many guests: by one transaction the creator lets in all accounts of the file, who join by
    one line and the file. The next list replaces it: who was let in stays, and who was revoked may come again.
    """
    from dlx.ledger.abi import ZERO_ACCOUNT
    from dlx.ledger.keys import account_of, sign
    from dlx.ledger.typed import Invitation
    from dlx.node.home.join_line import JoinLine, SignedInvitation
    from dlx.node.home.ledgers import open_index, open_ledger
    from dlx.node.runs import find

    named = [options.account(one, "ACCOUNT") for one in guests or ()]
    folder, settings = options.folder(given)
    if accounts is not None:
        if named or site or expires is not None:
            raise UsageFailure("--accounts says who is invited: leave ACCOUNT, --site and --expires out")
        return _commit(folder, settings, run, accounts, steward_key, json)
    with open_ledger(settings, folder) as client, open_index(client) as index:
        view = find.view_of(client, index, find.resolve(index, run))

        def invited(guest: str, now: int, until: int, secret: bytes) -> SignedInvitation:
            account, of_site = (ZERO_ACCOUNT, guest) if site else (guest, ZERO_ACCOUNT)
            made = Invitation(client.ledger, view.run, account, of_site, now, until)
            return SignedInvitation(made, sign(made.digest(client.chain_id, client.part("Invitations")), secret))

        if view.config.invited != bool(named):
            raise UsageFailure(
                "the run is for invited accounts only: name them, or give --accounts FILE" if view.config.invited else
                "the run is open, and its line for everybody: name no account"
            )  # fmt: skip
        urls = _urls(settings)
        lines = [JoinLine(client.chain_id, client.ledger, view.run, urls, settings.bootstrap)]
        if named:
            secret, now = _secret(folder, settings, steward_key), client.head().time
            _check_steward(client, view.run, account_of(secret))
            until = now + (expires or _DAYS) * _DAY
            lines = [replace(lines[0], invited=invited(one, now, until, secret)) for one in named]
    if json:
        made = [{"guest": one.invited and one.invited.invitation.guest, "line": one.encode()} for one in lines]
        options.print_json({"run": "0x" + view.run.hex(), "lines": made})
        return
    for one in lines:
        sys.stdout.write(f"dlx-node join {one.encode()}\n")


@options.of_folder(*options.LEDGER, *options.FEES, "password_file")
def revoke(
    given: options.Given,
    guest: Annotated[
        str | None,
        typer.Argument(metavar="ACCOUNT", help="The account, or a site's address.", show_default="none: see --list"),
    ] = None,
    run: options.RunOption = None,
    of_list: Annotated[bool, typer.Option("--list", help="End the run's list of accounts; for its creator.")] = False,
    json: options.JsonOption = False,
) -> None:
    """Take an invitation back, used or not: who holds a slot keeps it, and gets no other one.

    For the run's creator and its stewards. A line, or a list, that is made later invites again. The end of a list takes
    nothing from whom it let in.
    """
    from dlx.node.home.keys.identity import load_account
    from dlx.node.home.ledgers import open_index, open_ledger
    from dlx.node.runs import find

    folder, settings = options.folder(given)
    if (guest is None) != of_list:
        raise UsageFailure("say what to take back: an ACCOUNT, or --list")
    who = None if guest is None else options.account(guest, "ACCOUNT")
    own = load_account(folder, settings)
    with open_ledger(settings, folder, own.secret) as client, open_index(client) as index:
        view = find.view_of(client, index, find.resolve(index, run))
        if who is None:
            _check_creator(client, view.run, own.address, "commits its lists")
            if client.list_of(view.run) is None:
                raise Failure("the run has no list of accounts")
            client.set_list(view.run, None)
        else:
            _check_steward(client, view.run, own.address)
            client.revoke(view.run, who)
    made = {"run": "0x" + view.run.hex(), "revoked": who or "list"}
    options.print_json(made) if json else options.print_fields(list(made.items()))


@options.of_folder(*options.LEDGER, *options.FEES, "password_file")
def steward(
    given: options.Given,
    account: Annotated[str, typer.Argument(metavar="ACCOUNT", help="Who may invite to the run as its creator does.")],
    run: options.RunOption = None,
    end: Annotated[bool, typer.Option("--end", help="End it: invitations of it that nobody used are void.")] = False,
    json: options.JsonOption = False,
) -> None:
    """Let another account invite to a run and revoke, as its creator."""
    from dlx.node.home.keys.identity import load_account
    from dlx.node.home.ledgers import open_index, open_ledger
    from dlx.node.runs import find

    folder, settings = options.folder(given)
    who = options.account(account, "ACCOUNT")
    own = load_account(folder, settings)
    with open_ledger(settings, folder, own.secret) as client, open_index(client) as index:
        view = find.view_of(client, index, find.resolve(index, run))
        _check_creator(client, view.run, own.address, "names its stewards")
        client.set_steward(view.run, who, not end)
    made = {"run": "0x" + view.run.hex(), "account": who, "steward": not end}
    options.print_json(made) if json else options.print_fields(list(made.items()))


def _commit(folder: DataDir, settings: Settings, run: str | None, file: Path, key: Path | None, json: bool) -> None:
    """Commit the list of the file, unless it is the run's already, and print the line by which its accounts come."""
    from dlx.ledger.keys import account_of
    from dlx.node.cli import accounts_file
    from dlx.node.home.join_line import JoinLine
    from dlx.node.home.ledgers import open_index, open_ledger
    from dlx.node.runs import find

    made = accounts_file.read(file)
    secret = _secret(folder, settings, key)
    with open_ledger(settings, folder, secret) as client, open_index(client) as index:
        view = find.view_of(client, index, find.resolve(index, run))
        if not view.config.invited:
            raise UsageFailure("the run is open, and its line for everybody: it takes no list")
        _check_creator(client, view.run, account_of(secret), "commits its lists")
        line = JoinLine(client.chain_id, client.ledger, view.run, _urls(settings), settings.bootstrap).encode()
        if is_new := client.list_of(view.run) != made.root:
            client.set_list(view.run, made.root)
    count, root, name = len(made.accounts), "0x" + made.root.hex(), shlex.quote(file.name)
    if json:
        lines = [{"guest": None, "line": line}]
        options.print_json({"run": "0x" + view.run.hex(), "accounts": count, "root": root, "lines": lines})
        return
    options.print_fields([("accounts", f"{count:,}"), ("root", root)])
    if not is_new:
        options.say("The run has this list already: who was revoked since stays out, and is invited by name.")
    options.say(f"Send the line and {name} to the guests. Each runs this in the folder of its account, then `start`:")
    sys.stdout.write(f"dlx-node join {line} --accounts {name}\n")


def _check_creator(client: LedgerClient, run: bytes, account: str, does: str) -> None:
    """Raises Failure where another account says what only the creator says."""
    (creator,) = client.read("creatorOf", run)
    if creator != account:
        raise Failure(f"{account} did not create the run: {creator} {does}")


def _check_steward(client: LedgerClient, run: bytes, account: str) -> None:
    if not client.is_steward(run, account):
        raise Failure(f"{account} may not invite to the run: its creator may, and stewards that the creator named")


def _secret(folder: DataDir, settings: Settings, file: Path | None) -> bytes:
    """Of the account that invites. Raises Failure."""
    from dlx.node.home.keys import identity

    if file is None:
        return identity.load_account(folder, settings).secret
    text = identity.account_text(options.existing_file(file, "--steward-key"))
    return identity.read_account(file, text, lambda: identity.read_password(folder, settings))


def _urls(settings: Settings) -> tuple[str, ...]:
    """The chain nodes that the line names."""
    from dlx.node.home.config import public_urls

    found = public_urls(settings.rpc_url)
    if len(found) < len(settings.rpc_url):
        options.note("URLs that may hold a key are not in the line: guests add their own chain node by --rpc-url")
    return found
