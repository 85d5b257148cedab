"""`dlx-node web`: the ledger's runs as a page."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from shlex import quote, split
from typing import Annotated
from urllib.parse import urlsplit

import typer

from dlx.node.cli import listening, options
from dlx.node.home import extras
from dlx.node.home.program import called, for_others
from dlx.node.home.values import is_loopback


@options.of_folder(*options.LEDGER, "campaigns", "bootstrap", "mailboxes")
def command(
    given: options.Given,
    bind: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where to listen; port 0 takes a free one.")
    ] = "127.0.0.1:4680",
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File whose first line is the token that starting audits and downloading take; needed off loopback.",
            show_default="none",
        ),
    ] = None,
    blobs: options.BlobsOption = None,
) -> None:
    """Serve the ledger's runs as a page: losses, rounds, members, seals, audits, downloads.

    It shows what the ledger says and needs no node, until Ctrl-C. Everybody who reaches it may read; off loopback
    whoever has the token may also start audits and download. It speaks plain HTTP: put what encrypts in front of it.
    """
    extras.require("web")
    host, port, token = listening.listen_options(bind, token_file)
    folder, settings = options.folder(given)
    from dlx.node.audit.sources.places import Places
    from dlx.node.home.config import ledger_options, public_urls
    from dlx.node.home.ledgers import open_index, open_ledger, reachable_chain
    from dlx.node.web.app import Page
    from dlx.node.web.audits.runner import Auditing, where
    from dlx.node.web.guard import Guard
    from dlx.node.web.reading.reader import Reader
    from dlx.node.web.serving import listener

    kept = tuple(options.existing_folder(path, "--blobs") for path in blobs or ())
    places = Places(kept, tuple(folder.blob_folders), settings.bootstrap, settings.mailboxes)
    found, url = listener(host, port, "--bind")
    with found, reachable_chain(settings, folder) as settings, open_ledger(settings, folder) as client:
        with open_index(client):
            pass  # says how far it is while it reads what nobody has read
        reach = f"--datadir {quote(str(folder.root))}"  # of use on this machine, and nobody else's business
        if token is not None or any(given.settings[key] for key in options.LEDGER) or not folder.root.is_dir():
            reach = ledger_options(settings)
        urls = public_urls(settings.rpc_url)
        if token is not None:  # those who read it are elsewhere
            urls = tuple(url for url in urls if not is_loopback(urlsplit(url).hostname or ""))
        reader = Reader(client, (*kept, *folder.blob_folders), reach, settings.campaigns, urls)
        with nullcontext() if token is None else for_others(*split(reach)):
            auditing = Auditing(where(settings, folder, places, called()))
            page = Page(reader, Guard(token), auditing, places)
            try:
                listening.serve_until_stopped(found, page.app(), f"the page is at {url}")
            finally:
                auditing.stop()
                reader.close()
