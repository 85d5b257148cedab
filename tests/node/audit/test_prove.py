"""`dlx-node prove`: a wrong version of a real history, from blobs on a disk to a disproved seal."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dlx.ground import durable
from dlx.ground.merkle import file_root
from dlx.ledger import typed
from dlx.ledger.bindings import Interface
from dlx.ledger.bonds import false_versions
from dlx.ledger.deployment import fund
from dlx.ledger.keys import account_of, sign
from dlx.ledger.typed import Outcome
from dlx.node.audit import prove
from dlx.node.audit.element_proof import Unprovable
from dlx.node.audit.outer_replay import Replay
from dlx.node.audit.prove import Disproof, disproof
from dlx.node.audit.sources.blobs import Blobs, Folder
from dlx.node.home import evidence as evidences
from dlx.node.home.datadir import DataDir
from dlx.node.home.keys.identity import account_address
from dlx.node.runs.outer_terms import outer_commitment, outer_terms
from dlx.training.models import weights
from dlx.training.models.shapes import stage_shapes
from tests.contracts.solidity import Chain, Contract, Refused
from tests.history_builder import History, Mischief, Network
from tests.node.command import dlx, pasted
from tests.node.made_statements import DOMAIN, seal

pytest_plugins = ["tests.history_builder"]

GWEI, BOND = 10**9, 10**15
WRONG = 1  # the round, of stage 0


def falsified(network: Network, honest: History, name: str, **terms: Any) -> History:
    """A value of the last tensor of V[0,2] is another one than the payloads give."""

    def lie(stage: int, round: int, made: Outcome) -> Outcome:
        if (stage, round) != (0, WRONG):
            return made
        blobs = network.blobs
        tensors = weights.read_arrays(blobs / made.weights.hex(), stage_shapes(honest.manifest, 0))
        tensors[max(tensors)].reshape(-1).view(np.uint32)[5] ^= 1
        name = weights.write_blob(tensors, blobs)
        return replace(made, weights=name, weights_root=file_root(blobs / name.hex()))

    return network.run(name, Mischief(outcome=lie), **terms)


@pytest.fixture(scope="module")
def wrong(history_network: Network, honest_history: History) -> History:
    return falsified(history_network, honest_history, "wrong-element")


def roots(history: History) -> list[bytes]:
    return [file_root(history.blobs / blob.sha256) for blob in history.manifest.genesis]


def found(history: History, work: Path, round: int = WRONG, stage: int = 0) -> Disproof:
    work.mkdir(exist_ok=True)
    store = Blobs([Folder(history.blobs, own=True)], work)
    return disproof(Replay(history.manifest, history.view(), store), store, stage, round, lambda line: None)


def proofs(history: History, stage: int = 0) -> Contract:
    """The contract beside a ledger that has what the history's one has."""
    chain = Chain()
    ledger = chain.deploy("SealedLedger")
    ledger.write("setDomain", typed._LEDGER_VERSION, history.ledger)
    ledger.write("setHead", history.run, stage, history.view().sealed[stage, 2].digest, 3)
    ledger.write("setOuter", history.run, outer_commitment(history.manifest, roots(history)))
    return chain.deploy("OuterProofs", ledger.address)


def test_the_command_finds_the_element_and_makes_the_proof(wrong: History, tmp_path: Path) -> None:
    (tmp_path / "node").mkdir()
    chain = ["--rpc-url", wrong.rpc_url, "--chain-id", 31337, "--ledger", wrong.ledger, "--datadir", tmp_path / "node"]
    command = ["prove", wrong.run.hex(), *chain, "--blobs", wrong.blobs, "--round", WRONG, "--stage", 0]
    made = json.loads(dlx(*command, "--json").stdout)
    tensor = max(stage_shapes(wrong.manifest, 0))
    assert (made["of"], made["tensor"], made["element"], made["sent"]) == ("weights", tensor, 5, [])
    assert int(made["sealed"], 16) == int(made["right"], 16) ^ 1
    contract = proofs(wrong)
    (data,) = made["calldata"]
    assert contract.chain.mine(bytes.fromhex(contract.address[2:]), bytes.fromhex(data[2:])).status == 1
    assert contract.read("disproved", wrong.view().sealed[0, WRONG].digest)
    assert contract.read("firstDisproved", wrong.run, 0) == WRONG
    text = dlx(*command).stdout
    assert f"element 5 of {tensor}, weights" in text and "1 transaction, " in text
    refused = dlx(*command[:-3], 0, "--stage", 0, code=1).stderr
    assert "no proof: the payloads give what was sealed" in refused


def test_what_nobody_signed_hides_no_signer() -> None:
    """The ledger passes over a signature that is nobody's, so whoever sends a seal can add one."""
    made, keys = seal(), [bytes(31) + bytes([number]) for number in (1, 2, 3)]
    signed, other = sign(made.digest(DOMAIN), keys[0]), sign(made.records[0].statement, keys[1])
    founder = sign(made.digest(DOMAIN), keys[2])
    parts = (0, bytes(65)), (0, signed), (128, other), (192, founder), (193, signed)
    found = false_versions(made, b"".join(bytes([first]) + signature for first, signature in parts), DOMAIN)
    assert sorted(found) == sorted(account_of(key) for key in (keys[0], keys[2]))
    assert all(one.offender(DOMAIN) == account for account, one in found.items())


