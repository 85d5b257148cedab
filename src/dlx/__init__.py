"""dlx: read, check and load what a decentralised training run made.

    import dlx

    ledger = dlx.connect("http://127.0.0.1:8545", "0xE0f57275d39294326A0a789228bC01B232CE9929")
    run = ledger.run("1548e9")
    run.history()               # rows for pandas.DataFrame: round, loss in nats per token, tokens, hashes
    run.accounts()              # who did what
    print(run.audit().verdict)  # ledger PASS, outer steps PASS, training: not checked
    run.pull("model")           # a folder that transformers loads
    model = run.load()          # the model itself

Every expected failure is a `DlxError`: its text says in one line what is wrong and what to do. `LedgerUnavailable` is
the one to try again after. All else in this package is the node's own, and may change with any version.
"""

import os.path

if not os.path.isdir(os.path.join(os.path.dirname(__file__), "node")):  # it is a link in a checkout
    raise ImportError(
        "src/dlx/node leads to no folder: this checkout has no symbolic links. Clone with "
        "`git clone -c core.symlinks=true` (on Windows inside WSL)."
    )

from dlx.api import Account, Ledger, Round, Run, connect
from dlx.ground.errors import DlxError
from dlx.ledger.errors import LedgerUnavailable
from dlx.node.audit.report import Check, Report

__all__ = ["Account", "Check", "DlxError", "Ledger", "LedgerUnavailable", "Report", "Round", "Run", "connect"]
