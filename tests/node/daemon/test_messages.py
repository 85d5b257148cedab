"""Statements on their way through gossip: what goes in comes out, signed by whom; anything else is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlx.ledger.typed import SignatureError, SignedContribution, TypedError
from dlx.node.daemon.messages import event_of, message_of
from dlx.node.round import actions as a
from dlx.node.round import events as e
from dlx.p2p import wire
from tests.node.round.simulation import DOMAIN, RUN, Simulation, digest, make_rules

SIM = Simulation(make_rules(), replicas=1, seed=0)
MEMBER = next(iter(SIM.members.values()))
SIGNED = SIM.contribution(MEMBER, 0)
MADE = 1_800_000_000_123  # ms


def encoded(action: a.Statement) -> bytes:
    return wire.encode(message_of(action, RUN, 0, MADE, MEMBER.sign_report))


def read(data: bytes) -> e.Event | None:
    return event_of(data, "peer", RUN, DOMAIN)


def test_a_contribution_arrives_with_its_signer() -> None:
    assert read(encoded(a.GossipContribution(SIGNED))) == e.ContributionSeen(SIGNED, MEMBER.account, "peer")


@given(st.lists(st.binary(min_size=32, max_size=32), max_size=5), st.integers(0, 2**32 - 1))
def test_a_report_arrives_with_its_signer(names: list[bytes], round: int) -> None:
    seen = read(encoded(a.GossipReport(round, tuple(names), ())))
    assert seen == e.ReportSeen(round, 0, tuple(names), (), MEMBER.account, MADE)


def test_the_same_statement_is_the_same_message_so_that_gossip_knows_a_repetition() -> None:
    action = a.GossipAttestation(3, digest("seal"), bytes(65))
    assert encoded(action) == encoded(action)


def test_a_signature_is_checked_once_however_often_the_statement_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    checks: list[bytes] = []
    signer = SignedContribution.signer
    monkeypatch.setattr(
        SignedContribution, "signer", lambda self, domain: checks.append(self.signature) or signer(self, domain)
    )
    data = encoded(a.GossipContribution(SIM.contribution(MEMBER, 1, loss=77)))
    assert [event_of(data, peer, RUN, DOMAIN) for peer in ("one", "another", "third")][1].peer == "another"  # type: ignore[union-attr]
    assert len(checks) == 1


def test_a_statement_about_another_run_is_none_of_ours() -> None:
    assert read(wire.encode(wire.AttestationMessage(bytes(32), 0, 0, digest("seal"), bytes(65)))) is None
    told_again = wire.encode(wire.ContributionMessage(SIGNED.encode()))
    assert event_of(told_again, "peer", bytes(32), DOMAIN) is None, "one account may work in several runs"


def test_a_signature_that_is_nobodys_and_bytes_that_are_no_statement_are_refused() -> None:
    with pytest.raises(SignatureError):
        read(wire.encode(wire.AttestationMessage(RUN, 0, 0, digest("seal"), bytes(65))))
    with pytest.raises(TypedError):
        read(wire.encode(wire.ContributionMessage(b"\xff" * 961)))
    with pytest.raises(TypedError):
        read(wire.encode(wire.ProposalMessage(RUN, 0, 0, 0, b"\xff" * 209, bytes(65))))
    with pytest.raises(wire.WireError):
        read(wire.encode(wire.RecordsReply([])))
