"""Statements on their way through gossip: what goes in comes out, signed by whom; anything else is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlx.ledger.typed import SignatureError, TypedError
from dlx.node.daemon.messages import event_of, message_of
from dlx.node.round import actions as a
from dlx.node.round import events as e
from dlx.p2p import wire
from tests.node.round.simulation import DOMAIN, RUN, Simulation, digest, make_rules

SIM = Simulation(make_rules(), replicas=1, seed=0)
MEMBER = next(iter(SIM.members.values()))
SIGNED = SIM.contribution(MEMBER, 0)


def through_the_wire(action) -> e.Event | None:  # type: ignore[no-untyped-def]
    message = wire.decode(wire.encode(message_of(action, RUN, 0, DOMAIN, MEMBER.key)))
    return event_of(message, "peer", RUN, DOMAIN)  # type: ignore[arg-type]


def test_a_contribution_arrives_with_its_signer() -> None:
    assert through_the_wire(a.GossipContribution(SIGNED)) == e.ContributionSeen(SIGNED, MEMBER.account, "peer")


@given(st.lists(st.binary(min_size=32, max_size=32), max_size=5), st.integers(0, 2**32 - 1))
def test_a_report_arrives_with_its_signer(names: list[bytes], round: int) -> None:
    seen = through_the_wire(a.GossipReport(round, tuple(names), ()))
    assert seen == e.ReportSeen(round, 0, tuple(names), (), MEMBER.account)


def test_repetitions_differ_so_that_gossip_does_not_drop_them() -> None:
    action = a.GossipAttestation(3, digest("seal"), bytes(65))
    first, second = (wire.encode(message_of(action, RUN, 0, DOMAIN, MEMBER.key)) for _ in range(2))
    assert first != second


def test_a_statement_about_another_run_is_none_of_ours() -> None:
    message = wire.AttestationMessage(bytes(8), bytes(32), 0, 0, digest("seal"), bytes(65))
    assert event_of(message, "peer", RUN, DOMAIN) is None


def test_a_signature_that_is_nobodys_and_bytes_that_are_no_statement_are_refused() -> None:
    with pytest.raises(SignatureError):
        event_of(wire.AttestationMessage(bytes(8), RUN, 0, 0, digest("seal"), bytes(65)), "peer", RUN, DOMAIN)
    with pytest.raises(TypedError):
        event_of(wire.ContributionMessage(bytes(8), b"\xff" * 929), "peer", RUN, DOMAIN)
    with pytest.raises(TypedError):
        event_of(wire.ProposalMessage(bytes(8), RUN, 0, 0, 0, b"\xff" * 209, bytes(65)), "peer", RUN, DOMAIN)
