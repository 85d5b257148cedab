"""`dlx-node`: registers the verbs and turns expected failures into one line and an exit code.

Exit codes: 0 fine, 1 failed, 2 usage, 3 not ready. A verb is a module with a function `command`; it imports what is
heavy inside that function, so that `--help` and the quick reads start at once.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from dlx.node.cli import audit, chain, data, demo, deploy, history, init, peers, pull, run, start, status
from dlx.node.home.errors import Failure

app = typer.Typer(
    name="dlx-node",
    help="A node of a decentralised training run whose every step is on a ledger.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

app.command("demo")(demo.command)
app.command("init")(init.command)
app.command("chain")(chain.command)
app.command("deploy")(deploy.command)
app.add_typer(run.app, name="run")
app.add_typer(data.app, name="data")
app.command("start")(start.command)
app.command("status")(status.command)
app.command("peers")(peers.command)
app.command("history")(history.command)
app.command("audit")(audit.command)
app.command("pull")(pull.command)

# Errors of the other packages that mean a wrong input or a missing part, never a fault of ours: one line is enough.
_EXPECTED = (
    ("dlx.ledger.errors", "LedgerError"),
    ("dlx.ledger.chain", "ChainError"),
    ("dlx.ledger.view", "ViewError"),
    ("dlx.training.recipe.manifest", "ManifestError"),
    ("dlx.training.data.shards", "DataError"),
    ("dlx.ground.blobs", "BlobError"),
    ("dlx.training.selftest", "SelfTestError"),
    ("dlx.p2p.addresses", "AddressError"),
    ("dlx.p2p.guard", "GuardError"),
    ("dlx.node.trainer.client", "TrainerError"),
)


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the `dlx-node` command. Always raises SystemExit, unless something unexpected happens."""
    try:
        app(arguments)
    except Exception as raised:
        error = _cause(raised)
        code = _exit_code(error)
        if code is None:
            raise
        sys.stderr.write(f"dlx-node: {' '.join(str(error).split())}\n")
        sys.exit(code)


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)] = False,
) -> None:
    if version:
        from dlx.node import version as installed

        sys.stdout.write(f"dlx-node {installed()}\n")
        raise typer.Exit


def _cause(error: Exception) -> Exception:
    """What went wrong inside the task groups that wrap it."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _exit_code(error: Exception) -> int | None:
    """The exit code of an expected failure; None for a bug, which deserves its traceback."""
    if isinstance(error, Failure):
        return error.exit_code
    # A module that was never imported cannot have raised; asking sys.modules keeps the quick commands quick.
    loaded = ((sys.modules.get(module), name) for module, name in _EXPECTED)
    kinds = tuple(getattr(module, name) for module, name in loaded if module is not None)
    return Failure.exit_code if isinstance(error, (*kinds, OSError)) else None


if __name__ == "__main__":
    main()
