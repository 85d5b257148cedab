"""`dlx-node verify`: compare a pulled folder with the ledger."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from dlx.node.cli import options
from dlx.node.home.diagnostics import FAIL, Diagnosis, exit_code
from dlx.node.home.errors import Failure


@options.of_folder(*options.LEDGER, "bootstrap", "mailboxes")
def command(
    given: options.Given,
    model: Annotated[Path, typer.Argument(metavar="FOLDER", help="What `dlx-node pull` wrote, or somebody gave you.")],
    blobs: options.BlobsOption = None,
    offline: Annotated[
        bool,
        typer.Option(
            "--offline", help="Ask no peer for the run's tokenizer, only folders; the chain is asked all the same."
        ),
    ] = False,
    json: options.JsonOption = False,
) -> None:
    """Check that a folder is the version of a run that it says it is: weights, manifest, config and tokenizer.

    The ledger is --ledger or the settings' one, never what the folder names; the chain node is believed. Fetches
    weights only for a mean of versions, to compute it anew. Exit codes: 0 all is PASS, 1 something is FAIL, 4 nothing
    is, but something could not be compared (WARN).
    """
    folder, settings = options.folder(given)
    options.existing_folder(model, "FOLDER")
    import tempfile

    from dlx.node.audit.sources.blobs import Blobs, Folder
    from dlx.node.audit.sources.places import Places
    from dlx.node.audit.sources.search import open_sources
    from dlx.node.checkpoints.verify import again, verify
    from dlx.node.home.ledgers import open_index, open_ledger
    from dlx.node.runs import find
    from dlx.node.runs.listing import read_provenance

    try:
        stated = read_provenance(model)
    except Failure as error:
        _report([Diagnosis("ledger", FAIL, str(error), again(model))], json)
    run = bytes.fromhex(stated["run"].removeprefix("0x"))
    kept = tuple(options.existing_folder(path, "--blobs") for path in blobs or ())
    places = Places(kept, tuple(folder.blob_folders), settings.bootstrap, settings.mailboxes)
    with (
        open_ledger(settings, folder) as client,
        open_index(client) as index,
        tempfile.TemporaryDirectory(prefix="dlx-verify-") as work,
    ):
        if run not in index.runs():
            said = f"the ledger {client.ledger} has no run {stated['run']}"
            _report([Diagnosis("ledger", FAIL, said, "name the run's own ledger by --ledger")], json)
        with open_sources(client, run, places, options.note) as sources:
            from_ = [one for one in sources if not offline or isinstance(one, Folder)]
            blobs_ = Blobs(from_, Path(work), lambda *wrong: None)
            _report(verify(model, stated, client.domain, find.view_of(client, index, run), blobs_), json, stated)


def _report(diagnoses: Iterable[Diagnosis], json: bool, stated: dict[str, Any] | None = None) -> NoReturn:
    """Each as soon as it is found, or all as one object; ends the command. `stated`: what the folder says of itself,
    which is believed where all is PASS."""
    from dlx.node.checkpoints.card import citation

    found = []
    for diagnosis in diagnoses:
        found.append(diagnosis)
        if not json:
            options.print_diagnosis(diagnosis)
    code = exit_code({diagnosis.verdict for diagnosis in found})
    if json:
        cite = None if code or stated is None else str(citation(stated))
        options.print_json({"cite": cite, "failed": code == 1, "established": code == 0, "findings": found})
    raise typer.Exit(code)
