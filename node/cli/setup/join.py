"""`dlx-node join`: a folder that joins a run, from one line that somebody of the run sent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from dlx.ground import handwritten
from dlx.node.cli import options
from dlx.node.cli.setup.init import create_keys
from dlx.node.home import config, program
from dlx.node.home.datadir import DataDir
from dlx.node.home.errors import Failure, UsageFailure
from dlx.node.home.join_line import JoinLine, Listed, decode, keep
from dlx.node.home.settings import DEFAULTS, Settings

_MOST_BYTES = 65_536


@options.of_folder("rpc_url", "password_file")
def command(
    given: options.Given,
    line: Annotated[list[str], typer.Argument(metavar="LINE", help="What `run invite` printed; - reads stdin.")],
    accounts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The list of accounts that came with the line.", show_default="none"),
    ] = None,
    insecure_devnet: Annotated[
        bool, typer.Option("--insecure-devnet", help="Lock a new keystore with a password that everybody knows.")
    ] = False,
    json: options.JsonOption = False,
) -> None:
    """Make a folder join the run of a line: keys where they are missing, settings, the invitation.

    Settings that the folder has stay, and a line to another ledger is refused. `dlx-node start` then joins. A run with
    a list takes the accounts of a file: `--accounts FILE` proves that the folder's is one of them. A node of the run
    that runs in the folder takes the invitation by itself, and settings at its next start.
    """
    from dlx.ground import durable
    from dlx.ledger.abi import ZERO_ACCOUNT
    from dlx.node.home.keys import identity

    said = decode("".join(handwritten.piped(_MOST_BYTES).split() if line == ["-"] else line))
    folder, settings = options.folder(given, may_be_new=True)
    _check_guest(folder, said)
    invited = said.invited and said.invited.invitation
    site = invited.site if invited and invited.account == ZERO_ACCOUNT else None
    if (runs := folder.is_held) and not _is_last(folder, said.run):
        raise Failure(f"what runs in {folder.root} is not of the line's run: stop it first, or name another --datadir")
    if (stages := any(stage.is_held for stage in folder.stages)) and (accounts or (invited and not site)):
        raise Failure(f"nodes of a site's stages run in {folder.root}/stages: give each its own account's line there")
    if not said.rpc_url and given.settings["rpc_url"] in (None, []) and settings.rpc_url == DEFAULTS.rpc_url:
        raise UsageFailure("the line names no chain node: give yours by --rpc-url URL")
    changes = _changes(settings, said, given.settings["rpc_url"])
    listed = None
    if accounts is not None:
        urls = said.rpc_url if "rpc_url" in changes and not given.settings["rpc_url"] else settings.rpc_url
        chain = replace(settings, chain_id=said.chain_id, ledger=said.ledger, rpc_url=urls)
        listed = _listed(folder, chain, said, accounts, insecure_devnet)
    create_keys(folder, settings, insecure_devnet)
    stated = dict(changes)
    if given.settings["password_file"]:
        stated["password_file"] = config.whole_path("password_file", given.settings["password_file"])
    before = config.load(folder, {}, {})
    if not config.write(folder.config, stated):
        for key, value in stated.items():
            config.change(folder.config, key, " ".join(value) if isinstance(value, list) else str(value))
    keep(folder.invitations, said, listed)
    durable.write_bytes(folder.last_run, said.run.hex().encode())
    made = {
        "folder": folder.root,
        "account": identity.account_address(folder),
        "run": "0x" + said.run.hex(),
        "ledger": said.ledger,
        "invited": bool(said.invited or listed),
    }
    if json:
        options.print_json(made)
        return
    after = config.load(folder, {}, {})
    changed = [key for key in ("rpc_url", "bootstrap", "password_file") if getattr(before, key) != getattr(after, key)]
    everybody = "everybody is, unless the run has a list of accounts: then add --accounts FILE"
    made["invited"] = f"yes, the site {site}" if site else "yes, this account" if made["invited"] else everybody
    options.print_fields(
        [
            *made.items(),
            *((key.replace("_", " "), " ".join(map(str, value)) if isinstance(value, list) else value)
              for key, value in changes.items() if key not in made),
            ("next", _next(stages, changed) if runs else program.line("start", folder=folder.root)),
        ]
    )  # fmt: skip


def _next(stages: bool, changed: list[str]) -> str:
    """What to do where a node of the run runs in the folder, or nodes of a site's `stages` do. `changed`: settings."""
    if stages:
        return "start it again: the nodes of its stages take it as they start"
    again = f"; start it again for {', '.join(changed)}" if changed else ""
    return f"its node, which runs, takes the invitation by itself{again}"


