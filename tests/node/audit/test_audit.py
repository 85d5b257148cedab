"""The audit against a real history, and against one thing wrong with it at a time."""

from __future__ import annotations

import json
import os
import shutil
import stat
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import eth_abi
import msgspec
import numpy as np
import pytest
import requests
import trio

from dlx import contracts
from dlx.ground.blobs import BlobStore, Kind, write_blob
from dlx.ground.constants import UNIT
from dlx.ground.merkle import file_root
from dlx.ledger.abi import static_fields
from dlx.ledger.bindings import Interface
from dlx.ledger.client import LedgerClient
from dlx.ledger.events import Convicted, RunCreated, Sealed, event_topic
from dlx.ledger.parts import parts_of
from dlx.ledger.typed import (
    CONTRIBUTION_SIZE,
    FALSE,
    PRIVATE_DATA,
    STATE_RESET,
    Contribution,
    Outcome,
    RunConfig,
    Signs,
    Verdict,
    conviction_entries,
)
from dlx.ledger.typed import Plan as LedgerPlan
from dlx.ledger.view.weights import FULL
from dlx.node.audit.manifest import audit_data
from dlx.node.audit.report import Check, Report, Training
from dlx.node.audit.request import AuditRequest
from dlx.node.audit.run import audit_from
from dlx.node.audit.sources.blobs import Blobs, Folder
from dlx.node.daemon.data.retention import Retention
from dlx.node.daemon.stage.open_stage import OpenStage
from dlx.node.daemon.stage.payloads import Payloads
from dlx.node.home.errors import Failure
from dlx.node.round.rules import stopping
from dlx.node.round.rules.plans import Terms
from dlx.node.runs.find import horizon_of, replayed
from dlx.node.runs.history import history as summary
from dlx.p2p.exchange import BlobNotFound
from dlx.training.data.shards import DataManifest, Shard, canonical_bytes, parse_data_manifest
from dlx.training.inner.states import unused
from dlx.training.models import weights
from dlx.training.models.stages import stage_shapes
from dlx.training.recipe.recipe import Adaptive, BlobRef, Codec, Evaluation, Outer, Plan, Stop
from tests.blob_folders import copied, flip
from tests.history_builder import History, Mischief, Network
from tests.node.daemon.contexts import make_context
from tests.patience import PATIENCE

pytest_plugins = ["tests.history_builder"]


@pytest.fixture
def run_audit(tmp_path: Path) -> Callable[..., Report]:
    """`run_audit(history, own=[...], peers=[...], client=None)`: folders of the auditor and of others."""

    def go(
        history: History,
        own: list[Path] | None = None,
        peers: list[Path] | None = None,
        client: LedgerClient | None = None,
    ) -> Report:
        sources = [Folder(path, own=True) for path in own or []] + [Folder(path, own=False) for path in peers or []]
        work = tmp_path / "work"
        work.mkdir()
        report = audit_from(sources, work, client or history.client(), AuditRequest(history.run))
        # Disk stays bounded: the newest version of each stage with its momentum, and the manifest.
        assert len(list(work.iterdir())) <= 2 * 2 + 1
        json.dumps(report.json())
        assert report.text().endswith(f"verdict: {report.verdict}")
        return report

    return go


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Check]:
    """Every check that audits make, also those that pass."""
    found: list[Check] = []
    add = Report.add

    def note(self: Report, level: int, check: str, verdict: Any, detail: str = "", **where: Any) -> None:
        digest = where.get("hash")
        found.append(
            Check(level, check, verdict, where.get("round"), where.get("stage"), digest and digest.hex(), detail)
        )
        add(self, level, check, verdict, detail, **where)

    monkeypatch.setattr(Report, "add", note)
    return found


def test_an_honest_history_passes_every_check(
    honest_history: History, folder: Path, run_audit: Callable[..., Report], made: list[Check]
) -> None:
    report = run_audit(honest_history, own=[folder])
    assert _words(report) == "PASS", report.text()
    assert {check.check for check in made} == {
        *("bytecode", "run id", "events", "seal", "quorum", "contributions", "stored digest", "completeness"),
        *(
            "manifest",
            "genesis",
            "repeated payload",
            "data manifest",
            "data",
            "base and plan",
            "continuity",
            "terms",
            "payload",
            "displacement",
            "loss",
            "replay",
            "trace",
            "agreements",
            "resets",
        ),
    }
    replayed = {(c.stage, c.round, c.hash) for c in made if c.check == "replay"}
    assert replayed == {(s, t - 1, h.hex()) for (s, t), h in honest_history.versions.items() if t}
    assert report.facts["state"] == "complete"
    assert any("level 3" in line for line in report.not_established)


def test_versions_need_not_be_stored(honest_history: History, folder: Path, run_audit: Callable[..., Report]) -> None:
    for (_, version), digest in honest_history.versions.items():
        if version:
            (folder / digest.hex()).unlink()
    assert _words(run_audit(honest_history, own=[folder])) == "PASS"


def test_an_empty_round_and_other_outer_rules_pass(
    history_network: Network, tmp_path: Path, run_audit: Callable[..., Report]
) -> None:
    history = history_network.run("plain", outer=Outer(), empty={(1, 1)})
    assert history.versions[1, 1] == history.versions[1, 2] != history.versions[1, 3]
    report = run_audit(history, own=[copied(history, tmp_path / "blobs")])
    assert _words(report) == "PASS", report.text()


# Level 2: blobs.


def test_a_payload_changed_in_the_auditors_folder_fails(
    honest_history: History, folder: Path, run_audit: Callable[..., Report], made: list[Check]
) -> None:
    digest = honest_history.payloads[1, 1][0]
    flip(folder, digest)
    report = run_audit(honest_history, own=[folder])
    assert _failures(report) == {("own blobs", None, None, digest.hex())}
    assert [(c.check, c.round, c.stage) for c in report.checks if c.verdict == "WARN"] == [("payload", 1, 1)]
    # The replay goes on from the next stored version.
    replay = {(c.stage, c.round): c.verdict for c in made if c.check == "replay"}
    assert replay[1, 1] == "SKIP" and replay[1, 2] == "PASS" and replay[0, 1] == "PASS"


def test_wrong_bytes_from_all_peers_are_a_payload_that_is_gone(
    honest_history: History, folder: Path, tmp_path: Path, run_audit: Callable[..., Report]
) -> None:
    other = copied(honest_history, tmp_path / "other")
    digest = honest_history.payloads[0, 2][1]
    for copy in (folder, other):
        flip(copy, digest)
    report = run_audit(honest_history, peers=[folder, other])
    (gone,) = [c for c in report.checks if c.verdict == "WARN"]
    assert not report.failed and (gone.check, gone.round, gone.stage, gone.hash) == ("payload", 2, 0, digest.hex())
    assert str(folder) in gone.detail and str(other) in gone.detail


