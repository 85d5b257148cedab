"""`dlx-node keys`: what an account has signed moves with it, so that it never signs two things about one round."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from dlx.node.cli import options
from dlx.node.home.errors import Failure

app = options.Verbs(help="Make a site's key; move what an account has signed to another machine.")


@app.command("make-site")
def make_site(
    name: Annotated[str, typer.Argument(help="What you call the site: letters, digits, - and _.")],
    datadir: options.DataDirOption = None,
    network: options.NetworkOption = None,
    json: options.JsonOption = False,
) -> None:
    """Make the key of a site: copy its file to the same place in the folder of each of the site's machines.

    Whoever has the file can have nodes of theirs named the site's.
    """
    from dlx.node.home import site

    folder, _ = options.folder(datadir, network)
    folder.create()
    made = site.make(folder, name)
    fields = {"site": made.name, "address": made.address, "file": site.key_file(folder, name)}
    options.print_json(fields) if json else options.print_fields(list(fields.items()))


@app.command("export-signed")
def export_signed(
    out: Annotated[Path, typer.Option(help="The file to write; it must not exist.")],
    datadir: options.DataDirOption = None,
    network: options.NetworkOption = None,
    password_file: options.PasswordFileOption = None,
    json: options.JsonOption = False,
) -> None:
    """Write everything that the account has signed into one file, encrypted with the account's password.

    The node must not run, and not again in this folder once the account has moved.
    """
    from dlx.ground import durable
    from dlx.node.home import bundle, identity
    from dlx.node.home.signed import SignedBook

    if out.exists() or not out.parent.is_dir():
        raise Failure(f"{out} cannot be made: name a new file in a folder that exists")
    folder, settings = options.folder(datadir, network, password_file=password_file)
    address = identity.account_address(folder)
    folder.create()
    with folder.lock():
        identity.load_account(folder, settings)  # the password has to be the account's, or nothing would open the file
        with closing(SignedBook(folder.signed, address)) as book:
            entries = book.entries()
        password, cost = identity.read_password(folder, settings), identity.seal_cost(folder)
        durable.create(out, bundle.pack(address, entries, password, cost))
    options.note(
        f"do not start {folder.root} again once {address} has moved: it could sign what the other node does not know"
    )
    made = {"account": address, "contributions": len(entries.contributions), "seals": len(entries.seals), "file": out}
    options.print_json(made) if json else options.print_fields(list(made.items()))


@app.command("import-signed")
def import_signed(
    file: Annotated[Path, typer.Argument(help="What `export-signed` wrote.")],
    datadir: options.DataDirOption = None,
    network: options.NetworkOption = None,
    password_file: options.PasswordFileOption = None,
    json: options.JsonOption = False,
) -> None:
    """Add what the account has signed elsewhere to this folder, before its node starts here.

    A file of another account, a damaged one or one that contradicts what was signed here changes nothing.
    """
    from dlx.node.home import bundle, identity
    from dlx.node.home.signed import SignedBook

    folder, settings = options.folder(datadir, network, password_file=password_file)
    address = identity.account_address(folder)
    if not file.is_file() or file.stat().st_size > bundle.MAX_BYTES:
        raise Failure(f"{file} is no file that export-signed wrote")
    folder.create()
    with folder.lock():
        try:
            entries = bundle.unpack(file.read_bytes(), address, identity.read_password(folder, settings))
            with closing(SignedBook(folder.signed, address)) as book:
                added = book.merge(entries)
        except Failure as error:
            raise Failure(f"{file}: {error}; nothing was imported") from None
    made = {
        "account": address, "contributions": len(entries.contributions), "seals": len(entries.seals), "new": added
    }  # fmt: skip
    options.print_json(made) if json else options.print_fields(list(made.items()))
