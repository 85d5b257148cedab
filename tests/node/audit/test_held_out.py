"""Level 3 of held-out losses: what drawn members said is recomputed, and who misstates it is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dlx.ground.blobs import write_blob
from dlx.ground.constants import NO_HASH
from dlx.ledger.client import LedgerClient
from dlx.ledger.typed import Evaluation, SignedEvaluation
from dlx.node.audit.held_out import Recomputer, _check_before, audit_held_out
from dlx.node.audit.replay_choice import ReplayChoice
from dlx.node.audit.report import Report
from dlx.node.audit.sources.blobs import Blobs, Folder
from dlx.node.round.challenges.draw import seals_of
from dlx.node.round.challenges.evaluation import Part, evaluation_block, evaluation_of, parts
from dlx.node.runs import find
from dlx.node.runs.held_out import read_held_out
from dlx.node.runs.history import history as history_of
from dlx.node.trainer.evaluating import carry_out
from dlx.node.trainer.evaluations import Pass
from dlx.training.data import shards
from dlx.training.recipe.evaluation import spread
from dlx.training.recipe.manifest import MAX_BYTES, Before
from dlx.training.recipe.recipe import Evaluation as Terms
from tests.history_builder import History, Network

pytest_plugins = ["tests.history_builder"]
SAMPLES = 3


@pytest.fixture(scope="module")
def evaluated(history_network: Network) -> History:
    return history_network.run("evaluated", evaluation=Terms(every=1, samples=SAMPLES, replicas=2))


def test_honest_losses_pass_and_are_on_record(history_network: Network, evaluated: History, tmp_path: Path) -> None:
    for part in drawn(evaluated, 1):
        if part.is_last:
            state(evaluated, signed(evaluated, part)[-1])
    report = audited(evaluated, tmp_path / "work", 1)
    assert [counts for (_, check), counts in counted(report).items() if check == "held-out loss"] == [{"PASS": 2}]
    view, client = evaluated.view(), evaluated.client()
    found = read_held_out(client, view, evaluated.manifest)
    assert (found[1].per, found[1].missing, len(found[1].said)) == ("byte", (), 2)
    assert found[1].loss == pytest.approx(5.545, abs=0.1) and found[1].loss == min(loss for _, loss in found[1].said)
    assert found[2].loss is None and len(found[2].missing) == 2, "silence shows"
    with client.events() as index:
        rows = history_of(index, find.view_of(client, index, evaluated.run), held_out=found).rounds
    assert (rows[0].held_out, rows[0].held_out_said) == (found[1].loss, dict(found[1].said))
    assert (rows[1].held_out, rows[1].held_out_missing) == (None, found[2].missing)


def test_a_false_sum_is_its_makers_fault(evaluated: History, tmp_path: Path) -> None:
    part = next(part for part in drawn(evaluated, 2) if part.is_last)
    last = signed(evaluated, part)[-1]
    lie = resigned(evaluated, part, replace(last.evaluation, sum=last.evaluation.sum // 2))
    state(evaluated, lie)
    report = audited(evaluated, tmp_path / "work", 2)
    (failed,) = [check for check in report.checks if check.verdict == "FAIL"]
    own, stated = last.evaluation.sum, lie.evaluation.sum
    assert f"states {stated / last.evaluation.count / 1e6:.6f}" in failed.detail and part.account in failed.detail
    assert f"it is {own / last.evaluation.count / 1e6:.6f}" in failed.detail
    assert f"{part.account} (stage 1) states what its input does not give" in failed.detail


def test_a_false_loss_of_false_activations_is_the_fault_of_who_made_them(evaluated: History, tmp_path: Path) -> None:
    last = next(part for part in drawn(evaluated, 3) if part.is_last)
    first = last.before
    assert first is not None
    honest = signed(evaluated, first)[0]
    true = evaluated.blobs / honest.evaluation.activations.hex()
    junk = write_blob(evaluated.blobs, [b"\0\0\x80\x3f" * (true.stat().st_size // 4)])
    lie = resigned(evaluated, first, replace(honest.evaluation, activations=junk))
    state(evaluated, signed(evaluated, last, said={first: lie})[-1])
    report = audited(evaluated, tmp_path / "work", 3)
    (failed,) = [check for check in report.checks if check.verdict == "FAIL"]
    assert f"{first.account} (stage 0) states what its input does not give" in failed.detail
    (evaluated.blobs / junk.hex()).unlink()
    report = audited(evaluated, tmp_path / "again", 3)
    (failed,) = [check for check in report.checks if check.verdict == "FAIL"]
    assert "who of its replica misstates it cannot be said" in failed.detail


def test_what_the_manifest_says_of_the_genesis_is_computed_again(evaluated: History, tmp_path: Path) -> None:
    data = shards.read_data_manifest(evaluated.blobs / evaluated.manifest.data.manifest.sha256)
    sources = Blobs([Folder(evaluated.blobs, own=False)], tmp_path)
    recomputer = Recomputer(evaluated.manifest, data, evaluated.view(), sources, ReplayChoice().placement)
    sources.get(evaluated.view().config.manifest, MAX_BYTES)
    sources.get(bytes.fromhex(evaluated.manifest.data.manifest.sha256), MAX_BYTES)
    true = recomputer.loss(0, spread(recomputer.held_out, 2))
    for sum, count, verdict in ((true.sum, true.count, "PASS"), (true.sum // 2, true.count, "FAIL"), (1, 1, "FAIL")):
        report = Report(evaluated.run)
        _check_before(report, recomputer, Before(samples=2, sum=sum, count=count))
        assert counted(report)[3, "held-out loss"] == {verdict: 1}


def audited(history: History, work: Path, version: int) -> Report:
    work.mkdir()
    report, client = Report(history.run), history.client()
    sources, choice = [Folder(history.blobs, own=False)], ReplayChoice(rounds=range(version - 1, version))
    audit_held_out(report, history.view(), client.block_hash, sources, work, choice, lambda line: None)
    return report


def counted(report: Report) -> dict[tuple[int, str], dict[str, int]]:
    found: dict[tuple[int, str], dict[str, int]] = {}
    for row in report.json()["table"]:
        given = {word: row[word] for word in ("PASS", "FAIL", "WARN", "SKIP") if row.get(word)}
        found[row["level"], row["check"]] = given
    return found


def drawn(history: History, version: int) -> list[Part]:
    view = history.view()
    seals, block = seals_of(view, version - 1), evaluation_block(view, history.manifest, version)
    assert seals is not None and block is not None
    client = history.client()
    while (hash_ := client.block_hash(block)) is None:
        writer(history, next(iter(history.keys))).publish_checkpoint(history.run, 1, bytes(32), "ipfs://a-block")
    return parts(evaluation_of(seals, hash_, history.manifest.evaluation.replicas))


def signed(history: History, part: Part, said: dict[Part, SignedEvaluation] | None = None) -> list[SignedEvaluation]:
    """What the part's replica states honestly up to it, but for what it has `said` already."""
    before = [] if part.before is None else signed(history, part.before, said)
    if said and part in said:
        return [*before, said[part]]
    view, manifest = history.view(), history.manifest
    data = shards.read_data_manifest(history.blobs / manifest.data.manifest.sha256)
    held_out = shards.held_out_samples(data, manifest.data.sequence_length)
    outcome = carry_out(
        Pass(
            manifest=view.config.manifest,
            blobs=str(history.blobs),
            stage=part.stage,
            weights=tuple(view.weights(stage, part.draw.version) for stage in range(2)),
            samples=tuple(part.draw.places(SAMPLES, held_out)),
            incoming=before[-1].evaluation.activations if before else NO_HASH,
        )
    )
    assert outcome.done, outcome
    previous = before[-1].name if before else NO_HASH
    place = history.run, part.draw.version, part.evaluator.replica, part.stage
    return [
        *before,
        resigned(history, part, Evaluation(*place, previous, outcome.activations, outcome.sum, outcome.count)),
    ]


def resigned(history: History, part: Part, evaluation: Evaluation) -> SignedEvaluation:
    made = evaluation.sign(history.client().domain, history.keys[part.account])
    write_blob(history.blobs, [made.encode()])
    return made


def state(history: History, made: SignedEvaluation) -> None:
    said = made.evaluation
    client = writer(history, made.signer(history.client().domain))
    client.evaluate(history.run, said.version, said.sum, said.count, made.name)


def writer(history: History, account: str) -> LedgerClient:
    client = LedgerClient(history.rpc_url, history.ledger, history.keys[account])
    client.connect()
    return client