def test_wrong_bytes_from_one_peer_never_fail_while_a_good_copy_exists(
    honest_history: History, folder: Path, tmp_path: Path, run_audit: Callable[..., Report]
) -> None:
    bad = copied(honest_history, tmp_path / "bad")
    digest = honest_history.payloads[0, 0][0]
    flip(bad, digest)
    report = run_audit(honest_history, peers=[bad, folder])
    assert _words(report) == "PASS"
    assert any(digest.hex() in note and str(bad) in note for note in report.notes)


def test_a_wrong_blob_in_the_auditors_folder_fails_even_when_another_folder_has_it_right(
    honest_history: History, folder: Path, tmp_path: Path, run_audit: Callable[..., Report]
) -> None:
    bad = copied(honest_history, tmp_path / "bad")
    digest = honest_history.payloads[0, 0][0]
    flip(bad, digest)
    report = run_audit(honest_history, own=[folder, bad])
    assert _failures(report) == {("own blobs", None, None, digest.hex())}


@pytest.mark.parametrize("blob", ["manifest", "genesis", "statement"])
def test_whatever_peers_give_nothing_fails(
    honest_history: History, folder: Path, run_audit: Callable[..., Report], blob: str
) -> None:
    digest = {
        "manifest": honest_history.client().read("runConfig", honest_history.run)[0][0],
        "genesis": honest_history.versions[0, 0],
        "statement": honest_history.statements[0, 1][0],
    }[blob]
    flip(folder, digest)
    report = run_audit(honest_history, peers=[folder])
    assert _words(report) == "WARN"
    assert digest.hex() in {c.hash for c in report.checks if c.verdict == "WARN"}


def test_a_run_registered_under_another_name_than_its_manifests_fails(
    honest_history: History, folder: Path, run_audit: Callable[..., Report]
) -> None:
    kinds = [f"({','.join(_CONFIG)})", "string", "bytes32[]", "address[]"]

    def renamed(log: dict[str, Any]) -> dict[str, Any]:
        if bytes.fromhex(log["topics"][0][2:]) != event_topic(RunCreated):
            return log
        config, _, *others = eth_abi.decode(kinds, bytes.fromhex(log["data"][2:]))
        return log | {"data": "0x" + eth_abi.encode(kinds, [config, "famous-model", *others]).hex()}

    with _doctored(honest_history, renamed) as client:
        report = run_audit(honest_history, own=[folder], client=client)
    (failed,) = [c for c in report.checks if c.verdict == "FAIL"]
    assert failed.check == "manifest"
    assert failed.detail == f"the ledger says otherwise: name is {honest_history.manifest.name}, there famous-model"


def test_a_missing_payload_is_a_warning_that_names_it(
    honest_history: History, folder: Path, run_audit: Callable[..., Report], made: list[Check]
) -> None:
    digest = honest_history.payloads[1, 0][0]
    (folder / digest.hex()).unlink()
    report = run_audit(honest_history, own=[folder])
    assert _words(report) == "WARN"
    (gone,) = [c for c in report.checks if c.verdict == "WARN"]
    assert (gone.check, gone.stage, gone.round, gone.hash) == ("payload", 1, 0, digest.hex())
    (restart,) = [c for c in made if c.check == "stored version"]
    assert (restart.stage, restart.hash) == (1, honest_history.versions[1, 1].hex())
    replay = {(c.stage, c.round): c.verdict for c in made if c.check == "replay"}
    assert [replay[1, t] for t in range(3)] == ["SKIP", "PASS", "PASS"]
    assert any("round 0" in line and "stage 1" in line for line in report.not_established)


def test_without_a_stored_version_the_rest_is_skipped(
    honest_history: History, folder: Path, run_audit: Callable[..., Report], made: list[Check]
) -> None:
    (folder / honest_history.payloads[1, 0][0].hex()).unlink()
    for version in (1, 2):
        (folder / honest_history.versions[1, version].hex()).unlink()
    report = run_audit(honest_history, own=[folder])
    assert _words(report) == "WARN"
    replay = {(c.stage, c.round): c.verdict for c in made if c.check == "replay"}
    assert replay == {(0, t): "PASS" for t in range(3)} | {(1, t): "SKIP" for t in range(3)}


def test_without_the_manifest_nothing_is_replayed(
    honest_history: History, folder: Path, run_audit: Callable[..., Report], made: list[Check]
) -> None:
    digest = honest_history.client().read("runConfig", honest_history.run)[0][0]
    (folder / digest.hex()).unlink()
    run_audit(honest_history, own=[folder])
    assert {c.verdict for c in made if c.level == 2} == {"WARN", "SKIP"}


# Folders that hold something else than blobs.


@pytest.mark.parametrize("kind", ["fifo", "socket", "device", "directory", "loop", "huge"])
@pytest.mark.parametrize("own", [True, False])
def test_what_is_no_file_holds_nothing_up(
    honest_history: History, folder: Path, tmp_path: Path, run_audit: Callable[..., Report], kind: str, own: bool
) -> None:
    digest = honest_history.payloads[1, 1][0]
    path = folder / digest.hex()
    good = copied(honest_history, tmp_path / "good")
    path.unlink()
    _put_in_place(path, kind)
    report = run_audit(honest_history, **({"own": [folder], "peers": [good]} if own else {"peers": [folder, good]}))
    lines = [(c.check, c.verdict) for c in report.checks]
    fails = own and kind == "huge"
    assert lines == ([("own blobs", "FAIL")] if fails else []), "a good copy came from elsewhere"
    said = report.checks[0].detail if fails else report.notes[0]
    assert str(path) in said and ("it was not read" if kind == "huge" else "cannot be read") in said


def test_what_cannot_be_read_is_not_called_wrong_bytes(
    honest_history: History, folder: Path, run_audit: Callable[..., Report]
) -> None:
    path = folder / honest_history.payloads[0, 0][0].hex()
    path.unlink()
    os.mkfifo(path)
    report = run_audit(honest_history, own=[folder], peers=[])
    (gone,) = [check.detail for check in report.checks if check.check == "payload"]
    assert gone.endswith("is gone: no source has it"), report.text()


def _put_in_place(path: Path, kind: str) -> None:
    match kind:
        case "fifo":
            os.mkfifo(path)
        case "socket":
            os.mknod(path, stat.S_IFSOCK)
        case "device":
            path.symlink_to("/dev/zero")
        case "directory":
            path.mkdir()
        case "loop":
            path.symlink_to(path.name)
        case "huge":
            with path.open("wb") as file:
                file.truncate(1 << 42)


