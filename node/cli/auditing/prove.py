"""`dlx-node prove`: show a contract one element of a sealed version that is wrong, and keep evidence of its signers."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dlx.node.cli import options
from dlx.node.cli.progress import Progress
from dlx.node.home.errors import Failure
from dlx.node.home.program import line

if TYPE_CHECKING:
    from dlx.ledger.client import LedgerClient, Receipt
    from dlx.ledger.events import Sealed
    from dlx.ledger.view.run_view import RunView
    from dlx.node.audit.prove import Disproof
    from dlx.node.home.datadir import DataDir

RoundOption = Annotated[int, typer.Option("--round", min=0, metavar="T", help="The round whose seal is wrong.")]
StageOption = Annotated[int, typer.Option("--stage", min=0, metavar="S", help="The stage.")]
SendOption = Annotated[bool, typer.Option("--send", help="Send the proof from the folder's account.")]


@options.of_folder(*options.LEDGER, *options.FEES, "bootstrap", "mailboxes", "password_file")
def command(
    given: options.Given,
    round: RoundOption,
    stage: StageOption,
    run: options.RunArgument = None,
    blobs: options.BlobsOption = None,
    send: SendOption = False,
    json: options.JsonOption = False,
) -> None:
    """Replay one outer step, find a value that was sealed with other bits, and make the proof of it for OuterProofs.

    With --json the transactions are there as calldata, for whoever sends them. Once the seal is disproved, by --send or
    by somebody before, the folder keeps evidence against each account that signed it. `dlx-node evidence submit` takes
    their bonds. Exit codes: 0 the seal is wrong, and here is the proof, or there was one. 1 it is right, or no contract
    can be shown that it is not. 2 the command is wrong. 3 it could not look.
    """
    folder, settings = options.folder(given)
    from dlx.ledger.errors import Reverted
    from dlx.node.audit.prove import disproof_of
    from dlx.node.audit.sources.places import Places
    from dlx.node.home.keys.identity import keystores, load_account, making
    from dlx.node.home.ledgers import open_ledger
    from dlx.node.runs import find

    own = tuple(options.existing_folder(path, "--blobs") for path in blobs or ())
    places = Places(own, tuple(folder.blob_folders), settings.bootstrap, settings.mailboxes)
    key = load_account(folder, settings).secret if send else None
    found: Disproof | None = None
    receipts: list[Receipt] = []
    evidence, disproved = list[Path](), False
    with open_ledger(settings, folder, key) as client, Progress(json) as progress:
        with client.events() as index:
            chosen = find.resolve(index, run)
            view = find.view_of(client, index, chosen)
            sealed = view.sealed.get((stage, round))
            if sealed is None or not client.is_disproved(sealed.digest):
                found = disproof_of(client, view, places, stage, round, progress.say, progress.show)
            calls = found.calls if found is not None and send else ()
            for number, call in enumerate(calls, 1):
                progress.show(f"transaction {number} of {len(calls)}")
                try:
                    receipts.append(client.disprove(call))
                except Reverted:
                    if sealed is None or not client.is_disproved(sealed.digest):  # by somebody else meanwhile
                        raise
            if sealed is not None and client.is_disproved(sealed.digest):
                evidence, disproved = _keep(folder, client, view, sealed), True
    if json:
        where = {"run": "0x" + chosen.hex(), "round": round, "stage": stage}
        proof = {} if found is None else _fields(found, receipts)
        options.print_json(where | {"disproved": disproved, "evidence": evidence} | proof)
        return
    shown = [("wrong", "disproved before")] if found is None else _shown(found, receipts)
    if evidence:
        shown.append(("evidence", f"against the {len(evidence)} that signed it, in {evidence[0].parent}"))
        if not keystores(folder):
            shown.append(("sender", "the folder has no account: make one, and send it ETH for the gas"))
            shown.append(("first", making(folder)))
        shown.append(("next", line("evidence", "submit", of_ledger=True)))
    options.print_fields(shown)


def _keep(folder: DataDir, client: LedgerClient, view: RunView, sealed: Sealed) -> list[Path]:
    """The files of evidence against those who signed a version that is disproved. Raises Failure."""
    from dlx.ledger.bonds import false_versions
    from dlx.node.home.evidence import directory_of, keep

    stage, round = sealed.stage, sealed.round
    seal = sealed.seal(view.sealed[stage, round - 1].digest if round else view.genesis[stage])
    directory = directory_of(folder, view.run, stage)
    folder.create()
    try:
        signers = false_versions(seal, sealed.signatures, client.domain)
        return [keep(directory, account, one) for account, one in signers.items()]
    except OSError as error:
        raise Failure(f"cannot keep evidence in {directory}: {error.strerror}") from error


def _fields(found: Disproof, receipts: list[Receipt]) -> dict[str, Any]:
    return {
        "of": _of(found),
        "tensor": found.tensor,
        "element": found.number,
        "sealed": f"0x{found.sealed:08x}",
        "right": f"0x{found.right:08x}",
        "calldata": ["0x" + data.hex() for data in found.calldata()],
        "sent": ["0x" + receipt.tx.hex() for receipt in receipts],
        "gas": sum(receipt.gas_used for receipt in receipts),
    }


def _shown(found: Disproof, receipts: list[Receipt]) -> list[tuple[str, str]]:
    if found.tensor is None:
        wrong = f"byte {found.number} of the header of the {_of(found)}: sealed {found.sealed}, right {found.right}"
    else:
        sealed, right = (f"0x{bits:08x} ({_float(bits):.9g})" for bits in (found.sealed, found.right))
        wrong = f"element {found.number} of {found.tensor}, {_of(found)}: sealed {sealed}, right {right}"
    data, sent = found.calldata(), "no: add --send"
    if receipts:
        sent = ", ".join(f"0x{one.tx.hex()} ({one.gas_used:,} gas)" for one in receipts)
    size = f"{len(data)} transaction{'s' * (len(data) > 1)}, {sum(map(len, data)):,} bytes of calldata"
    return [("wrong", wrong), ("proof", size), ("sent", sent)]


def _of(found: Disproof) -> str:
    return "momentum" if found.of_momentum else "weights"


def _float(bits: int) -> float:
    return struct.unpack("<f", struct.pack("<I", bits))[0]
