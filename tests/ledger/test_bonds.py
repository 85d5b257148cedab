"""Invitations and bonds through the real ledger: who gets a slot, what it has at stake, and what takes it."""

import secrets
from dataclasses import replace

import pytest
from ledger_run import NAME, config

from dlx.ledger.abi import ZERO_ACCOUNT
from dlx.ledger.bonds import FalseVersion, NoContradiction, SignedSeal, TwoSeals, TwoStatements, decode_evidence
from dlx.ledger.errors import Reverted
from dlx.ledger.keys import SignatureError, account_of, sign
from dlx.ledger.typed import Invitation, SiteMember, TypedError
from tests.ledger.conftest import key
from tests.node.made_statements import contribution, seal

BOND = 10**15
CREATOR, MEMBER, STRANGER, MATE = 2100, 2101, 2102, 2103


def created(world, **terms):
    creator = world.client(CREATOR)
    settings = config(manifest=secrets.token_bytes(32), **terms)
    return creator.create_run(settings, NAME, [b"\1" * 32] * settings.stages, [creator.account])


def invited(client, run, secret, account=ZERO_ACCOUNT, site=ZERO_ACCOUNT, **times):
    """The invitation, and its signature by the key."""
    now = client.head().time
    made = Invitation(client.ledger, run, account, site, times.get("issued", now), times.get("expiry", now + 3600))
    return made, sign(made.digest(client.chain_id, client.part("Invitations")), secret)


def test_an_invited_run_takes_who_was_invited(embedded):
    run = created(embedded, invited=True)
    creator = embedded.client(CREATOR)
    member, stranger = embedded.members([MEMBER, STRANGER])
    for one in (member, stranger):
        with pytest.raises(Reverted, match="NotInvited") as refused:
            one.join_run(run)
        assert refused.value.arguments == (one.account,), "a site's machines pass over whom it names"
    with pytest.raises(Reverted, match="NotSteward"):
        stranger.admit(*invited(stranger, run, key(STRANGER), stranger.account))
    assert creator.is_steward(run, creator.account) and not creator.is_steward(run, member.account)
    member.admit(*invited(creator, run, key(CREATOR), member.account))
    assert member.is_admitted(run, member.account) and not member.is_admitted(run, stranger.account)
    member.join_run(run)
    creator.set_steward(run, member.account, True)
    stranger.admit(*invited(member, run, key(MEMBER), stranger.account))
    creator.revoke(run, member.account)
    stranger.join_run(run)
    member.leave_run(run)
    with pytest.raises(Reverted, match="NotInvited"):
        member.join_run(run)


def test_a_site_is_invited_with_its_machines(embedded):
    run = created(embedded, invited=True)
    machines = embedded.members([MEMBER, MATE])
    site = key(2199)
    machines[0].admit(*invited(machines[0], run, key(CREATOR), site=account_of(site)))
    until = machines[0].head().time + 3600
    for machine in machines:
        machine.enlist(run, 65535, until, SiteMember(run, machine.account).sign(machine.domain, site))
    machines[0].join_site(run, 0, [machine.account for machine in machines])
    assert machines[1].is_admitted(run, machines[1].account)


def statements(client, run):
    first = replace(contribution(run=run), account=client.account)
    secret = key(MEMBER)
    signed = [one.sign(client.domain, secret) for one in (first, replace(first, payload=b"\7" * 32, exchange_ms=900))]
    return TwoStatements(*signed)


def seals(client, run):
    domain, secret = client.domain, key(MEMBER)
    return TwoSeals(
        *(SignedSeal(one, sign(one.digest(domain), secret)) for one in (seal(run=run), seal(next=9, run=run)))
    )


@pytest.mark.parametrize("show", [statements, seals])
def test_a_bond_is_locked_released_and_slashed(embedded, show):
    run = created(embedded, bond=BOND)
    member, stranger = embedded.members([MEMBER, STRANGER])
    with pytest.raises(Reverted, match="BondMissing"):
        member.join_run(run)
    stranger.deposit(run, member.account, BOND)
    with pytest.raises(Reverted, match="NothingToWithdraw"):
        stranger.withdraw(run)
    member.join_run(run)
    assert member.bond(run, member.account).locked == BOND
    evidence = show(member, run)
    assert evidence.offender(member.domain) == member.account and evidence.place[0] == run
    assert decode_evidence(evidence.encode()) == evidence
    member.leave_run(run)
    bond = member.bond(run, member.account)
    assert (bond.locked, bond.unbonding, bond.at_stake) == (0, BOND, BOND) and bond.free_at > member.head().time
    before = stranger.balance(stranger.account)
    stranger.slash(evidence)
    assert stranger.balance(stranger.account) > before, "the tenth is more than the gas"
    assert member.bond(run, member.account).slashed and not member.bond(run, member.account).at_stake
    with pytest.raises(Reverted, match="NothingAtStake"):
        stranger.slash(evidence)
    member.deposit(run, member.account, BOND)
    with pytest.raises(Reverted, match="IsSlashed"):
        member.join_run(run)
    member.withdraw(run)


def test_what_is_no_evidence_here_is_none_there(embedded):
    """Python and the contract agree on what an honest account may sign."""
    run = created(embedded, bond=BOND)
    member, stranger = embedded.members([MEMBER, STRANGER])
    member.deposit(run, member.account, BOND)
    member.join_run(run)
    domain, secret = member.domain, key(MEMBER)
    two, of_seals = statements(member, run), seals(member, run)
    first = two.first.contribution
    for changes in ({"base_weights": b"\1" * 32}, {"plan": b"\1" * 32}, {"round": 9}, {"stage": 1}):
        other = TwoStatements(two.first, replace(first, loss=9, **changes).sign(domain, secret))
        with pytest.raises(NoContradiction):
            other.offender(domain)
        with pytest.raises(Reverted, match="NoContradiction"):
            stranger.slash(other)
    same = TwoStatements(two.first, two.first)
    with pytest.raises(NoContradiction):
        same.offender(domain)
    with pytest.raises(Reverted, match="NoContradiction"):
        stranger.slash(same)
    forged = TwoStatements(two.first, replace(two.second, signature=two.first.signature))
    with pytest.raises(SignatureError):
        forged.offender(domain)
    with pytest.raises(Reverted, match="SignatureMissing"):
        stranger.slash(forged)
    one = of_seals.first.seal
    later = replace(one, previous=b"\2" * 32, outcome=replace(one.outcome, weights=b"\3" * 32))
    other_seals = TwoSeals(of_seals.first, SignedSeal(later, sign(later.digest(domain), secret)))
    with pytest.raises(NoContradiction):
        other_seals.offender(domain)
    with pytest.raises(Reverted, match="SignatureMissing"):
        stranger.slash(other_seals)
    plans = replace(one, outcome=replace(one.outcome, inner_steps=7))
    with pytest.raises(NoContradiction):
        TwoSeals(of_seals.first, SignedSeal(plans, sign(plans.digest(domain), secret))).offender(domain)
    false = FalseVersion(of_seals.first)
    assert decode_evidence(false.encode()) == false and false.offender(domain) == member.account
    with pytest.raises(Reverted):
        stranger.slash(false)
    assert member.bond(run, member.account).locked == BOND


@pytest.mark.parametrize(
    "data", [b"", b"\0", b"\1", b"\1" + bytes(961), b"\2" + bytes(300), b"\3" + bytes(80), b"\4abc"]
)
def test_bytes_that_are_no_evidence_are_refused(data):
    with pytest.raises(TypedError):
        decode_evidence(data)