def test_a_folder_is_never_listed(
    honest_history: History, folder: Path, run_audit: Callable[..., Report], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("a folder of a million entries takes minutes to list")

    for name in ("listdir", "scandir"):
        monkeypatch.setattr(os, name, refuse)
    sources, work = [Folder(folder, own=True)], folder.parent / "work"
    work.mkdir()
    assert _words(audit_from(sources, work, honest_history.client(), AuditRequest(honest_history.run))) == "PASS"


# The data.


def test_data_that_is_gone_or_wrong_is_named(
    honest_history: History, folder: Path, tmp_path: Path, run_audit: Callable[..., Report]
) -> None:
    data = honest_history.manifest.data.manifest.sha256
    shard = parse_data_manifest((folder / data).read_bytes()).train[0].sha256
    (folder / shard).unlink()
    report = run_audit(honest_history, own=[folder])
    assert [(c.check, c.verdict, c.hash) for c in report.checks] == [("data", "WARN", shard)]
    (folder / data).unlink()
    shutil.rmtree(tmp_path / "work")
    report = run_audit(honest_history, own=[folder])
    assert [(c.check, c.verdict) for c in report.checks] == [("data manifest", "WARN"), ("data", "SKIP")]


@pytest.mark.parametrize(
    ("change", "check", "why"),
    [
        ({"vocab_size": 300}, "data", "holds token 300, which is not below vocab_size (300)"),
        ({"vocab_size": 70_000, "dtype": "uint16"}, "data manifest", "expected dtype uint32"),
        ({"vocab_size": 65_000}, "data manifest", "its tokens are below 65000, the model knows 256"),
        ({}, "data manifest", "it has "),
    ],
)
def test_data_that_contradicts_its_manifest_fails(
    honest_history: History, tmp_path: Path, change: dict[str, Any], check: str, why: str
) -> None:
    ids = np.array([1, 2, 300, 4], np.uint16).tobytes()
    shard = Shard(write_blob(tmp_path, [ids]).hex(), len(ids), 4, "cd" * 32)
    tokenizer = BlobRef(write_blob(tmp_path, [b"{}"]).hex(), 2)
    made = DataManifest(train=[shard], heldout=[], tokenizer=tokenizer, vocab_size=400, separator=0, dtype="uint16")
    content = canonical_bytes(msgspec.structs.replace(made, **change))
    named = BlobRef(write_blob(tmp_path, [content]).hex(), len(content) + (not change))
    honest = honest_history.manifest
    manifest = msgspec.structs.replace(honest, data=msgspec.structs.replace(honest.data, manifest=named))
    (tmp_path / "work").mkdir()
    report = Report(bytes(32))
    audit_data(report, manifest, Blobs([Folder(tmp_path, True)], tmp_path / "work"), lambda line: None)
    failed = [c for c in report.checks if c.check == check and c.verdict == "FAIL"]
    assert len(failed) == 1 and why in failed[0].detail


# What a colluding quorum can make the chain accept.


def test_a_sealed_hash_that_the_payloads_do_not_give_fails(
    honest_history: History,
    history_network: Network,
    tmp_path: Path,
    run_audit: Callable[..., Report],
    made: list[Check],
) -> None:
    honest: dict[str, bytes] = {}

    def shift(stage: int, round: int, made: Outcome) -> Outcome:
        if (stage, round) != (0, 1):
            return made
        honest["hash"] = made.weights
        name = _nudged(history_network.blobs, stage_shapes(honest_history.manifest, 0), made.weights)
        return replace(made, weights=name, weights_root=file_root(history_network.blobs / name.hex()))

    collusion = history_network.run("collusion", Mischief(outcome=shift))
    report = run_audit(collusion, own=[copied(collusion, tmp_path / "blobs")])
    sealed = collusion.versions[0, 2].hex()
    assert _failures(report) == {("replay", 1, 0, sealed)}
    (failure,) = [c for c in report.checks if c.verdict == "FAIL"]
    assert honest["hash"].hex() in failure.detail and sealed in failure.detail
    assert f"dlx-node prove 0x{collusion.run.hex()} --round 1 --stage 0" in failure.detail
    # What was built on the wrong version is judged from it.
    assert [c.verdict for c in made if c.check == "replay" and (c.stage, c.round) == (0, 2)] == ["PASS"]


@pytest.mark.parametrize("field", ["weights_root", "momentum_root", "momentum"])
def test_what_a_seal_says_beside_the_weights_is_recomputed_too(
    history_network: Network, tmp_path: Path, run_audit: Callable[..., Report], field: str
) -> None:
    def lie(stage: int, round: int, made: Outcome) -> Outcome:
        return replace(made, **{field: b"L" * 32}) if (stage, round) == (1, 2) else made

    history = history_network.run(f"other-{field}".replace("_", "-"), Mischief(outcome=lie))
    report = run_audit(history, own=[copied(history, tmp_path / "blobs")])
    (failure,) = [c for c in report.checks if c.verdict == "FAIL"]
    assert (failure.check, failure.stage, failure.round) == ("replay", 1, 2)
    assert field.split("_")[0] in failure.detail and (b"L" * 32).hex() in failure.detail


@pytest.mark.parametrize(("field", "value"), [("payload_root", b"R" * 32), ("payload_size", 1)])
def test_a_statement_that_says_another_payload_fails(
    history_network: Network,
    tmp_path: Path,
    run_audit: Callable[..., Report],
    field: str,
    value: Any,
    made: list[Check],
) -> None:
    def lie(one: Contribution) -> Contribution:
        return replace(one, **{field: value}) if (one.stage, one.round, one.replica) == (0, 1, 1) else one

    history = history_network.run(f"another-{field}".replace("_", "-"), Mischief(statement=lie))
    report = run_audit(history, own=[copied(history, tmp_path / "blobs")])
    assert _failures(report) == {("payload", 1, 0, history.payloads[0, 1][1].hex())}
    replay = {(c.stage, c.round): c.verdict for c in made if c.check == "replay"}
    assert set(replay.values()) == {"PASS"}, "what the payloads give is known all the same"


def test_a_statement_that_is_gone_is_a_warning_and_its_round_is_not_replayed(
    honest_history: History, folder: Path, run_audit: Callable[..., Report], made: list[Check]
) -> None:
    digest = honest_history.statements[1, 1][0]
    (folder / digest.hex()).unlink()
    report = run_audit(honest_history, own=[folder])
    assert _words(report) == "WARN"
    gone, later = [c for c in report.checks if c.verdict == "WARN"]
    assert (gone.check, gone.stage, gone.round, gone.hash) == ("base and plan", 1, 1, digest.hex())
    assert (later.check, later.round) == ("continuity", 2) and digest.hex() in later.detail
    skipped = {(c.check, c.stage, c.round) for c in report.checks if c.verdict == "SKIP"}
    assert skipped == {(check, 1, 1) for check in ("repeated payload", "payload", "replay")}, (
        "nobody can name the payload"
    )
    replay = {(c.stage, c.round): c.verdict for c in made if c.check == "replay"}
    assert replay[1, 2] == "PASS", "from the stored version"
    assert any("stated of its contribution to round 1" in line for line in report.not_established)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"plan": b"P" * 32}, "another plan than"),
        ({"segments": 7}, "commits to 7 segments"),
        ({"flags": PRIVATE_DATA}, "private data"),
        ({"base_weights": b"B" * 32}, "starts from 4242"),
        ({"account": "0x" + 40 * "1"}, "names 0x1111111111111111111111111111111111111111 as its account"),
    ],
)
def test_a_statement_that_its_plan_does_not_give_fails(
    history_network: Network, tmp_path: Path, run_audit: Callable[..., Report], changes: dict[str, Any], why: str
) -> None:
    def lie(statement: Contribution) -> Contribution:
        return replace(statement, **changes) if (statement.stage, statement.round) == (1, 0) else statement

    history = history_network.run(f"states-{min(changes)}", Mischief(statement=lie))
    report = run_audit(history, own=[copied(history, tmp_path / "blobs")])
    failures = [c for c in report.checks if c.verdict == "FAIL" and c.check not in ("continuity", "agreements")]
    assert {(c.check, c.stage, c.round) for c in failures} == {("base and plan", 1, 0)}
    assert all(why in c.detail for c in failures)


