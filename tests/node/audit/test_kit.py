"""Audit kits: what the audit of a folder says without a node, a chain or a network, and what it says of one that was
altered."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dlx.ground.blobs import write_blob
from dlx.ledger.client import LedgerClient
from dlx.ledger.errors import LedgerError, RpcError
from dlx.ledger.proof.history import Pin
from dlx.node.audit.kit import EXAMPLE, Kit, make_kit
from dlx.node.audit.replay_choice import ReplayChoice
from dlx.node.audit.report import Report
from dlx.node.audit.request import AuditRequest
from dlx.node.audit.sources.places import Places
from dlx.node.home.errors import Failure, UsageFailure
from dlx.node.runs.find import config_of, genesis_of
from dlx.training.recipe.manifest import Lineage, canonical_bytes
from tests.history_builder import History
from tests.node.command import dlx

pytest_plugins = ["tests.history_builder"]

PASSED = "ledger PASS, outer steps PASS, training: not checked"


@pytest.fixture(scope="module")
def made(honest_history: History, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kit of an honest history. Read-only."""
    out = tmp_path_factory.mktemp("made") / "kit"
    request = AuditRequest(honest_history.run, Places(own=(honest_history.blobs,)))
    report = make_kit(honest_history.client(), request, out)
    assert str(report.verdict) == PASSED and report.exit_code == 0
    assert not list(out.parent.glob(".*"))
    return out


@pytest.fixture
def kit(made: Path, tmp_path: Path) -> Path:
    """A copy, to be altered."""
    return Path(shutil.copytree(made, tmp_path / "kit"))


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise AssertionError("the audit of a kit asks nobody")

    monkeypatch.setattr(socket.socket, "connect", refused)


def _altered(kit: Path, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
    """The chain's answers, each changed, or None to leave it out."""
    path = kit / "chain.jsonl"
    lines = [change(json.loads(line)) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines if line is not None))


def _failing(kit: Path) -> set[str]:
    report = Kit(kit).audit()
    assert report.exit_code == 1
    return {check.check for check in report.checks if check.verdict == "FAIL"}


@pytest.mark.usefixtures("offline")
def test_a_kit_says_offline_what_the_chain_and_the_peers_said(made: Path) -> None:
    report = Kit(made).audit()
    assert str(report.verdict) == PASSED and report.established
    rows = {row["check"]: row["PASS"] for row in report.json()["table"]}
    assert rows["seal"] == 6 and rows["replay"] == 6 and rows["bytecode"] == 6 and rows["chain node"] == 1
    assert report.source.startswith(f"proven to block {Kit(made).head.number} 0x")
    assert report.source.endswith("which the kit names: compare it, or give --head")
    assert "kit" not in Kit(made).audit(head=Kit(made).head).source


@pytest.mark.usefixtures("offline")
def test_the_kit_that_comes_with_the_program_passes_with_its_training() -> None:
    report = Kit(EXAMPLE).audit(ReplayChoice())
    assert report.established, f"make it anew (tests/vectors/example_kit.py): {report.text()}"
    assert report.training.replayed == report.training.honest == report.training.drawn >= 1
    assert sum(path.stat().st_size for path in EXAMPLE.rglob("*")) < 2_000_000