def _is_last(folder: DataDir, run: bytes) -> bool:
    """Whether the folder's node trains the run, or did so last."""
    return folder.last_run.exists() and folder.last_run.read_text().strip() == run.hex()


def _check_guest(folder: DataDir, said: JoinLine) -> None:
    """Raises Failure where the line invites another account than the folder's."""
    from dlx.ledger.abi import ZERO_ACCOUNT
    from dlx.node.home.keys import identity

    if said.invited is None or said.invited.invitation.account == ZERO_ACCOUNT:
        return
    guest = said.invited.invitation.account
    if not identity.keystores(folder):
        raise Failure(f"the line invites {guest}, and {folder.root} has no account: name its folder by --datadir")
    if (own := identity.account_address(folder)) != guest:
        raise Failure(f"the line invites {guest}, and the account of {folder.root} is {own}: ask for a line for that")


def _listed(folder: DataDir, settings: Settings, said: JoinLine, file: Path, insecure_devnet: bool) -> Listed:
    """The proof that the folder's account is in the list that the run's creator committed. Raises Failure where it is
    not, or the file holds another list, NotReady for a silent chain node. `insecure_devnet`: the account that is
    missing may have the password that everybody knows."""
    from dlx.node.cli import accounts_file
    from dlx.node.home.keys import identity
    from dlx.node.home.ledgers import open_ledger

    if said.invited is not None:
        raise UsageFailure("the line holds an invitation: leave --accounts out")
    if not identity.keystores(folder):
        insecure = insecure_devnet or identity.of_devnet(settings.chain_id, settings.password_file)
        make = identity.making(folder, insecure)
        raise Failure(f"{folder.root} has no account: make it by `{make}`, and send its address to the run's creator")
    account, found = identity.account_address(folder), accounts_file.read(file)
    with open_ledger(settings, folder) as client:
        root = client.list_of(said.run)
    if root is None:
        raise Failure("the run has no list of accounts: if it is not open, ask its creator for an invitation")
    if root != found.root:
        raise Failure(f"{file} is not the list that the run's creator committed last: ask for the newest")
    if account not in found.accounts:
        raise Failure(f"{account}, the account of {folder.root}, is not in {file}: send it to the run's creator")
    return Listed(found.proof(account))


def _changes(settings: Settings, said: JoinLine, rpc_url: list[str] | None) -> dict[str, Any]:
    """The settings that the folder lacks. Raises Failure where it has other ones."""
    if settings.ledger and settings.ledger.lower() != said.ledger.lower():
        raise Failure(f"this folder is of ledger {settings.ledger}, the line of {said.ledger}: name a new --datadir")
    if settings.ledger and settings.chain_id != said.chain_id:
        raise Failure(f"this folder is of chain {settings.chain_id}, the line of {said.chain_id}: name a new --datadir")
    wanted: dict[str, Any] = {"chain_id": said.chain_id, "ledger": said.ledger}
    urls = rpc_url or list(said.rpc_url)
    if urls and (rpc_url or settings.rpc_url == DEFAULTS.rpc_url):
        wanted["rpc_url"] = urls
    if said.bootstrap and not settings.bootstrap:
        wanted["bootstrap"] = list(said.bootstrap)
    return wanted