def test_payloads_that_come_twice_are_named(
    history_network: Network, tmp_path: Path, run_audit: Callable[..., Report]
) -> None:
    payloads: dict[tuple[int, int, int], Contribution] = {}
    repeated = {(0, 1, 1): (0, 1, 0), (1, 2, 0): (1, 1, 1), (1, 2, 1): (1, 0, 1)}  # a mate's, its stale one, its own

    def copy(one: Contribution) -> Contribution:
        at = one.stage, one.round, one.replica
        if at in repeated:
            other = payloads[repeated[at]]
            one = replace(one, payload=other.payload, payload_size=other.payload_size, payload_root=other.payload_root)
        payloads[at] = one
        return one

    history = history_network.run("copies", Mischief(statement=copy))
    report = run_audit(history, own=[copied(history, tmp_path / "blobs")])
    found = {(c.stage, c.round): c.detail for c in report.checks if c.check == "repeated payload"}
    assert not report.failed and report.verdict.outer_steps == "WARN" and set(found) == {(0, 1), (1, 2)}
    accounts = {slot: account for account, slot in history.slots.items()}
    assert found[0, 1] == (
        f"two accounts, one payload: {accounts[1, 0]} was counted with that of {accounts[0, 0]} in round 1"
    )
    stale = [c.detail for c in report.checks if (c.check, c.stage) == ("repeated payload", 1)]
    assert stale[0].startswith("two accounts, one payload: ") and stale[1].startswith("one payload, two rounds: ")


JUNK = b"J" * 32


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"previous": JUNK}, f"names {JUNK.hex()} as its previous contribution"),
        ({"previous": bytes(32)}, "names no previous contribution, but one to round 0 was counted"),
        ({"start_payload": JUNK}, f"has {JUNK.hex()} in its start"),
        ({"start_payload": bytes(32)}, "has no payload in its start"),
        ({"weights_before": JUNK}, f"starts from the weights {JUNK.hex()}"),
        ({"folded_payload": JUNK}, f"folds back {JUNK.hex()}"),
        ({"folded_payload2": JUNK}, f"folds back no payload and {JUNK.hex()}"),
        ({"optimiser_before": JUNK}, f"begins with the optimiser state {JUNK.hex()}"),
        ({"change_before": JUNK}, f"begins with the change {JUNK.hex()}"),
        ({"payload_before": JUNK}, f"begins with the payload {JUNK.hex()}"),
        ({"flags": STATE_RESET}, "begins with the change"),
        ({"flags": 64}, "has the flags 64"),
    ],
)
def test_a_statement_that_does_not_follow_from_the_one_before_fails(
    history_network: Network, tmp_path: Path, run_audit: Callable[..., Report], changes: dict[str, Any], why: str
) -> None:
    def lie(one: Contribution) -> Contribution:
        return replace(one, **changes) if (one.stage, one.round, one.replica) == (1, 1, 0) else one

    name = f"follows-{min(changes)}-{len(why)}".replace("_", "-")
    history = history_network.run(name, Mischief(statement=lie))
    report = run_audit(history, own=[copied(history, tmp_path / "blobs")])
    assert _failures(report) == {("continuity", 1, 1, history.statements[1, 1][0].hex())}
    (failure,) = [c for c in report.checks if c.verdict == "FAIL"]
    assert why in failure.detail


@pytest.mark.parametrize("field", ["optimiser_before", "change_before", "payload_before", "weights_before", "previous"])
def test_a_first_statement_that_does_not_begin_with_nothing_fails(
    history_network: Network, tmp_path: Path, run_audit: Callable[..., Report], field: str
) -> None:
    def lie(one: Contribution) -> Contribution:
        return replace(one, **{field: JUNK}) if (one.stage, one.round, one.replica) == (0, 0, 1) else one

    history = history_network.run(f"begins-{field}".replace("_", "-"), Mischief(statement=lie))
    report = run_audit(history, own=[copied(history, tmp_path / "blobs")])
    assert _failures(report) == {("continuity", 0, 0, history.statements[0, 0][1].hex())}


def test_a_start_that_has_a_residual_in_it_is_left_to_level_3_and_the_report_says_so(
    history_network: Network, tmp_path: Path, run_audit: Callable[..., Report]
) -> None:
    """But for a first contribution, which has none."""

    def hidden(one: Contribution) -> Contribution:
        first_lies = (one.stage, one.round, one.replica) == (0, 0, 1)
        return replace(one, weights_before=JUNK) if one.round or first_lies else one

    outer = Outer(lr=0.7, ahead=0.5, policy="mean")
    history = history_network.run("ahead", Mischief(statement=hidden), outer)
    report = run_audit(history, own=[copied(history, tmp_path / "blobs")])
    assert _failures(report) == {("continuity", 0, 0, history.statements[0, 0][1].hex())}
    assert [one for one in report.not_established if "rounds that start ahead" in one]


def test_a_state_that_was_lost_begins_with_nothing_and_says_so(
    history_network: Network, tmp_path: Path, run_audit: Callable[..., Report]
) -> None:
    """Whoever lost its data folder, its slashing protection too, goes on from zeros."""
    zeros = {stage: unused(history_network.run("to-measure").manifest, stage) for stage in range(2)}

    def lost(one: Contribution) -> Contribution:
        if one.round != 1:
            return one
        nothing = dict(
            flags=STATE_RESET, start_payload=bytes(32), weights_before=one.base_weights,
            optimiser_before=zeros[one.stage], change_before=bytes(32), payload_before=bytes(32),
        )  # fmt: skip
        return replace(one, **nothing, previous=one.previous if one.replica else bytes(32))

    history = history_network.run("lost", Mischief(statement=lost))
    report = run_audit(history, own=[copied(history, tmp_path / "blobs")])
    assert _words(report) == "PASS", report.text()


