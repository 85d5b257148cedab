"""`dlx-node keys`: which keys a folder has; an account, and what it has signed, from and to other places.

What an account has signed moves with it, so that it never signs two things about one round. No secret is ever an
argument of a command, which other users of the machine see: secrets come from 0600 files or stdin.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from dlx.ground import handwritten
from dlx.node.cli import options
from dlx.node.home.errors import Failure, UsageFailure

app = options.Verbs(help="List, export and import keys; make a site's; move what an account has signed.")


@app.command("list")
@options.of_folder()
def list_(given: options.Given, json: options.JsonOption = False) -> None:
    """List the folder's keys: what each is, its public name and its file. Needs no password."""
    from dlx.node.home.keys import identity, site

    folder, _ = options.folder(given)
    rows = [["node key", identity.node_peer_id(folder), folder.node_key]] if folder.node_key.exists() else []
    if identity.keystores(folder):
        locked = "account (INSECURE: everybody knows its password)" if identity.is_insecure(folder) else "account"
        rows.append([locked, identity.account_address(folder), identity.keystores(folder)[0]])
    for path in sorted(folder.sites.glob("*.key")):
        rows.append([f"site {path.stem}", site.load(folder, path.stem).address, path])
    if json:
        options.print_json({"keys": [{"kind": kind, "name": name, "file": path} for kind, name, path in rows]})
    else:
        options.print_table(["KEY", "NAME", "FILE"], rows)


@app.command()
@options.of_folder("password_file")
def export(
    given: options.Given,
    out: Annotated[Path, typer.Option(help="The file to write, for you only (0600); it must not exist.")],
    plain: Annotated[
        bool, typer.Option("--plain", help="Write the secret itself, in hex, instead of a keystore.")
    ] = False,
) -> None:
    """Write the account to a file that wallets import: a V3 keystore, locked by the folder's password.

    To move a node whose run goes on, move what it has signed as well (`export-signed`), and stop it for good.
    """
    from dlx.ground import durable
    from dlx.node.home.keys import identity

    if out.exists() or not out.parent.is_dir():
        raise UsageFailure(f"{out} cannot be made: name a new file in a folder that exists")
    folder, settings = options.folder(given)
    durable.create(out, identity.exported(folder, settings, plain))
    if plain:
        options.note(f"whoever reads {out} is {identity.account_address(folder)}")


@app.command("import")
@options.of_folder("password_file")
def import_(
    given: options.Given,
    file: Annotated[Path, typer.Argument(help="A V3 keystore, or 64 hex digits in a 0600 file; - reads stdin.")],
    unlock: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File with the keystore's own password.", show_default="the password file's"),
    ] = None,
    json: options.JsonOption = False,
) -> None:
    """Make an account from elsewhere the folder's, locked by the folder's password. Where it has one, nothing changes.

    `dlx-node init` then makes the rest. If the account has signed anything in a run that goes on, `import-signed` it.
    """
    from dlx.node.home.keys import identity

    folder, settings = options.folder(given, may_be_new=True)
    if not settings.password_file:
        raise UsageFailure("the account needs a password here: put one into a file and give --password-file FILE")
    password = identity.password_in(Path(settings.password_file))
    if str(file) == "-":
        text = handwritten.piped(identity.MOST_KEY_BYTES)
    elif not file.is_file() or file.stat().st_size > identity.MOST_KEY_BYTES:
        raise UsageFailure(f"{file} is no file with a key")
    else:
        text = identity.account_text(file)
    secret = identity.read_account(
        None if str(file) == "-" else file, text, lambda: password if unlock is None else identity.password_in(unlock)
    )
    folder.create()
    with folder.lock():
        address = identity.adopt(folder, secret, password)
    made = {"account": address, "folder": folder.root}
    options.print_json(made) if json else options.print_fields(list(made.items()))


@app.command("make-site")
@options.of_folder()
def make_site(
    given: options.Given,
    name: Annotated[str, typer.Argument(help="What you call the site: letters, digits, - and _.")],
    json: options.JsonOption = False,
) -> None:
    """Make the key of a site: copy its file to the same place in the folder of each of the site's machines.

    Whoever has the file can have nodes of theirs named the site's.
    """
    from dlx.node.home.keys import site

    folder, _ = options.folder(given)
    folder.create()
    made = site.make(folder, name)
    fields = {"site": made.name, "address": made.address, "file": site.key_file(folder, name)}
    options.print_json(fields) if json else options.print_fields(list(fields.items()))


@app.command("export-signed")
@options.of_folder("password_file")
def export_signed(
    given: options.Given,
    out: Annotated[Path, typer.Option(help="The file to write; it must not exist.")],
    json: options.JsonOption = False,
) -> None:
    """Write everything that the account has signed into one file, encrypted with the account's password.

    The node must not run, and not again in this folder once the account has moved.
    """
    from dlx.ground import durable
    from dlx.node.home.keys import identity, interchange
    from dlx.node.home.keys.slashing_protection import SignedStatements

    if out.exists() or not out.parent.is_dir():
        raise UsageFailure(f"{out} cannot be made: name a new file in a folder that exists")
    folder, settings = options.folder(given)
    address = identity.account_address(folder)
    folder.create()
    with folder.lock():
        identity.load_account(folder, settings)  # the password has to be the account's, or nothing would open the file
        with closing(SignedStatements(folder.signed, address)) as signed:
            entries = signed.entries()
        password, cost = identity.read_password(folder, settings), identity.encryption_cost(folder)
        durable.create(out, interchange.pack(address, entries, password, cost))
    options.note(
        f"do not start {folder.root} again once {address} has moved: it could sign what the other node does not know"
    )
    made = {"account": address, "contributions": len(entries.contributions), "seals": len(entries.seals), "file": out}
    options.print_json(made) if json else options.print_fields(list(made.items()))


@app.command("import-signed")
@options.of_folder("password_file")
def import_signed(
    given: options.Given,
    file: Annotated[Path, typer.Argument(help="What `export-signed` wrote.")],
    json: options.JsonOption = False,
) -> None:
    """Add what the account has signed elsewhere to this folder, before its node starts here.

    A file of another account, a damaged one or one that contradicts what was signed here changes nothing.
    """
    from dlx.node.home.keys import identity, interchange
    from dlx.node.home.keys.slashing_protection import SignedStatements

    folder, settings = options.folder(given)
    address = identity.account_address(folder)
    if not file.is_file() or file.stat().st_size > interchange.MAX_BYTES:
        raise UsageFailure(f"{file} is no file that export-signed wrote")
    folder.create()
    with folder.lock():
        try:
            entries = interchange.unpack(file.read_bytes(), address, identity.read_password(folder, settings))
            with closing(SignedStatements(folder.signed, address)) as signed:
                added = signed.merge(entries)
        except Failure as error:
            raise Failure(f"{file}: {error}; nothing was imported") from None
    made = {
        "account": address, "contributions": len(entries.contributions), "seals": len(entries.seals), "new": added
    }  # fmt: skip
    options.print_json(made) if json else options.print_fields(list(made.items()))