@pytest.mark.usefixtures("offline")
def test_the_command_audits_a_kit_by_its_folder_and_the_example(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert PASSED in dlx("audit", made).stdout
    monkeypatch.chdir(made.parent)
    assert PASSED in dlx("audit", "kit").stdout, "its name alone, which has no slash"
    said = json.loads(dlx("audit", "--example", "--json").stdout)
    assert said["verdict"] == {"ledger": "PASS", "outer_steps": "PASS", "training": "not checked"}


def test_the_command_says_what_is_wrong_with_what_it_is_given(made: Path, tmp_path: Path) -> None:
    def said(*words: object, code: int = 2) -> str:
        return dlx("audit", *words, code=code).stderr

    assert "is no audit kit: kit.json: No such file" in said(tmp_path / "nothing")
    assert "was made for level 2, `audit-kit --level 3` makes one" in said(made, "--level", 3)
    assert "the kit ends with block" in said(made, "--head", f"3:0x{'5c' * 32}")
    assert "a kit has its own blobs" in said(made, "--blobs", tmp_path)
    assert "leave out the run" in said(made, "--example")
    assert "--rpc-url: a kit has its own chain node" in said(made, "--rpc-url", "http://127.0.0.1:9")
    assert f"--ledger 0x{'11' * 20}: the kit is of 0x" in said(made, "--ledger", f"0x{'11' * 20}")
    assert "--chain-id 4242: the kit is of 31337" in said(made, "--chain-id", 4242)
    where = ("--ledger", Kit(made).domain.ledger, "--chain-id", 31337)
    assert PASSED in dlx("audit", made, "--head", Kit(made).head, *where).stdout


def test_a_folder_whose_name_is_a_runs_id_is_no_kit(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(made, tmp_path / "0x9afc55")
    monkeypatch.chdir(tmp_path)
    where = ("--rpc-url", "http://127.0.0.1:9", "--ledger", f"0x{'11' * 20}")
    assert "no answer from the chain node at 127.0.0.1:9" in dlx("audit", "0x9afc55", *where, code=3).stderr
    assert PASSED in dlx("audit", "./0x9afc55").stdout


def test_the_run_that_another_starts_from_is_proven_to_the_head_too(honest_history: History, tmp_path: Path) -> None:
    """It says that it starts from a version of an honest run, and does not. Whoever alters what the chain node said of
    that version has its hash right, and is found."""
    history, client = honest_history, honest_history.client()
    lineage = Lineage(client.domain.chain_id, client.domain.ledger, f"0x{history.run.hex()}", 3)
    child = msgspec.structs.replace(history.manifest, name="child", lineage=lineage)
    write_blob(history.blobs, [canonical_bytes(child)])
    creator = LedgerClient(history.rpc_url, history.ledger, next(iter(history.keys.values())))
    run = creator.create_run(config_of(child), child.name, genesis_of(child))
    kit = tmp_path / "kit"

    def details() -> list[str]:
        return [check.detail for check in Kit(kit).audit().checks if check.check == "lineage"]

    make_kit(client, AuditRequest(run, Places(own=(history.blobs,))), kit)
    assert "the first weights are not those of" in details()[0]

    def lied_about(line: dict[str, Any]) -> dict[str, Any]:
        if line["method"] == "eth_getLogs":
            for stage in range(2):
                for log in line["result"]:
                    log["data"] = log["data"].replace(history.versions[stage, 3].hex(), child.genesis[stage].sha256)
        return line

    _altered(kit, lied_about)
    assert "the chain node at kit told of another log" in details()[0]


def test_a_kit_with_an_altered_or_a_lost_blob_does_not_pass(kit: Path, honest_history: History) -> None:
    lost, altered = (kit / "blobs" / honest_history.payloads[0, round][0].hex() for round in (1, 2))
    before = lost.read_bytes()
    lost.unlink()
    report = Kit(kit).audit()
    assert (report.exit_code, report.verdict.outer_steps) == (4, "WARN")
    lost.write_bytes(before)
    data = bytearray(altered.read_bytes())
    data[len(data) // 2] ^= 1
    altered.write_bytes(data)
    report = Kit(kit).audit()
    assert (report.exit_code, report.verdict.outer_steps) == (1, "FAIL")


def test_a_kit_whose_answers_were_altered_does_not_pass(kit: Path) -> None:
    whole, run = (kit / "chain.jsonl").read_bytes(), f"0x{Kit(kit).run.hex()}"

    def own(line: dict[str, Any]) -> list[dict[str, Any]]:
        """The run's events, where the line has any."""
        return [log for log in line["result"] if run in log["topics"]] if line["method"] == "eth_getLogs" else []

    def without_its_last_event(line: dict[str, Any]) -> dict[str, Any]:
        for log in own(line)[-1:]:
            line["result"].remove(log)
        return line

    def with_another_event(line: dict[str, Any]) -> dict[str, Any]:
        for log in own(line)[-1:]:
            log["data"] = log["data"][:-1] + ("0" if log["data"][-1] != "0" else "1")
        return line

    def with_another_time(line: dict[str, Any]) -> dict[str, Any]:
        if line["method"] == "eth_getBlockByNumber":
            line["result"]["timestamp"] = hex(int(line["result"]["timestamp"], 16) + 1)
        return line

    def with_other_code(line: dict[str, Any]) -> dict[str, Any]:
        if line["method"] == "eth_getCode":
            line["result"] = line["result"][:-2] + "00"
        return line

    for change in (without_its_last_event, with_another_event, with_another_time, with_other_code):
        (kit / "chain.jsonl").write_bytes(whole)
        _altered(kit, change)
        try:
            assert _failing(kit) <= {"chain node", "bytecode"}, change.__name__
        except RpcError as missing:  # what was altered can lead to a block that nobody asked for when the kit was made
            assert "has no answer to this" in str(missing), change.__name__


def test_a_kit_of_another_block_than_it_names_does_not_pass(kit: Path) -> None:
    label = json.loads((kit / "kit.json").read_text())
    head = Kit(kit).head
    label["head"] = str(Pin(head.number, bytes([head.hash[0] ^ 1]) + head.hash[1:]))
    (kit / "kit.json").write_text(json.dumps(label))
    assert _failing(kit) == {"chain node"}


def test_a_folder_that_is_no_kit_is_refused_in_one_line(kit: Path) -> None:
    label = json.loads((kit / "kit.json").read_text())
    for wrong in (b"", b"[" * 20_000, b"\xff", msgspec.json.encode(label | {"format": 2}), b'{"format": 1}'):
        (kit / "kit.json").write_bytes(wrong)
        with pytest.raises(UsageFailure, match=r"is no audit kit of this version: kit\.json"):
            Kit(kit)
    (kit / "kit.json").write_bytes(msgspec.json.encode(label))
    (kit / "verdicts.json").write_bytes(b'[["0x", 1]]')
    with pytest.raises(Failure, match=r"verdicts\.json"):
        Kit(kit).audit()
    (kit / "verdicts.json").write_bytes(b"[]")
    (kit / "chain.jsonl").write_bytes(b'{"method": "eth_chainId"}\n')
    with pytest.raises(LedgerError, match="line 1 is no answer of a chain node"):
        Kit(kit).audit()
    (kit / "chain.jsonl").write_bytes(b"")
    said = dlx("audit", kit, code=3).stderr
    assert "chain.jsonl has no answer to this eth_chainId" in said


def test_a_kit_is_also_made_of_a_run_that_does_not_pass_and_shows_that(
    honest_history: History, tmp_path: Path, kit: Path
) -> None:
    """Nobody has its blobs."""
    (tmp_path / "none").mkdir()
    request = AuditRequest(honest_history.run, Places(own=(tmp_path / "none",)))
    made = make_kit(honest_history.client(), request, tmp_path / "bare")
    assert made.exit_code == 4 and made.verdict.ledger == "PASS"
    again: Report = Kit(tmp_path / "bare").audit()
    assert again.counts() == made.counts()
    with pytest.raises(UsageFailure, match="it is there already"):
        make_kit(honest_history.client(), request, kit)


def test_the_command_makes_a_kit(honest_history: History, tmp_path: Path) -> None:
    where = ("--rpc-url", honest_history.rpc_url, "--ledger", honest_history.ledger, "--blobs", honest_history.blobs)
    made = json.loads(dlx("audit-kit", honest_history.run.hex(), *where, "--out", tmp_path / "kit", "--json").stdout)
    assert made["verdict"]["outer_steps"] == "PASS" and made["size"] > 100_000
    assert str(Kit(tmp_path / "kit").head) == made["head"]
    wrong = f"3:0x{'5c' * 32}"
    for out, head, code, said in (
        ("kit", None, 2, "it is there already"),
        (".", None, 2, "it is there already"),
        ("none/kit", None, 2, "a folder cannot be made there: No such file or directory"),
        ("other", wrong, 3, "could not audit"),
    ):
        pin = () if head is None else ("--head", head)
        assert (
            said in dlx("audit-kit", honest_history.run.hex(), *where, "--out", tmp_path / out, *pin, code=code).stderr
        )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kit"]


def test_what_is_no_file_is_not_waited_for(kit: Path) -> None:
    for name, error in (("chain.jsonl", OSError), ("verdicts.json", OSError), ("kit.json", UsageFailure)):
        (kit / name).unlink()
        os.mkfifo(kit / name)
        with pytest.raises(error, match="is no regular file"):
            Kit(kit).audit()
        (kit / name).unlink()
        shutil.copyfile(EXAMPLE / name, kit / name)
