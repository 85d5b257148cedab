"""The lines that an audit of the page prints for a shell: its process is told how `dlx-node web` was called."""

from pathlib import Path
from typing import Any

import pytest

from dlx.ground import durable
from dlx.ledger.deployment import deploy, fund
from dlx.ledger.keys import account_of
from dlx.node.cli import listening
from dlx.node.home.program import for_others, program
from dlx.node.web.audits import runner
from tests.ledger.chain_support import serving
from tests.node.command import dlx, pasted
from tests.patience import until

KEY = b"\x09" * 32


def test_they_name_the_folder_for_who_is_here_and_the_ledger_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a run that is not on the ledger, whose audit says what lists those that are."""
    auditings, said = list[runner.Auditing](), list[str]()

    class Noted(runner.Auditing):
        def __init__(self, where: Any) -> None:
            super().__init__(where)
            auditings.append(self)

    def serve(found: Any, app: Any, line: str) -> None:
        auditing = auditings[-1]
        assert auditing.start(bytes(32), 2)
        ended = until("the end", lambda: one if (one := auditing.state(bytes(32))) and one.done else None)
        said.append(ended.error or "")

    monkeypatch.setattr(runner, "Auditing", Noted)
    monkeypatch.setenv("PATH", str(tmp_path))  # which has no dlx-node
    monkeypatch.setattr(listening, "serve_until_stopped", serve)
    folder, token = tmp_path / "my node", tmp_path / "token"
    durable.write_bytes(token, b"a token of some length\n", durable.SECRET)
    with serving(tmp_path / "chain") as chain:
        fund(chain.url, account_of(KEY))
        ledger = deploy(chain.url, KEY).ledger
        dlx("init", "--insecure-devnet", "--datadir", folder, "--rpc-url", chain.url, "--ledger", ledger)
        page = ["web", "--bind", "127.0.0.1:0", "--datadir", folder]
        named = ["--rpc-url", chain.url, "--ledger", ledger]
        for words in ([], named, ["--token-file", token]):
            dlx(*page, *words)
        here, with_ledger = map(pasted, said[:2])
        assert program() not in said[2], "other machines have it elsewhere"
        with for_others():
            elsewhere = pasted(said[2])
        assert here == ["run", "list", "--datadir", str(folder)]
        assert with_ledger == [*here, *named]
        assert elsewhere[:4] == ["run", "list", "--rpc-url", chain.url] and str(folder) not in elsewhere
        for line in (here, with_ledger, elsewhere):
            dlx(*line)