@pytest.mark.parametrize("withheld", [False, True])
def test_a_contribution_that_was_left_out_is_looked_back_on_when_its_maker_is_long_gone(
    history_network: Network, tmp_path: Path, run_audit: Callable[..., Report], withheld: bool
) -> None:
    """A newcomer's first one came late: the next two were counted, and both are judged by it. Members have it from its
    maker once a seal counts what follows it, so the audit establishes the run."""
    history = history_network.run(f"left-out-{withheld}", left_out=[(0, 0, 1)])
    folder = copied(history, tmp_path / "blobs")
    second = Contribution.decode((folder / history.statements[0, 1][1].hex()).read_bytes())
    (folder / second.previous.hex()).unlink()
    _have_what_seals_name(history, folder, withheld=[second.previous] if withheld else [])
    _evict(history, folder)
    report = run_audit(history, own=[folder])
    gone = [(c.verdict, c.check, c.stage, c.round) for c in report.checks if second.previous.hex() in c.detail]
    assert gone == ([("WARN", "continuity", 0, 1), ("WARN", "continuity", 0, 2)] if withheld else [])
    assert report.established is not withheld and report.exit_code == (4 if withheld else 0), report.text()


def _have_what_seals_name(history: History, folder: Path, withheld: Collection[bytes]) -> None:
    """What a member of each stage asks the makers for, seal by seal; they have all but what they withhold."""
    store, view, terms = BlobStore(folder), history.view(), Terms.of(history.manifest)

    async def fetch(name: bytes, limit: int, *_: Any, **__: Any) -> Path:
        if not store.has(name):
            if name in withheld:
                raise BlobNotFound("nobody has it")
            store.put((history.blobs / name.hex()).read_bytes())
        return store.path(name)

    context = make_context(exchange=SimpleNamespace(fetch=fetch), blobs=store)
    nothing: Any = None
    for (stage, _), sealed in view.sealed.items():
        payloads = Payloads(OpenStage(context, terms, stage, nothing, nothing))  # type: ignore[arg-type]
        trio.run(payloads.have_statements, sealed)
    store.close()


def _evict(history: History, folder: Path) -> None:
    """What all members of the run's stages come to keep together, without what they keep of their own."""
    store, view = BlobStore(folder), history.view()
    for name in store.hashes():
        data = store.path(name).read_bytes()
        if len(data) == CONTRIBUTION_SIZE and (one := Contribution.decode(data)).run == history.run:
            for blob in (name, one.payload, one.trace):
                store.note(blob, Kind.PAYLOAD)
    for stage in range(view.config.stages):
        terms = Terms.of(history.manifest)
        Retention(store, history.manifest.retention, terms, history.run, stage).keep(view, view.next_round(stage), ())
    store.evict(Kind.PAYLOAD)
    store.close()


def test_multipliers_that_the_norms_do_not_give_fail(
    history_network: Network, tmp_path: Path, run_audit: Callable[..., Report], made: list[Check]
) -> None:
    def lighter(stage: int, round: int, honest: tuple[int, ...]) -> tuple[int, ...]:
        return (honest[0], honest[1] - 1) if (stage, round) == (1, 2) else honest

    clipped = Outer(policy="clip")
    history = history_network.run("weighed", Mischief(multipliers=lighter), outer=clipped)
    report = run_audit(history, own=[copied(history, tmp_path / "blobs")])
    (failure,) = [c for c in report.checks if c.verdict == "FAIL"]
    assert (failure.check, failure.stage, failure.round) == ("multipliers", 1, 2)
    assert "its norm a step gives" in failure.detail
    verdicts = Counter(c.verdict for c in made if c.check == "multipliers")
    assert verdicts == {"PASS": 5, "FAIL": 1}
    (tmp_path / "blobs" / history.payloads[0, 1][0].hex()).unlink()
    shutil.rmtree(tmp_path / "work")
    report = run_audit(history, own=[tmp_path / "blobs"])
    assert [(c.stage, c.round) for c in made if (c.check, c.verdict) == ("multipliers", "SKIP")] == [(0, 1)]


def test_a_seal_that_counts_more_than_a_trial_in_a_replicas_first_round_fails(
    history_network: Network, tmp_path: Path, run_audit: Callable[..., Report]
) -> None:
    hasty = Mischief(statement=lambda one: replace(one, inner_steps=3) if (one.round, one.replica) == (0, 1) else one)
    history = history_network.run("hasty", hasty, outer=Outer(delay=0))
    report = run_audit(history, own=[copied(history, tmp_path / "blobs")])
    failed = {(c, t, s) for c, t, s, _ in _failures(report)}
    assert failed == {(check, 0, stage) for check in ("terms", "base and plan") for stage in range(2)}
    (detail,) = {c.detail for c in report.checks if c.check == "terms"}
    assert detail == "counts 3 inner steps of replica 1, its plan allows 1 to 2"


def test_a_contribution_far_beyond_the_others_and_a_loss_that_jumps_are_named(
    history_network: Network, tmp_path: Path, run_audit: Callable[..., Report], made: list[Check]
) -> None:
    """Nothing is false where the policy is `mean`, which has no bound; and one member has ruined the model."""
    worse = Mischief(
        size=lambda round, replica, honest: 1000 * honest if (round, replica) == (1, 0) else honest,
        statement=lambda one: replace(one, loss=one.loss + 3_000_000) if one.round == 2 else one,
    )
    history = history_network.run("far", worse)
    report = run_audit(history, own=[copied(history, tmp_path / "blobs")])
    assert [(c.check, c.verdict, c.round, c.stage) for c in report.checks] == [
        *(("displacement", "WARN", 1, stage) for stage in (0, 1)),
        ("loss", "WARN", 2, 1),
    ]
    far = next(account for account, slot in history.slots.items() if slot == (0, 0))
    assert report.checks[0].detail.startswith(f"contribution of {far}: it moved the model 1.")
    assert report.checks[0].detail.endswith("e+03 times as far a step as the round's measure")
    assert Counter(c.verdict for c in made if c.check == "displacement") == {"PASS": 4, "WARN": 2}
    assert report.facts["displacement"].endswith("a step (round 1, stage 0)") and report.exit_code == 4
    assert report.checks[-1].detail == "the stated loss rose to 7.900, from 5.200"


