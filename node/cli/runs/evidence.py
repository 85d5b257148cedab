"""`dlx-node evidence list | submit`: what the folder keeps against accounts, by its node and by `dlx-node prove`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dlx.node.cli import options
from dlx.node.home.errors import Failure

if TYPE_CHECKING:
    from dlx.ledger.bonds import Evidence
    from dlx.ledger.client import LedgerClient

app = options.Verbs(help="List and send evidence against accounts, which costs them their bonds.")

_KINDS = {"twoStatements": "two statements", "twoSeals": "two seals", "falseVersion": "a false version"}


@app.command("list")
@options.of_folder(*options.LEDGER)
def list_(given: options.Given, json: options.JsonOption = False) -> None:
    """List the evidence that the folder has kept, and what each account has at stake."""
    from dlx.node.home.evidence import kept
    from dlx.node.home.ledgers import open_ledger

    folder, settings = options.folder(given)
    found = list(kept(folder, options.note))
    with open_ledger(settings, folder) as client:
        rows = [_row(client, path, evidence) for path, evidence in found]
    if json:
        options.print_json({"evidence": rows})
    else:
        options.print_table(["RUN", "STAGE", "ROUND", "ACCOUNT", "SHOWS", "AT STAKE (WEI)", "FILE"],
                            [list(row.values()) for row in rows])  # fmt: skip


@app.command()
@options.of_folder(*options.LEDGER, *options.FEES, "password_file")
def submit(
    given: options.Given,
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE", help="Evidence, anybody's.", show_default="all that is kept"),
    ] = None,
    json: options.JsonOption = False,
) -> None:
    """Send evidence to the ledger: an account that has a bond loses it, a tenth of it to this folder's account.

    Evidence against accounts that have nothing at stake is passed over: it stays good for later.
    """
    from dlx.ledger.errors import Reverted
    from dlx.node.home.evidence import kept, read
    from dlx.node.home.keys.identity import load_account
    from dlx.node.home.ledgers import open_ledger

    folder, settings = options.folder(given)
    found = [(path, read(path)) for path in files] if files else list(kept(folder, options.note))
    own = load_account(folder, settings)
    rows = []
    with open_ledger(settings, folder, own.secret) as client:
        for path, evidence in found:
            row = _row(client, path, evidence)
            if row["at_stake_wei"]:
                try:
                    client.slash(evidence)
                    row["sent"] = "slashed"
                except Reverted as error:
                    row["sent"] = f"refused: {error}"
            else:
                row["sent"] = "passed over"
            rows.append(row)
    if json:
        options.print_json({"evidence": rows})
    else:
        options.print_table(["RUN", "STAGE", "ROUND", "ACCOUNT", "SHOWS", "AT STAKE (WEI)", "FILE", "SENT"],
                            [list(row.values()) for row in rows])  # fmt: skip
    if any(str(row["sent"]).startswith("refused") for row in rows):
        raise Failure("the ledger refused some of it")


def _row(client: LedgerClient, path: Path, evidence: Evidence) -> dict[str, object]:
    """Whose it is, as the contract would have it; nothing is at stake where it shows nothing."""
    from dlx.ledger.bonds import NoContradiction
    from dlx.ledger.keys import SignatureError

    run, stage, round = evidence.place
    try:
        account, shows = evidence.offender(client.domain), _KINDS[evidence.function]
        at_stake = client.bond(run, account).at_stake
    except (NoContradiction, SignatureError) as error:
        account, shows, at_stake = "", f"nothing: {error}", 0
    return {
        "run": "0x" + run.hex(),
        "stage": stage,
        "round": round,
        "account": account,
        "shows": shows,
        "at_stake_wei": at_stake,
        "file": path,
    }
