"""`dlx-node`: registers the verbs and turns expected failures into one line and an exit code.

Exit codes: 0 fine, 1 failed, 2 usage, 3 not ready, 4 not all could be established (`home.diagnostics.exit_code`). A
verb is the function `command` of the module that has its name, or a function with its name in the module of a related
verb. A verb imports what is heavy inside its function, so that `--help` and the quick reads start at once.
"""

from __future__ import annotations

import io
import os
import sys
from contextvars import copy_context
from typing import Annotated, Any, NoReturn

import typer

from dlx.ground.errors import DlxError, cause, in_words
from dlx.node.cli import options
from dlx.node.cli.auditing import audit, audit_kit, prove, watch
from dlx.node.cli.devnet import chain, demo, devnet
from dlx.node.cli.operate import logs, start, status, top
from dlx.node.cli.runs import (
    bond,
    campaign,
    compare,
    data,
    evaluate,
    evidence,
    history,
    pull,
    push,
    run,
    serve,
    verify,
    web,
)
from dlx.node.cli.setup import config, doctor, init, join, keys
from dlx.node.home import extras, sigbus

INTERRUPTED = 130  # as a shell says it
_OUTPUT = "standard output"

app = options.Verbs(
    name="dlx-node",
    help="A node of a decentralised training run whose every step is on a ledger.",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)

app.command("demo")(demo.command)
app.command("devnet")(devnet.command)
app.command("init")(init.command)
app.command("join")(join.command)
app.command("chain")(chain.command)
app.command("deploy")(chain.deploy)
app.add_typer(run.app, name="run")
app.add_typer(bond.app, name="bond")
app.add_typer(evidence.app, name="evidence")
app.add_typer(campaign.app, name="campaign")
app.add_typer(data.app, name="data")
app.add_typer(keys.app, name="keys")
app.command("start")(start.command)
app.command("doctor")(doctor.command)
app.command("rank")(start.rank)
app.command("pause")(start.pause)
app.command("resume")(start.resume)
app.add_typer(config.app, name="config")
app.command("status")(status.command)
app.command("top")(top.command)
app.command("peers")(status.peers)
app.command("logs")(logs.command)
app.command("history")(history.command)
app.command("audit")(audit.command)
app.command("audit-kit")(audit_kit.command)
app.command("watch")(watch.command)
app.command("prove")(prove.command)
app.command("web")(web.command)
app.command("pull")(pull.command)
app.command("push")(push.command)
app.command("verify")(verify.command)
app.command("serve")(serve.command)
app.command("evaluate")(evaluate.command)
app.command("compare")(compare.command)


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the `dlx-node` command. Always raises SystemExit, unless something unexpected happens."""
    # Before numpy is loaded: arithmetic has threads of its own, and a library's would wait for them, turning.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # that torch is missing, which no config needs
    sigbus.end_with_a_line()
    _standard_streams()
    try:
        with extras.explained():
            sys.exit(copy_context().run(app, arguments))  # what it was called with is of this call alone
    except SystemExit as ended:
        try:
            sys.stdout.flush()  # here, where it can be told that it is full
        except OSError as error:
            if not ended.code:
                _explain(error)
        raise
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BaseExceptionGroup as group:
        if group.split(KeyboardInterrupt)[1] is None:  # a second Ctrl-C, while the first was being followed
            sys.exit(INTERRUPTED)
        if not isinstance(group, ExceptionGroup):
            raise
        _explain(group)
    except Exception as raised:
        _explain(raised)


def _explain(raised: Exception) -> NoReturn:
    """One line and an exit code for what a user can understand; what is left is a bug and deserves its traceback."""
    error = cause(raised)
    if not isinstance(error, DlxError | OSError):
        raise raised
    line = in_words(error)
    if isinstance(error, OSError) and error.filename == _OUTPUT:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python itself writes to it as it ends
        if isinstance(error, BrokenPipeError):  # whoever read it has enough
            sys.exit(DlxError.exit_code)
    sys.stderr.write(f"dlx-node: {line}\n")
    sys.exit(getattr(error, "exit_code", DlxError.exit_code))


class _Output(io.FileIO):
    """Standard output. Its errors name it, as those of opened files name theirs."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            error.filename = _OUTPUT
            raise


def _standard_streams() -> None:
    """Those that are closed lead nowhere: neither nothing nor a file that is opened later stands in their place."""
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    out = sys.stdout
    if out is sys.__stdout__ and isinstance(out, io.TextIOWrapper):
        lines = out.line_buffering or out.write_through
        named = io.BufferedWriter(_Output(out.fileno(), "w", closefd=False))
        sys.stdout = io.TextIOWrapper(named, out.encoding, out.errors, line_buffering=lines)


def _print_version(asked: bool) -> None:
    if asked:
        from dlx.node import version

        sys.stdout.write(f"dlx-node {version()}\n")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Here `--version` is declared."""


if __name__ == "__main__":
    main()
