"""Proofs of one element: each wrong bit can be proven, and nothing is proven of a version that is right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dlx.ground.merkle import file_root
from dlx.ledger.outer_proofs import History, Shown
from dlx.node.audit.element_proof import Element, element_at, header_openings, wrong_byte
from dlx.training.recipe.recipe import Outer
from tests.contracts.sealed import RUN, SHAPES, STAGE, Stage
from tests.contracts.solidity import Chain, Refused

NESTEROV, HEAVY = Outer(lr=0.7, momentum=0.9, nesterov=True), Outer(lr=0.7, momentum=0.9)
PLAIN = Outer(lr=1.0)
KINDS = ["int4", "int8", "ternary", "topk"]
NAMES = sorted(SHAPES)


def stage(folder: Path, kind: str = "int4", outer: Outer = NESTEROV, **more: Any) -> Stage:
    return Stage(Chain(), folder, kind, outer, **more)


def elements(one: Stage, tensor: int, some: int) -> list[int]:
    """Of a tensor: the first, the last, some that the newest payload changes, and any."""
    size = int(np.prod(list(one.shapes.values())[tensor]))
    changed = np.flatnonzero(one.gradients[-1][NAMES[tensor]])
    return [0, size - 1, *(int(one.rng.choice(changed)) for _ in range(some)), int(one.rng.integers(size))]


def refusal(one: Stage, *args: Any, function: str = "prove") -> str:
    with pytest.raises(Refused) as error:
        one.proofs.read(function, *args)
    return str(error.value)


def flip(tensor: str, number: int, bit: int, of_momentum: bool = False) -> Any:
    def spoil(version: Any, momentum: Any) -> None:
        (momentum if of_momentum else version)[tensor].reshape(-1).view(np.uint32)[number] ^= np.uint32(1 << bit)

    return spoil


@pytest.mark.parametrize(
    ("kind", "outer"), [*((kind, NESTEROV) for kind in KINDS), ("int4", HEAVY), ("int4", PLAIN), ("topk", PLAIN)]
)
def test_no_element_of_a_right_version_is_disproved(tmp_path, kind, outer):
    one = stage(tmp_path, kind, outer)
    one.empty()
    one.step([20, 5, 7], [32768, 32768, 0])
    one.empty()
    one.step([20, 20], [30001, 65535])
    one.empty()
    for tensor in range(len(SHAPES)):
        for number in elements(one, tensor, 1):
            for of_momentum in (False, True)[: 1 + (outer.momentum > 0)]:
                for round in (1, 3)[not of_momentum :]:
                    assert refusal(one, one.proof(round, Element(of_momentum, tensor, number))) == "NothingWrong"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("of_momentum", [False, True])
def test_each_wrong_bit_is_proven(tmp_path, kind, of_momentum):
    one = stage(tmp_path, kind)
    one.step([20, 5], [32768, 32768])
    for bit in (0, 12, 23, 30, 31):
        tensor = int(one.rng.integers(len(NAMES)))
        number = elements(one, tensor, 0)[int(one.rng.integers(2))]
        made = one.step([20, 11], [32768, 20000], flip(NAMES[tensor], number, bit, of_momentum))
        round = len(one.rounds) - 1
        assert (
            refusal(one, one.proof(round, Element(of_momentum, tensor, number - 1 if number else 1))) == "NothingWrong"
        )
        executed = one.proofs.write("prove", one.proof(round, Element(of_momentum, tensor, number)))
        assert one.proofs.read("disproved", made.digest)
        words = [executed.logs[-1].data[at : at + 32] for at in range(0, 192, 32)]
        right = (one.right_momentum if of_momentum else one.right)[NAMES[tensor]].reshape(-1).view(np.uint32)[number]
        values = [int.from_bytes(word, "big") for word in words]
        assert values == [int.from_bytes(made.digest, "big"), of_momentum, tensor, number, right ^ (1 << bit), right]
    assert one.proofs.read("firstDisproved", RUN, STAGE) == 1
    assert one.proofs.read("firstDisproved", RUN, STAGE + 1) == 2**32 - 1


@pytest.mark.parametrize("count", [1, 2, 8, pytest.param(32, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_whole_elements_of_many_payloads(tmp_path, kind, count):
    """What the contract says is right is what numpy says, whatever steps, multipliers and scales."""
    one = stage(tmp_path, kind, shapes={"a.weight": (67, 130), "d": (500,)})
    one.step([3], [32768])
    for _ in range(3):
        steps = [int(n) for n in one.rng.integers(1, 60, count)]
        multipliers = [int(n) for n in one.rng.choice([0, 1, 20000, 32768, 65535], count)]
        number = int(one.rng.integers(67 * 130))
        one.step(steps, multipliers, flip("a.weight", number, 3))
        proof = one.proof(len(one.rounds) - 1, Element(False, 0, number))
        first = 0
        while first < len(proof.shown) or not first:
            shown = proof.shown[first : first + 16]
            executed = one.proofs.write("prove", proof._replace(first=first, shown=shown))
            first += len(shown) or 1
        right = int(one.right["a.weight"].reshape(-1).view(np.uint32)[number])
        assert int.from_bytes(executed.logs[-1].data[160:192], "big") == right


def test_what_straddles_two_grains_is_shown_by_both(tmp_path):
    """The second tensor's first scale lies at bytes 1,023 and 1,024 of a ternary payload."""
    one = stage(tmp_path, "ternary", shapes={"a": (5035,), "b": (700,)})
    one.step([20, 5], [32768, 32768])
    one.step([20, 5], [32768, 32768], flip("b", 3, 0))
    proof = one.proof(1, Element(False, 1, 3))
    assert [len(shown.openings) for shown in proof.shown] == [3, 3]
    assert refusal(one, one.proof(1, Element(False, 1, 2))) == "NothingWrong"
    one.proofs.write("prove", proof)


