"""What accounts say that a version scored in tasks: signed by whom, of which weights, and what others make of it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import rfc8785

from dlx.ledger.keys import account_of, sign
from dlx.ledger.typed import Domain, Scores
from dlx.node.audit.sources.blobs import Attempt, Blobs, Folder, Source
from dlx.node.audit.sources.places import Places
from dlx.node.checkpoints import scores
from dlx.node.checkpoints.pull import pull_run
from dlx.node.checkpoints.scores import MAX_BYTES, ScoresError, gather, publish, read
from dlx.node.checkpoints.verify import verify
from dlx.node.home.diagnostics import Diagnosis
from dlx.node.home.errors import Failure
from dlx.node.runs.listing import SCORES, read_provenance
from tests.history_builder import History
from tests.node.command import dlx

pytest_plugins = ["tests.history_builder"]

STRANGER = b"\7" * 32
TASKS = {
    "pairs": {"version": 2.5, "samples": 6, "metrics": {"acc": {"value": 0.5, "stderr": float("nan")}}},
    "all": {"version": None, "samples": None, "metrics": {}},
}
NOW = 1_800_000_000


@pytest.fixture
def pulled(honest_history: History, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    return pull(honest_history, tmp_path / "model")


def pull(history: History, out: Path, *blobs: Path) -> tuple[Path, dict[str, Any]]:
    places = Places(own=(history.blobs, *blobs))
    return out, pull_run(history.client(), history.view(), 3, out, places, lambda line: None, lambda line: None)


def results(found: Mapping[str, Any]) -> dict[str, Any]:
    """As `evaluate` gives them."""
    return dict(found) | {"tasks": TASKS, "harness": "0.4.9", "average": None}


def member(history: History) -> bytes:
    view = history.view()
    return next(key for account, key in sorted(history.keys.items()) if view.slot_of(account) is not None)


def findings(history: History, folder: Path, work: Path) -> list[Diagnosis]:
    work.mkdir(exist_ok=True)
    blobs = Blobs([Folder(history.blobs, own=False)], work, lambda *what: None)
    return list(verify(folder, read_provenance(folder), history.client().domain, history.view(), blobs))


def altered(signed: scores.Signed, domain: Domain, key: bytes, **changes: Any) -> bytes:
    """The blob of a statement with other fields, signed by `key`."""
    statement = msgspec.to_builtins(signed.statement) | changes
    content = hashlib.sha256(rfc8785.dumps(statement)).digest()
    signature = sign(Scores(bytes.fromhex(statement["run"][2:]), statement["version"], content).digest(domain), key)
    return rfc8785.dumps({"signature": "0x" + signature.hex(), "statement": statement})


def test_a_statement_is_a_blob_that_pull_and_verify_show(
    honest_history: History, pulled: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    history, (alone, found) = honest_history, pulled
    assert found["scores"] == [] and not (alone / SCORES).exists()
    blobs, domain, key = tmp_path / "blobs", history.client().domain, member(history)
    blobs.mkdir()
    publish(results(found), domain, key, NOW - 1, blobs)
    newest = publish(results(found), domain, key, NOW, blobs)
    foreign = publish(results(found), domain, STRANGER, NOW, blobs)
    assert (blobs / newest.name).read_bytes() == newest.encode()
    folder, again = pull(history, tmp_path / "again", blobs)
    assert [(one["account"], one["standing"], one["blob"]) for one in again["scores"]] == [
        (account_of(key), "member", newest.name),
        (account_of(STRANGER), "no member", foreign.name),
    ]
    told = f"said by {account_of(STRANGER)} (no member of the run), lm_eval 0.4.9: pairs acc 0.5 (6 samples)"
    assert again["scores"][1]["told"] == told
    assert again["scores"][0]["tasks"]["pairs"]["metrics"] == {"acc": {"value": 0.5, "stderr": None}}
    assert again["checkpoint"] == found["checkpoint"], "the version is the same, whatever is said of it"
    assert (folder / SCORES).read_bytes() == newest.encode() + b"\n" + foreign.encode() + b"\n"
    said = [one for one in findings(history, folder, tmp_path / "work") if one.check == "scores"]
    assert [(one.verdict, one.text) for one in said] == [("PASS", one["told"]) for one in again["scores"]]
    assert {one.verdict for one in findings(history, folder, tmp_path / "work")} == {"PASS"}


def test_a_blob_that_is_named_is_asked_for(
    honest_history: History, pulled: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    history, (_, found) = honest_history, pulled
    kept = tmp_path / "kept"
    kept.mkdir()
    signed = publish(results(found), history.client().domain, member(history), NOW, kept)

    class Peer:
        own = False

        def fetch(self, digest: bytes, limit: int, into: Path) -> Attempt:
            return Folder(kept, own=False).fetch(digest, limit, into)

    peers: list[Source] = [Peer()]
    assert gather(history.view(), found, peers, [], tmp_path) == ([], [])
    assert gather(history.view(), found, peers, [bytes.fromhex(signed.name)], tmp_path) == ([signed], [])
    _, (problem,) = gather(history.view(), found, peers, [b"\1" * 32], tmp_path)
    assert "no source has it" in problem


def test_what_is_said_of_other_weights_is_not_shown(
    honest_history: History, pulled: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    history, (folder, found) = honest_history, pulled
    domain, key, blobs = history.client().domain, member(history), tmp_path / "blobs"
    blobs.mkdir()
    honest = publish(results(found), domain, key, NOW, blobs)
    lies: list[tuple[dict[str, Any], str, bool]] = [
        ({"stages": ["0" * 64, *honest.statement.stages[1:]]}, "other weights than the ledger has", True),
        ({"stages": honest.statement.stages[:1]}, "other weights", True),
        ({"model": "0" * 64}, "of another model", True),
        ({"average": [1, 3]}, "of another model", False),
        ({"version": 2}, "of another version", False),
        ({"run": "0x" + "11" * 32}, "of another version", False),
    ]
    for changes, why, told in lies:
        data = altered(honest, domain, key, time=NOW + 1, **changes)
        (blobs / hashlib.sha256(data).hexdigest()).write_bytes(data)
        shown, problems = gather(history.view(), found, [Folder(blobs, own=True)], [], tmp_path)
        assert shown == [honest] and any(why in problem for problem in problems) == told, (changes, problems)
        (blobs / hashlib.sha256(data).hexdigest()).unlink()
        (folder / SCORES).write_bytes(data + b"\n")
        verdicts = {one.check: one for one in findings(history, folder, tmp_path / "work")}
        assert verdicts["scores"].verdict == "FAIL" and why in verdicts["scores"].text
        assert verdicts["files"].verdict == "PASS", "it is in no list"


def test_hostile_bytes_are_refused(
    honest_history: History, pulled: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    history, (folder, found) = honest_history, pulled
    domain, key, blobs = history.client().domain, member(history), tmp_path / "blobs"
    blobs.mkdir()
    honest = publish(results(found), domain, key, NOW, blobs)
    data, plain = honest.encode(), msgspec.to_builtins(honest)
    many = {f"task{n}": msgspec.to_builtins(honest.statement.tasks["pairs"]) for n in range(2000)}
    make: Callable[..., bytes] = lambda **changes: altered(honest, domain, key, **changes)  # noqa: E731
    hostile = [
        (b"", ""),
        (b"\xff" * 40, ""),
        (b"[" * 60_000, ""),
        (data + b" ", "RFC 8785"),
        (json.dumps(plain).encode(), "RFC 8785"),
        (make(tasks=many), "more than 65,536 bytes"),
        (make(account=account_of(STRANGER)), "has not signed it"),
        (make(account=account_of(key).lower()), "has not signed it"),
        (make(more=1), "unknown field"),
        (make(tasks={}), "length >= 1"),
        (make(harness="\x1b[2J"), "matching regex"),
        (make(tasks={"a\u202eb": plain["statement"]["tasks"]["all"]}), "matching regex"),
        (make(time=-1), ">= 0"),
        (altered(honest, Domain(1, domain.ledger), key), "has not signed it"),
        (data.replace(plain["signature"].encode(), b"0x" + b"f" * 130), ""),
    ]
    for bytes_, why in hostile:
        with pytest.raises(ScoresError) as refused:
            read(bytes_, domain)
        assert why in str(refused.value), (bytes_[:80], refused.value)
        assert str(refused.value).isprintable()
    for content in (b"\n" * 65, b"x" * (64 * (MAX_BYTES + 1) + 1), b"{}\n"):
        (folder / SCORES).write_bytes(content)
        assert [one.verdict for one in findings(history, folder, tmp_path / "work") if one.check == "scores"] == [
            "FAIL"
        ]
    os.mkfifo(blobs / ("0" * 64))
    (blobs / ("1" * 64)).symlink_to("nowhere")
    (blobs / ("2" * 64)).write_bytes(data)  # another's name
    assert gather(history.view(), found, [Folder(blobs, own=True)], [], tmp_path) == ([honest], [])
    with pytest.raises(Failure, match="cannot be stated: more than 65,536 bytes"):
        publish(results(found) | {"tasks": {f"task{n}": TASKS["pairs"] for n in range(2000)}}, domain, key, NOW, blobs)


def test_the_commands_say_it(honest_history: History, pulled: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    history, (_, found) = honest_history, pulled
    blobs = tmp_path / "published"
    blobs.mkdir()
    signed = publish(results(found), history.client().domain, STRANGER, NOW, blobs)
    dlx("init", "--datadir", tmp_path / "home", "--insecure-devnet")
    chain = ("--rpc-url", history.rpc_url, "--ledger", history.ledger, "--datadir", tmp_path / "home")
    wanted = ("pull", *chain, history.run.hex(), "--blobs", history.blobs)
    told = f"scores said by {account_of(STRANGER)} (no member of the run)"
    assert told in dlx(*wanted, "--blobs", blobs, "--out", tmp_path / "out").stdout
    assert json.loads(dlx(*wanted, "--out", tmp_path / "none", "--json").stdout)["scores"] == []
    verified = dlx("verify", tmp_path / "out", *chain, "--blobs", history.blobs).stdout
    assert told.removeprefix("scores ") in verified
    refused = dlx(*wanted, "--out", tmp_path / "bad", "--scores", signed.name[:-1], code=2).stderr
    assert "--scores: expected the 64 hex digits" in refused
    assert "--publish is of --tasks" in dlx("evaluate", *chain, "--publish", code=2).stderr