def test_multipliers_where_the_run_has_no_policy_fail(
    history_network: Network, tmp_path: Path, run_audit: Callable[..., Report]
) -> None:
    history = history_network.run("halved", Mischief(multipliers=lambda s, t, honest: (UNIT, UNIT // 2)))
    report = run_audit(history, own=[copied(history, tmp_path / "blobs")])
    assert {(c, t, s) for c, t, s, _ in _failures(report)} == {("terms", t, s) for t in range(3) for s in range(2)}


_NO_NAME = str.maketrans(" '(),:{}", "--------")
_ADAPTIVE: dict[str, Any] = {
    "outer": Outer(delay=0),
    "codec": Codec("lowrank"),
    "plan": Plan(4, 4, 2),  # as many steps as a trial has: all rounds say how long they take
    "adaptive": Adaptive(inner_steps=8, window=2, min_rank=2, max_rank=8, min_inner_steps=1, max_inner_steps=8),
}


def _planned(changes: dict[tuple[int, int], tuple[int, int]], kept: int | None = None) -> Mischief:
    """(stage, round) -> the rank and inner steps that its seal plans; what the last stage's contributions state to have
    kept."""

    def plan(stage: int, round: int, before: LedgerPlan) -> LedgerPlan:
        rank, steps = changes.get((stage, round), (before.rank, before.inner_steps))
        return LedgerPlan(before.level, rank, steps)

    def statement(one: Contribution) -> Contribution:
        return replace(one, kept=kept) if kept is not None and one.stage else one

    return Mischief(statement, plan=plan)


def test_plans_that_move_one_rung_at_the_end_of_a_window_pass(
    history_network: Network, tmp_path: Path, run_audit: Callable[..., Report]
) -> None:
    # Sealed timings of 1 ms for 1 ms of training: the steps have to grow. Stage 1's rank falls alone.
    history = history_network.run("adaptive", _planned({(0, 1): (4, 4), (1, 1): (2, 2)}, kept=UNIT), **_ADAPTIVE)
    report = run_audit(history, own=[copied(history, tmp_path / "blobs")])
    assert _words(report) == "PASS", report.text()
    assert report.facts["state"] == "complete", "by its inner steps and by its rounds"
    with history.client().events() as index:
        last = summary(index, replayed(index, history.run)).rounds[2]
    assert last.inner_steps == 4 and [(stage.level, stage.rank) for stage in last.stages] == [(4, 4), (4, 2)]


@pytest.mark.parametrize(
    ("changes", "where", "why"),
    [
        ({(1, 1): (8, 2)}, (1, 1), "gives Plan(level=4, rank=4, inner_steps=2)"),
        ({(1, 1): (5, 2)}, (1, 1), "gives Plan(level=4, rank=4, inner_steps=2)"),
        ({(0, 1): (4, 8)}, (1, 0), "gives Plan(level=4, rank=4, inner_steps=4)"),
        ({(1, 0): (5, 2)}, (0, 1), "inside a window"),
        ({(0, 1): (4, 1)}, (1, 0), "gives Plan(level=4, rank=4, inner_steps=4)"),
        ({(1, 1): (4, 4)}, (1, 1), "gives Plan(level=4, rank=4, inner_steps=2)"),
    ],
)
def test_plans_that_no_rule_gives_fail(
    history_network: Network,
    tmp_path: Path,
    run_audit: Callable[..., Report],
    changes: dict[tuple[int, int], tuple[int, int]],
    where: tuple[int, int],
    why: str,
) -> None:
    history = history_network.run(f"plan{changes}".translate(_NO_NAME), _planned(changes), **_ADAPTIVE)
    report = run_audit(history, own=[copied(history, tmp_path / "blobs")])
    (failure,) = [c for c in report.checks if c.verdict == "FAIL"]
    assert failure.check == "terms" and (failure.round, failure.stage) == where and why in failure.detail


def test_a_round_after_the_runs_last_inner_step_fails(
    history_network: Network, tmp_path: Path, run_audit: Callable[..., Report]
) -> None:
    over = {**_ADAPTIVE, "adaptive": msgspec.structs.replace(_ADAPTIVE["adaptive"], inner_steps=4)}
    history = history_network.run("over", **over)
    report = run_audit(history, own=[copied(history, tmp_path / "blobs")])
    assert {(c, t, s) for c, t, s, _ in _failures(report)} == {("terms", 2, 0), ("terms", 2, 1)}


_STOPS: dict[str, Any] = {
    "outer": Outer(delay=0),
    "rounds": 6,
    "evaluation": Evaluation(every=1, samples=1, replicas=2),
    "stop": Stop(patience=2),
}


def test_an_end_that_the_held_out_losses_do_not_give_fails(
    history_network: Network, tmp_path: Path, run_audit: Callable[..., Report], monkeypatch: pytest.MonkeyPatch
) -> None:
    history = history_network.run("stopped", _planned({(0, 2): (0, 0)}), **_STOPS)
    report = run_audit(history, own=[copied(history, tmp_path / "blobs")])
    (failure,) = [c for c in report.checks if c.verdict == "FAIL"]
    assert (failure.check, failure.round, failure.stage) == ("terms", 2, 0)
    assert "whose held-out losses do not say that it is over" in failure.detail
    for found in (True, None):
        monkeypatch.setattr(stopping, "is_over", lambda *_, found=found: found)
        shutil.rmtree(tmp_path / "work")
        report = run_audit(history, own=[tmp_path / "blobs"])
        assert not _failures(report) and report.facts["state"] == "complete"
        assert any("had to stop with round 2" in line for line in report.not_established) == (found is None)


def test_a_round_after_a_run_was_stopped_fails(
    history_network: Network, tmp_path: Path, run_audit: Callable[..., Report]
) -> None:
    history = history_network.run("revived", _planned({(0, 1): (0, 0)}), **_STOPS)
    report = run_audit(history, own=[copied(history, tmp_path / "blobs")])
    failures = {(c.round, c.stage): c.detail for c in report.checks if c.verdict == "FAIL" and c.check == "terms"}
    assert failures.keys() == {(1, 0), (2, 0), (2, 1)}
    assert "after the run's end" in failures[2, 0] and "had ended before this round" in failures[2, 1]


# A chain node that does not tell the truth.


def test_a_seal_signed_by_too_few_fails(
    honest_history: History, folder: Path, run_audit: Callable[..., Report]
) -> None:
    def one_signature(fields: list[Any]) -> None:
        fields[3] = fields[3][:66]

    with _doctored(honest_history, _sealed(1, 0, one_signature)) as client:
        report = run_audit(honest_history, own=[folder], client=client)
    # The other one was also the only proof of who made its signer's record. (And such a seal may come too early.)
    assert {(c, t, s) for c, t, s, _ in _failures(report)} >= {("quorum", 1, 0), ("contributions", 1, 0)}
    one_round = FULL // horizon_of(honest_history.manifest.audit.share, 4)  # of work, by two
    assert any(f"a weight of {one_round // 2} of the " in c.detail for c in report.checks)


def test_a_seal_without_a_founders_signature_fails_while_work_has_earned_little(
    honest_history: History, folder: Path, run_audit: Callable[..., Report]
) -> None:
    def by_members(fields: list[Any]) -> None:
        assert fields[3][-66] == Signs.FOUNDER.value
        fields[3] = fields[3][:-66]

    with _doctored(honest_history, _sealed(2, 1, by_members)) as client:
        report = run_audit(honest_history, own=[folder], client=client)
    failures = {(c, t, s) for c, t, s, _ in _failures(report)}
    assert ("quorum", 2, 1) in failures and ("contributions", 2, 1) not in failures


def test_a_contribution_with_an_altered_byte_fails(
    honest_history: History, folder: Path, run_audit: Callable[..., Report]
) -> None:
    def other_loss(fields: list[Any]) -> None:
        place = 1 + 32 + 3  # the last byte of `loss`
        fields[2] = fields[2][:place] + bytes([fields[2][place] ^ 1]) + fields[2][place + 1 :]

    with _doctored(honest_history, _sealed(0, 1, other_loss)) as client:
        report = run_audit(honest_history, own=[folder], client=client)
    failures = {(c, t, s) for c, t, s, _ in _failures(report)}
    assert ("seal", 0, 1) in failures and ("base and plan", 0, 1) in failures
    assert any("something else than the seal's record" in c.detail for c in report.checks)


def test_a_seal_with_another_hash_than_the_contract_accepted_fails(
    honest_history: History, folder: Path, run_audit: Callable[..., Report]
) -> None:
    def other_weights(fields: list[Any]) -> None:
        fields[1] = (bytes(31) + b"\x01", *fields[1][1:])

    with _doctored(honest_history, _sealed(2, 1, other_weights)) as client:
        report = run_audit(honest_history, own=[folder], client=client)
    assert {check for check, *_ in _failures(report)} == {"seal", "replay"}


def test_a_last_seal_that_the_contract_never_took_fails(
    honest_history: History, folder: Path, run_audit: Callable[..., Report]
) -> None:
    def another(fields: list[Any]) -> None:
        fields[0] = b"D" * 32  # nothing after it names the digest, but the contract stores it

    with _doctored(honest_history, _sealed(2, 1, another)) as client:
        report = run_audit(honest_history, own=[folder], client=client)
    assert ("stored digest", None, 1, (b"D" * 32).hex()) in _failures(report)


def test_a_conviction_by_too_few_fails(honest_history: History, folder: Path, run_audit: Callable[..., Report]) -> None:
    """One member signed it, and no founder: no contract would have taken it, but this chain node tells of it."""
    history = honest_history
    founder = next(iter(history.keys))
    accused, judge = sorted(
        (account for account, (_, stage) in history.slots.items() if stage == 1), key=lambda one: one != founder
    )
    statement = history.statements[1, 0][history.slots[accused][0]]
    verdict = Verdict(history.run, 1, 0, accused, statement, FALSE, b"\5" * 32)
    signed = verdict.sign(history.client().domain, history.keys[judge])
    told = [1, 0, statement, conviction_entries([signed], history.client().domain)]
    data = "0x" + eth_abi.encode(["uint16", "uint32", "bytes32", "bytes"], told).hex()
    topics = [event_topic(Convicted).hex(), history.run.hex(), accused[2:].lower().rjust(64, "0")]

    def change(method: str, params: list[Any], result: Any) -> Any:
        if method != "eth_getLogs":
            return result
        found = []
        for log in result or []:
            found.append(log)
            if history.run.hex() in log["topics"][1] and _is_sealed(log, 0, 1):
                index = hex(int(log["logIndex"], 16) + 1000)  # after all that the block has
                found.append(log | {"topics": ["0x" + topic for topic in topics], "data": data, "logIndex": index})
        return sorted(found, key=lambda log: (int(log["blockNumber"], 16), int(log["logIndex"], 16)))

    with _proxy(history.rpc_url, change) as url:
        report = run_audit(history, own=[folder], client=LedgerClient(url, history.ledger))
    assert ("conviction", 0, 1, statement.hex()) in _failures(report)
    weight = FULL // horizon_of(history.manifest.audit.share, 4) // 2
    assert any(f"verdicts: {weight} of the weight of " in check.detail for check in report.checks)


@pytest.mark.parametrize("round", [1, 2])
def test_a_missing_seal_fails(
    honest_history: History, folder: Path, run_audit: Callable[..., Report], round: int
) -> None:
    def without(log: dict[str, Any]) -> dict[str, Any] | None:
        return None if _is_sealed(log, round, 0) else log

    with _doctored(honest_history, without) as client:
        report = run_audit(honest_history, own=[folder], client=client)
    missing = [c for c in report.checks if (c.check, c.verdict) == ("completeness", "FAIL")]
    assert [(c.stage, c.round) for c in missing][:1] == [(0, round)]


def test_events_out_of_order_fail(honest_history: History, folder: Path, run_audit: Callable[..., Report]) -> None:
    since = honest_history.client().contracts().since

    def earlier(log: dict[str, Any]) -> dict[str, Any] | None:
        return log | {"blockNumber": hex(since)} if _is_sealed(log, 1, 1) else log

    with _doctored(honest_history, earlier) as client:
        report = run_audit(honest_history, own=[folder], client=client)
    assert {"events", "chain node"} & {check for check, *_ in _failures(report)}


def test_another_contract_at_the_ledgers_address_fails(
    honest_history: History, folder: Path, run_audit: Callable[..., Report]
) -> None:
    registry = LedgerClient(honest_history.rpc_url, honest_history.registry)
    report = run_audit(honest_history, own=[folder], client=registry)
    assert [(c.check, c.verdict) for c in report.checks] == [("bytecode", "FAIL")]


@pytest.mark.parametrize(
    "name", ["TrainingLedger", "Membership", "NodeRegistry", "Invitations", "Bonds", "OuterProofs"]
)
def test_foreign_bytecode_fails(
    honest_history: History, folder: Path, run_audit: Callable[..., Report], made: list[Check], name: str
) -> None:
    """Of any contract that has a say in the run: the library runs as the ledger's own code."""
    client = honest_history.client()

    def read(name: str, address: str, view: str) -> tuple[Any, ...]:
        return Interface(name, client.rpc).call(address, view)

    parts = {part.name: part.address for part in parts_of(client.ledger, client.code, read)}
    address = parts[name]

    def other_code(method: str, params: list[Any], result: Any) -> Any:
        ours = method == "eth_getCode" and params[0].lower() == address.lower()
        return result[:-2] + "00" if ours else result

    with _proxy(honest_history.rpc_url, other_code) as url:
        report = run_audit(honest_history, own=[folder], client=LedgerClient(url, honest_history.ledger))
    assert [c.verdict for c in made if c.check == "bytecode"][-1] == "FAIL"
    (failure,) = report.checks
    assert f"at {address}, not this version's {name}" in failure.detail
    assert report.exit_code == 1 and {c.check for c in made} == {"bytecode"}, "nothing else was asked"


def test_an_unknown_run_is_no_finding_but_a_mistake(honest_history: History, tmp_path: Path) -> None:
    with pytest.raises(Failure, match="knows no run"):
        audit_from([], tmp_path, honest_history.client(), AuditRequest(bytes(32)))


def test_the_text_names_every_line_that_is_not_pass() -> None:
    report = Report(bytes(32))
    report.add(1, "seal", "PASS", round=0, stage=0)
    report.add(2, "payload", "WARN", "gone", round=3, stage=1, hash=b"\xab" * 32)
    text = report.text()
    assert f"WARN level 2 payload round 3 stage 1 {'ab' * 32}: gone" in text
    assert text.endswith("verdict: ledger PASS, outer steps WARN, training: not checked")
    assert report.counts() == {"PASS": 1, "FAIL": 0, "WARN": 1, "SKIP": 0}


def test_the_verdict_says_what_was_replayed_of_the_training() -> None:
    report = Report(bytes(32))
    assert str(report.verdict) == "ledger not checked, outer steps not checked, training: not checked"
    report.training = Training(chosen=0)
    assert report.verdict.training == "nothing replayed", (
        "which is more than not to have looked, and less than a number"
    )
    report.training = Training(replica_rounds=640, segments=5120, chosen=0)
    assert report.verdict.training == "0 of 5120 segments replayed, none drawn"
    report.training = replace(report.training, drawn=40)
    assert report.verdict.training == "0 of 5120 segments replayed, none chosen"
    report.training = replace(report.training, chosen=38, replayed=38, honest=38)
    assert report.verdict.training == "38 of 5120 segments replayed, all honest; 5082 segments not looked at"
    report.training = replace(report.training, honest=37, false=1, withheld=1, unknown=1)
    assert report.verdict.training == (
        "38 of 5120 segments replayed, 37 honest, 1 false, 1 withheld, 1 unknown; 5082 segments not looked at"
    )
    report.training = Training(replica_rounds=2, segments=4, drawn=4, chosen=4, replayed=4, honest=4, exact=True)
    assert report.verdict.training == "4 of 4 segments repeated, all bit for bit"
    report.training = replace(report.training, honest=3, false=1)
    assert report.verdict.training == "4 of 4 segments repeated, 3 bit for bit, 1 false"


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        (["PASS"], 0),
        (["PASS", "FAIL"], 1),
        (["PASS", "WARN", "SKIP", "FAIL"], 1),
        (["PASS", "WARN"], 4),  # gone everywhere, withheld, copied, not compared
        (["PASS", "SKIP"], 4),  # nothing drawn, private, no canonical arithmetic
        ([], 4),
    ],
)
def test_only_what_is_established_ends_with_0(verdicts: list[Any], code: int) -> None:
    report = Report(bytes(32))
    for verdict in verdicts:
        report.add(1, "seal", verdict)
    assert report.exit_code == code
    assert (report.json()["established"], report.json()["failed"]) == (code == 0, code == 1)


def test_a_report_stays_small_however_much_is_wrong() -> None:
    report = Report(bytes(32))
    for round in range(3000):
        report.add(2, "payload", "PASS", round=round, stage=0)
        report.add(2, "payload", "WARN", "gone", round=round, stage=1)
        report.note(f"note {round}")
        report.cannot_establish(f"round {round}")
    assert report.counts() == {"PASS": 3000, "FAIL": 0, "WARN": 3000, "SKIP": 0}
    assert len(report.checks) == 1000 and len(report.notes) == len(report.not_established) == 1001
    text = report.text()
    assert "2000 more lines like these" in text and "2000 more like these" in text


def _words(report: Report) -> str:
    """The worst of both levels, neither of which was left out."""
    parts = report.verdict.ledger, report.verdict.outer_steps
    assert report.verdict.training == "not checked"
    return "FAIL" if "FAIL" in parts else "WARN" if "WARN" in parts else "PASS" if parts == ("PASS", "PASS") else "?"


def _failures(report: Report) -> set[tuple[str, int | None, int | None, str | None]]:
    return {(c.check, c.round, c.stage, c.hash) for c in report.checks if c.verdict == "FAIL"}


def _nudged(blobs: Path, shapes: weights.Shapes, digest: bytes) -> bytes:
    """Another version, close to this one, stored as a blob."""
    tensors = weights.read(blobs / digest.hex(), shapes)
    next(iter(tensors.values())).mul_(1.001)
    return weights.write_blob(tensors, blobs)


_ENTRY = next(e for e in contracts.load("TrainingLedger")["abi"] if e["type"] == "event" and e["name"] == "Sealed")
_CONFIG = [kind for _, kind in static_fields(RunConfig)]
_OUTCOME = "(" + ",".join(part["type"] for part in _ENTRY["inputs"][4]["components"]) + ")"
_KINDS = ["bytes32", _OUTCOME, "bytes", "bytes"]  # digest, outcome, records, signatures

Doctor = Callable[[dict[str, Any]], dict[str, Any] | None]


def _is_sealed(log: dict[str, Any], round: int, stage: int) -> bool:
    topics = [int(topic, 16) for topic in log["topics"]]
    return topics[0] == int.from_bytes(event_topic(Sealed), "big") and topics[2:] == [stage, round]


def _sealed(round: int, stage: int, change: Callable[[list[Any]], None]) -> Doctor:
    """Changes the fields of one Sealed event's data."""

    def doctor(log: dict[str, Any]) -> dict[str, Any] | None:
        if not _is_sealed(log, round, stage):
            return log
        fields = list(eth_abi.decode(_KINDS, bytes.fromhex(log["data"][2:])))
        change(fields)
        return log | {"data": "0x" + eth_abi.encode(_KINDS, fields).hex()}

    return doctor


@contextmanager
def _doctored(history: History, doctor: Doctor) -> Iterator[LedgerClient]:
    """A client of a chain node that changes or drops logs of the run."""

    def change(method: str, params: list[Any], result: Any) -> Any:
        if method != "eth_getLogs":
            return result
        found = [doctor(log) if history.run.hex() in log["topics"][1] else log for log in result or []]
        return [log for log in found if log is not None]

    with _proxy(history.rpc_url, change) as url:
        yield LedgerClient(url, history.ledger)


@contextmanager
def _proxy(upstream: str, change: Callable[[str, list[Any], Any], Any]) -> Iterator[str]:
    """A JSON-RPC server whose results go through `change(method, params, result)`."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answer = requests.post(upstream, json=request, timeout=PATIENCE).json()
            if "result" in answer:
                answer["result"] = change(request["method"], request["params"], answer["result"])
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def test_progress_is_told(honest_history: History, folder: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    request = AuditRequest(honest_history.run)
    audit_from([Folder(folder, True)], tmp_path, honest_history.client(), request, lines.append)
    assert any("] 67% replay: round 2, stage 1, of 3 rounds" in line for line in lines)