def test_values_that_are_no_numbers(tmp_path):
    """A false version may hold what no honest one does; what follows from it rightly is right all the same."""
    special = np.array(
        [0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00001, 0x7F800001, 0x7F7FFFFF, 1, 0x80000001, 0x80000000]
    )

    def spoil(version: Any, momentum: Any) -> None:
        version["d"].view(np.uint32)[: len(special)] = special
        momentum["d"].view(np.uint32)[len(special) : 2 * len(special)] = special
        momentum["d"].view(np.uint32)[: len(special)] = special[::-1]

    one = stage(tmp_path)
    with np.errstate(all="ignore"):
        one.step([20], [32768], spoil)
        one.step([20, 4], [32768, 32768])
    for number in range(2 * len(special)):
        for of_momentum in (False, True):
            assert refusal(one, one.proof(1, Element(of_momentum, 3, number))) == "NothingWrong"


# -------------------------------------------------------------------------------------------- what must not pass


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """Rounds 0 (empty), 1, 2 (empty), 3 and 4, of which the last is wrong in one element."""
    one = stage(tmp_path_factory.mktemp("stage"))
    one.empty()
    one.step([20, 5, 9], [32768, 32768, 20000])
    one.empty()
    one.step([20, 5, 9], [32768, 32768, 20000])
    one.step([20, 5, 9], [32768, 32768, 20000], flip("d", 77, 2))
    return one


WRONG = Element(False, 3, 77)


def test_an_opening_leads_to_the_root(attacked):
    proof = attacked.proof(3, WRONG)
    for number, (grain, path) in enumerate(proof.state):
        for other in (
            (bytes([grain[0] ^ 1]) + grain[1:], path),
            (grain, [*path[:-1], bytes(32)]),
            (grain, path[:-1]),
            (grain, [*path, bytes(32)]),
            (grain[:-1], path),
            (grain + b"\0", path),
        ):
            state = [*proof.state[:number], other, *proof.state[number + 1 :]]
            assert refusal(attacked, proof._replace(state=state)) == "WrongOpening"
    elsewhere = attacked.proof(3, Element(False, 0, 0))
    assert refusal(attacked, proof._replace(state=elsewhere.state)) == "WrongOpening"
    assert refusal(attacked, proof._replace(shown=elsewhere.shown)) == "WrongOpening"
    assert refusal(attacked, proof._replace(state=proof.state[::-1])) == "WrongOpening"
    assert refusal(attacked, proof._replace(state=proof.state[:-1])) == "OpeningMissing"
    shown = [Shown(proof.shown[0].statement, ()), *proof.shown[1:]]
    assert refusal(attacked, proof._replace(shown=shown)) == "OpeningMissing"


def test_a_seal_is_in_the_ledgers_history(attacked):
    proof = attacked.proof(3, WRONG)
    history, other = proof.history, attacked.proof(4, WRONG)
    for changed in (
        history._replace(seals=history.seals[:-1]),  # no longer the head
        history._replace(seals=history.seals[:1] + history.seals[2:]),
        history._replace(seals=history.seals[::-1]),
        history._replace(round=history.round + 1),
        history._replace(round=0),
        history._replace(previous=bytes(32)),
        history._replace(run=bytes(32)),
        history._replace(stage=0),
        History(RUN, STAGE, 3, bytes(32), ()),
    ):
        assert refusal(attacked, proof._replace(history=changed)) == "NotInHistory"
        assert refusal(attacked, changed, function="note") == "NotInHistory"
    assert refusal(attacked, proof._replace(history=other.history, number=other.number)) == "WrongRecords"


