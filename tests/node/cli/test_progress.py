"""Bars are for terminals: a log gets plain lines, and --json on a terminal none."""

import io
import json
import random
import sys
from pathlib import Path

import pytest

from dlx.node.cli.progress import Progress, of_bytes
from tests.history_builder import History
from tests.node.command import dlx

pytest_plugins = ["tests.history_builder"]


class Stderr(io.StringIO):
    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


@pytest.mark.parametrize(("terminal", "as_json"), [(True, False), (False, False), (True, True), (False, True)])
def test_only_a_person_at_a_terminal_sees_what_changes(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, as_json: bool
) -> None:
    monkeypatch.setattr(sys, "stderr", seen := Stderr(terminal))
    with Progress(as_json) as progress:
        progress.show("10%")
        progress.say("a source is missing")
        progress.show("20%")
    lines = seen.getvalue()
    if terminal and not as_json:
        assert "10%" in lines and lines.endswith("\r\x1b[2K"), "nothing of it stays"
    else:
        assert lines == "dlx-node: a source is missing\n"


@pytest.mark.parametrize(("as_json", "expected"), [(False, "dlx-node: 20%\n"), (True, "")])
def test_a_log_hears_of_what_lasts_now_and_then(monkeypatch: pytest.MonkeyPatch, as_json: bool, expected: str) -> None:
    monkeypatch.setattr(sys, "stderr", seen := Stderr(terminal=False))
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    with Progress(as_json) as progress:
        for now[0], line in (1.0, "10%"), (10.0, "20%"), (11.0, "30%"):
            progress.show(line)
    assert seen.getvalue() == expected


@pytest.mark.parametrize(("terminal", "as_json"), [(True, False), (False, False), (True, True)])
def test_bytes_are_a_bar_for_a_person(monkeypatch: pytest.MonkeyPatch, terminal: bool, as_json: bool) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", seen := Stderr(terminal))
    with of_bytes("preparing", as_json) as progress:
        progress(50, 100)
    assert ("preparing" in seen.getvalue()) == (terminal and not as_json)


def test_preparing_checking_pulling_and_auditing_leave_no_bar_in_a_log(honest_history: History, tmp_path: Path) -> None:
    words = random.Random(1).choices("abcdefgh ", k=100_000)
    (tmp_path / "text.txt").write_text("".join(words))  # no part of it is like another
    chain = ["--rpc-url", honest_history.rpc_url, "--ledger", honest_history.ledger, "--datadir", tmp_path / "node"]
    dlx("init", "--datadir", tmp_path / "node", "--insecure-devnet")
    blobs = ["--blobs", honest_history.blobs, honest_history.run.hex()]
    done = [
        dlx("data", "prepare", "--source", tmp_path / "text.txt", "--out", tmp_path / "data", "--json"),
        dlx("data", "check", tmp_path / "data", "--json"),
        dlx("pull", "--out", tmp_path / "model", *blobs, *chain, "--json"),
        dlx("audit", *blobs, *chain, "--json"),
    ]
    for one in done:
        assert "\r" not in one.stderr and "\x1b" not in one.stderr and "#" not in one.stderr
        json.loads(one.stdout)
