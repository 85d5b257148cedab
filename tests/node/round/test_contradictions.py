"""Two seals of one signer that contradict each other: noticed in whatever order they come, and once."""

from dataclasses import replace

from dlx.ledger.bonds import TwoSeals
from dlx.ledger.typed import Seal
from dlx.node.round.round_state import Proposal, RoundState
from tests.node.made_statements import DOMAIN, digest, seal

A, B = "a", "b"


def proposed(state: RoundState, made: Seal) -> bytes:
    name = made.digest(DOMAIN)
    state.propose(name, Proposal(made, 0, A, 0.0))
    return name


def signed(state: RoundState, name: bytes, *signers: str) -> list[tuple[TwoSeals, str]]:
    found = []
    for signer in signers:
        state.sign(name, signer, (signer * 65).encode())
        found += state.contradictions(name)
    return found


def test_a_signer_of_two_versions_of_the_same_records_is_found_once() -> None:
    state = RoundState(4)
    first, second, third = (proposed(state, seal(next=next)) for next in (50, 51, 52))
    assert signed(state, first, A, B) == []
    ((evidence, signer),) = signed(state, second, A)
    assert signer == A
    assert {evidence.first.seal.outcome.weights, evidence.second.seal.outcome.weights} == {digest(50), digest(51)}
    assert evidence.first.signature == evidence.second.signature == b"a" * 65
    assert signed(state, second, A) == [] and signed(state, third, A) == []


def test_a_signature_may_come_before_its_proposal() -> None:
    state, late = RoundState(4), seal(next=51)
    first = proposed(state, seal(next=50))
    assert signed(state, first, A, B) == []
    assert signed(state, late.digest(DOMAIN), A, B) == [], "nobody knows yet what it says"
    proposed(state, late)
    assert sorted(signer for _, signer in state.contradictions(late.digest(DOMAIN))) == [A, B]


def test_other_seals_of_one_round_are_honest() -> None:
    state, made = RoundState(4), seal()
    others = (
        replace(made, previous=digest(9), outcome=replace(made.outcome, weights=digest(9))),
        seal(next=51, multipliers=(32767,)),
        replace(made, outcome=replace(made.outcome, inner_steps=9)),
    )
    for one in (made, *others):
        assert signed(state, proposed(state, one), A) == []