def test_the_version_before_is_the_newest_that_was_sealed(attacked):
    """Not an older one, not the genesis, and not one that an empty seal stands for."""
    for first in (2, 3):
        assert refusal(attacked, attacked.proof(3, WRONG, first=first)) == "NoBase"
    assert refusal(attacked, attacked.proof(3, WRONG, first=0)) == "NothingWrong"  # the one between is found
    proof = attacked.proof(3, WRONG)
    empty = proof._replace(number=1, records=b"", shown=())
    assert refusal(attacked, empty) == "WrongRecords"


def test_terms_are_those_of_the_run(attacked):
    proof = attacked.proof(3, WRONG)
    terms, table = proof.terms, proof.stage
    for changed in (
        terms._replace(lr=terms.lr + 1),
        terms._replace(momentum=0),
        terms._replace(nesterov=False),
        terms._replace(coding=terms.coding._replace(level=8)),
        terms._replace(stages=[table.digest(), table.digest()]),
    ):
        assert refusal(attacked, proof._replace(terms=changed)) == "WrongTerms"
    for other in (
        table._replace(header=table.header + 4),
        table._replace(genesis=bytes(32)),
        table._replace(counts=table.counts[8:] + table.counts[:8]),
    ):
        assert refusal(attacked, proof._replace(stage=other)) == "WrongTerms"


def test_contributions_are_those_of_the_seal(attacked):
    proof = attacked.proof(3, WRONG)
    records = [proof.records[at : at + 44] for at in range(0, len(proof.records), 44)]
    for changed in (records[::-1], records[:2], [*records, records[0]], [records[0], records[0], records[2]]):
        assert refusal(attacked, proof._replace(records=b"".join(changed))) == "WrongRecords"
    assert refusal(attacked, proof._replace(shown=proof.shown[::-1])) == "WrongStatement"
    assert refusal(attacked, proof._replace(shown=[*proof.shown, proof.shown[0]])) == "TooMany"
    assert refusal(attacked, proof._replace(first=1, shown=proof.shown[1:])) == "NotSummed"
    spoilt = Shown(proof.shown[0].statement[:-1] + b"\0", proof.shown[0].openings)
    assert refusal(attacked, proof._replace(shown=[spoilt, *proof.shown[1:]])) == "WrongStatement"


def test_there_are_no_elements_beyond_a_tensor(attacked):
    proof = attacked.proof(3, WRONG)
    assert refusal(attacked, proof._replace(element=5000)) == "NoSuchElement"
    assert refusal(attacked, proof._replace(tensor=4)) == "NoSuchElement"


def test_a_run_without_momentum_has_no_element_of_it(tmp_path):
    one = stage(tmp_path, outer=PLAIN)
    one.step([20], [32768])
    assert refusal(one, one.proof(0, WRONG)._replace(of_momentum=True)) == "NoMomentum"


def test_contributions_may_come_in_several_transactions(attacked):
    proof = attacked.proof(4, WRONG)
    one = attacked.proofs
    one.write("prove", proof._replace(shown=proof.shown[:1]))
    assert refusal(attacked, proof._replace(first=2, shown=proof.shown[2:])) == "NotSummed"
    other = attacked.proof(4, Element(False, 3, 78))
    assert refusal(attacked, other._replace(first=1, shown=other.shown[1:])) == "NotSummed"
    one.write("prove", proof._replace(first=1, shown=proof.shown[1:2]))
    snapshot = attacked.rounds[4].digest
    assert not one.read("disproved", snapshot)
    one.read("prove", proof._replace(first=2, shown=proof.shown[2:]))


def test_a_history_may_end_at_a_seal_that_was_noted(tmp_path):
    one = stage(tmp_path)
    one.step([20], [32768], flip("d", 77, 2))
    one.proofs.write("note", History(RUN, STAGE, 1, one.head, ()))
    proof = one.proof(0, WRONG)
    for _ in range(4):
        one.empty()
    assert refusal(one, proof._replace(history=one.history(0, 2))) == "NotInHistory"
    one.proofs.write("note", one.history(2))  # from the head down to round 1
    one.proofs.read("prove", proof._replace(history=one.history(0, 2)))
    one.proofs.write("prove", proof)