def test_who_signed_it_loses_its_bond(history_network: Network, honest_history: History, tmp_path: Path) -> None:
    """By commands alone: the proof, the evidence that it makes, and the line that it prints."""
    bonded = falsified(history_network, honest_history, "bonded", bond=BOND // GWEI)
    folder = tmp_path / "node"
    dlx("init", "--insecure-devnet", "--datadir", folder)
    fund(bonded.rpc_url, account_address(DataDir(folder)))
    place = ["--datadir", folder, "--rpc-url", bonded.rpc_url, "--ledger", bonded.ledger]
    command = ["prove", bonded.run.hex(), *place, "--blobs", bonded.blobs, "--round", WRONG, "--stage", 0]
    assert "evidence" not in dlx(*command).stdout, "of a version that is not disproved there is none"
    sent = json.loads(dlx(*command, "--send", "--json").stdout)
    assert sent["disproved"] and len(sent["sent"]) == 1 and sent["gas"] < 1_000_000
    client = bonded.client()
    contract = Interface("OuterProofs", client.rpc)
    assert contract.call(client.part("OuterProofs"), "firstDisproved", bonded.run, 0) == (WRONG,)
    founder = next(iter(bonded.keys))  # it created the run, and signs in each stage
    signers = {founder, *(account for account, (_, stage) in bonded.slots.items() if stage == 0)}
    kept = dict(evidences.kept(DataDir(folder), pytest.fail))
    assert {str(path) for path in kept} == set(sent["evidence"])
    assert sorted(one.offender(client.domain) for one in kept.values()) == sorted(signers)
    word, other = tmp_path / "a word", tmp_path / "of nobody yet"
    durable.write_bytes(word, b"word\n", durable.SECRET)
    other.mkdir()
    again = dlx(*command, "--datadir", other).stdout  # by somebody before, as far as it can tell
    assert "disproved before" in again and f"against the {len(signers)} that" in again
    make, submit = (pasted(one, FILE=word) for one in again.splitlines() if one.startswith(("first", "next")))
    dlx(*make)
    rows = json.loads(dlx(*submit, "--json").stdout)["evidence"]
    assert {row["account"] for row in rows if row["sent"] == "slashed"} == signers and len(rows) == len(signers)
    (submit,) = (pasted(one) for one in dlx(*command).stdout.splitlines() if one.startswith(("first", "next")))
    assert {row["sent"] for row in json.loads(dlx(*submit, "--json").stdout)["evidence"]} == {"passed over"}
    for account in bonded.slots:
        bond = client.bond(bonded.run, account)
        assert (bond.at_stake, bond.slashed) == ((0, True) if account in signers else (BOND, False))


def test_long_histories_and_many_payloads_take_several_transactions(
    wrong: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prove, "_MOST_SEALS", 1)
    monkeypatch.setattr(prove, "MOST_BYTES", 1)
    made = found(wrong, tmp_path / "work")
    assert [call.function for call in made.calls] == ["note", "prove", "prove"]
    contract = proofs(wrong)

    def send(calls: Any) -> None:
        for call in calls:
            contract.write(call.function, *call.arguments)

    with pytest.raises(Refused, match="NotInHistory"):
        send(made.calls[1:])
    send(made.calls)
    assert contract.read("disproved", wrong.view().sealed[0, WRONG].digest)


@pytest.mark.parametrize(("round", "stage", "why"), [(0, 0, "payloads"), (2, 1, "payloads"), (3, 0, "no seal")])
def test_nothing_is_proven_of_what_is_right(wrong: History, tmp_path: Path, round: int, stage: int, why: str) -> None:
    with pytest.raises(Unprovable, match=why):
        found(wrong, tmp_path / "work", round, stage)


def test_a_version_that_nobody_shows_is_not_provable(wrong: History, tmp_path: Path) -> None:
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    gone = wrong.versions[0, WRONG + 1].hex()
    for path in wrong.blobs.iterdir():
        if path.is_file() and path.name != gone:
            (blobs / path.name).hardlink_to(path)
    with pytest.raises(Unprovable, match="cannot be had"):
        found(replace(wrong, blobs=blobs), tmp_path / "work")


def test_the_commitment_says_what_the_outer_step_is(honest_history: History) -> None:
    manifest, genesis = honest_history.manifest, roots(honest_history)
    terms = outer_terms(manifest, genesis)
    assert terms is not None and terms.coding == (1, 4, 0) and len(terms.stages) == 2
    assert outer_commitment(manifest, genesis) == terms.digest() != outer_commitment(manifest, genesis[::-1])
    assert hex(terms.momentum) == "0x3f666666"