def test_a_made_up_seal_is_no_history_though_it_is_a_genesis(tmp_path):
    """A thief's own run begins with the digest of a seal that it made up of an honest run."""
    one = stage(tmp_path)
    one.step([20], [32768], flip("d", 77, 2))
    made_up, own = one.head, b"own".ljust(32, b"\0")
    proof = one.proof(0, WRONG)
    one.ledger.write("setHead", RUN, STAGE, bytes(31) + b"\1", 1)  # what the honest run has sealed
    one.ledger.write("setHead", own, STAGE, made_up, 0)
    for history in (History(own, STAGE, 0, made_up, ()), History(own, STAGE, 1, made_up, ())):
        assert refusal(one, history, function="note") == "NotInHistory"
    assert refusal(one, proof) == "NotInHistory"
    one.ledger.write("setHead", own, STAGE, made_up, 1)  # even where it were sealed there
    one.proofs.write("note", History(own, STAGE, 1, made_up, ()))
    assert refusal(one, proof) == "NotInHistory"
    one.ledger.write("setHead", RUN, STAGE, made_up, 0)  # a creator's own run
    assert refusal(one, proof) == "NotInHistory"


# ------------------------------------------------------------------------------------ what no honest member counts


@pytest.mark.parametrize(("kind", "spoilt"), [("int4", b"\x00\x7c"), ("ternary", b"\xff\xff"), ("int8", b"\x00\x80")])
def test_a_scale_that_no_codec_makes_is_a_proof(tmp_path, kind, spoilt):
    one = stage(tmp_path, kind)
    one.spoil_payload = lambda data: spoilt + data[2:]
    made = one.step([20], [32768])
    one.proofs.write("prove", one.proof(0, Element(False, 0, 1)))
    assert one.proofs.read("disproved", made.digest)


def test_magnitudes_that_no_codec_makes_are_a_proof(tmp_path):
    one = stage(tmp_path, "topk")
    one.spoil_payload = lambda data: b"\xff\x7b" + data[2:]  # low is not below high
    one.step([20], [32768])
    kept = int(np.flatnonzero(one.gradients[0][NAMES[0]])[0])
    one.proofs.write("prove", one.proof(0, Element(False, 0, kept)))
    assert refusal(one, one.proof(0, Element(False, 3, 1))) == "NothingWrong"  # another tensor says nothing of it


def test_a_statement_of_another_size_is_a_proof(tmp_path):
    one = stage(tmp_path)
    one.spoil_words = lambda words: [*words[:7], bytes(31) + b"\1", *words[8:]]
    made = one.step([20], [32768])
    one.proofs.write("prove", one.proof(0, WRONG))
    assert one.proofs.read("disproved", made.digest)


# ----------------------------------------------------------------------------------------------------- the header


@pytest.mark.parametrize("of_momentum", [False, True])
def test_a_wrong_byte_of_the_header_is_proven(tmp_path, of_momentum):
    one = stage(tmp_path)
    one.step([20], [32768])

    def spoil(data: bytes) -> bytes:
        return data[:11] + b"?" + data[12:]

    one.spoil_file = {of_momentum: spoil}
    made = one.step([20], [32768])
    assert made.files is not None
    sealed, right = (one.moments, one.right_files[1]) if of_momentum else (one.weights, one.right_files[0])
    offset = wrong_byte(sealed, right)
    assert offset == 8 and element_at(SHAPES, offset, of_momentum) is None
    args = one.history(0), 1, one.terms, one.stage, of_momentum
    assert (
        refusal(one, *args, 10, *header_openings(made.files, 10, of_momentum), function="proveHeader") == "NothingWrong"
    )
    end = one.stage.header
    assert (
        refusal(one, *args, end, *header_openings(made.files, end, of_momentum), function="proveHeader")
        == "NoSuchElement"
    )
    one.proofs.write("proveHeader", *args, 11, *header_openings(made.files, 11, of_momentum))
    assert one.proofs.read("disproved", made.digest)


def test_the_file_finds_the_wrong_element(tmp_path):
    one = stage(tmp_path)
    one.step([20], [32768], flip("c.weight", 2000, 9))
    assert one.weights is not None
    right = one.store(one.right)
    offset = wrong_byte(one.weights, right)
    assert offset is not None and element_at(SHAPES, offset, False) == Element(False, 2, 2000)
    assert wrong_byte(one.weights, one.weights) is None
    assert file_root(one.weights) != file_root(right)
