"""What the machines of a site do to sit together, by the ledger's view alone."""

from dataclasses import replace

import pytest

from dlx.ledger.events import Convicted, EventPosition, Joined, Left, RunCreated, SiteEnlisted, SitePlaced
from dlx.ledger.typed import ANY_STAGE, Domain
from dlx.ledger.view.run_state import ViewError
from dlx.ledger.view.run_view import RunView
from dlx.node.round.rules import sites
from dlx.node.round.rules.sites import ENLISTED_SECONDS, RENEWED_SECONDS, Enlist, TakeSlots, Wait, stays
from tests.ledger.ledger_run import config

RUN, SITE, OTHER_SITE = b"\1" * 32, f"0x{0xA:040x}", f"0x{0xB:040x}"
A, B, C, D, STRANGER = (f"0x{number:040x}" for number in range(1, 6))
NOW = 1_700_000_000
AT = EventPosition(1, bytes(32), 0, bytes(32), NOW)
LATER = replace(AT, time=NOW + 1)


def view(stages: int = 2, max_replicas: int = 3) -> RunView:
    made = RunView(RUN, Domain(31337, D))
    settings = config(stages=stages, min_replicas=1, max_replicas=max_replicas)
    made.apply(RunCreated(RUN, D, settings, "a", (bytes([4]) * 32,) * stages, (D,), AT))
    return made


def enlist(made: RunView, *accounts: str, site: str = SITE, stage: int = ANY_STAGE, until: int = NOW + 1000) -> None:
    for account in accounts:
        made.apply(SiteEnlisted(RUN, account, site, stage, until, AT))


def slot(made: RunView, replica: int, *accounts: str) -> None:
    held = {account for stage, account in enumerate(accounts) if made.member_at(replica, stage) == account}
    made.apply(SitePlaced(RUN, SITE, replica, accounts, AT))
    for stage, account in enumerate(accounts):
        if account not in held:
            made.apply(Joined(RUN, account, replica, stage, AT))
    if not made.is_whole:
        made.apply(made.due[0])  # round 0 opens


def next_step(made: RunView, site: str, account: str, now: int) -> Enlist | TakeSlots | Wait:
    return sites.next_step(made, site, account, now, {A, B, C, D})


def test_who_is_not_enlisted_enlists_and_again_before_it_is_over() -> None:
    made = view()
    assert next_step(made, SITE, A, NOW) == Enlist(NOW + ENLISTED_SECONDS)
    enlist(made, A, site=OTHER_SITE)
    assert next_step(made, SITE, A, NOW) == Enlist(NOW + ENLISTED_SECONDS)
    enlist(made, A, until=NOW + RENEWED_SECONDS)
    assert isinstance(next_step(made, SITE, A, NOW), Wait)
    assert next_step(made, SITE, A, NOW + 1) == Enlist(NOW + 1 + ENLISTED_SECONDS)


def test_all_see_the_same_slots_and_take_turns_to_take_them() -> None:
    made = view()
    enlist(made, B)
    assert next_step(made, SITE, B, NOW) == Wait("the site's other machines: 1 of 2 are here, asking for any stage")
    enlist(made, A)
    assert next_step(made, SITE, A, NOW) == TakeSlots(0, (B, A), 0)
    assert next_step(made, SITE, B, NOW) == TakeSlots(0, (B, A), 1)


def test_each_gets_the_stage_that_it_asks_for() -> None:
    made = view()
    enlist(made, A, stage=1)
    enlist(made, B)
    assert next_step(made, SITE, A, NOW) == TakeSlots(0, (B, A), 0)
    alike = view()
    enlist(alike, A, B, stage=1)
    wait = next_step(alike, SITE, B, NOW)
    assert wait == Wait("the site's other machines: 2 of 2 are here, asking for stage 1, stage 1")


def test_a_replica_with_a_stranger_is_passed_over_and_where_none_is_left_it_waits() -> None:
    made = view(max_replicas=2)
    enlist(made, A, B)
    made.apply(Joined(RUN, STRANGER, 0, 1, AT))
    assert next_step(made, SITE, A, NOW) == TakeSlots(1, (A, B), 0)
    made.apply(Joined(RUN, D, 0, 0, AT))
    made.apply(made.due[0])
    made.apply(Joined(RUN, C, 1, 0, AT))
    assert next_step(made, SITE, A, NOW) == Wait("a replica that nobody else holds a slot of")


def test_machines_beyond_one_replica_wait_for_as_many_more() -> None:
    made = view()
    enlist(made, A, B, C)
    assert next_step(made, SITE, C, NOW) == Wait("more machines of the site: others of it take the next replica")
    slot(made, 0, A, B)
    enlist(made, D)
    assert next_step(made, SITE, C, NOW) == TakeSlots(1, (C, D), 0)


def test_a_machine_that_cannot_be_placed_keeps_no_others_from_their_slots() -> None:
    made = view()
    enlist(made, STRANGER, A, B)  # enlisted, and no node's account any more
    assert next_step(made, SITE, A, NOW) == TakeSlots(0, (A, B), 0)
    enlist(made, STRANGER, stage=0)
    enlist(made, D, stage=0)
    made.apply(Joined(RUN, D, 0, 0, AT))
    made.apply(Left(RUN, D, 0, 0, AT))
    made.apply(Convicted(RUN, D, 0, 0, bytes(32), b"", AT))
    enlist(made, D, stage=0)
    assert next_step(made, SITE, A, NOW + 1) == TakeSlots(0, (A, B), 0)


def test_a_slot_taken_alone_ends_the_consent_to_be_placed() -> None:
    made = view()
    enlist(made, A, B)
    made.apply(Joined(RUN, A, 0, 0, AT))
    made.apply(Left(RUN, A, 0, 0, AT))
    assert made.enlisted_until(A) == 0 and not made.may_slot(SITE, 0, (A, B), NOW + 1)


def test_whoever_comes_back_sits_with_those_who_stayed() -> None:
    made = view()
    enlist(made, A, B)
    slot(made, 0, A, B)
    assert made.site_at(0) == SITE
    made.apply(Left(RUN, B, 0, 1, AT))
    assert made.site_at(0) is None and stays(made, A) is False, "it sits alone"
    enlist(made, C)
    assert next_step(made, SITE, C, NOW + 1) == TakeSlots(0, (A, C), 0)


def test_who_sits_with_its_site_does_not_move_away() -> None:
    made = view(stages=3)
    enlist(made, A, B, C)
    made.apply(Joined(RUN, STRANGER, 0, 0, AT))
    slot(made, 1, A, B, C)
    made.apply(Left(RUN, A, 1, 0, AT))
    assert made.may_move(B, NOW + 1) and stays(made, B)
    assert not stays(made, STRANGER)


@pytest.mark.parametrize(
    ("wrong", "accounts", "replica"),
    [
        ("not enlisted", (A, STRANGER), 0),
        ("of another site", (A, C), 0),
        ("one account twice", (A, A), 0),
        ("too few", (A,), 0),
        ("no such replica", (A, B), 9),
        ("a slot that another holds", (A, B), 1),
        ("too late", (A, D), 0),
    ],
)
def test_slots_that_the_contract_cannot_have_given_are_refused(
    wrong: str, accounts: tuple[str, ...], replica: int
) -> None:
    made = view(max_replicas=2)
    enlist(made, A, B)
    enlist(made, C, site=OTHER_SITE)
    enlist(made, D, until=NOW - 1)
    made.apply(Joined(RUN, STRANGER, 0, 1, AT))
    made.apply(Left(RUN, STRANGER, 0, 1, AT))
    made.apply(Joined(RUN, STRANGER, 0, 0, LATER))
    made.apply(Left(RUN, STRANGER, 0, 0, LATER))
    later = replace(AT, time=NOW + 2)
    if wrong == "a slot that another holds":
        made.apply(Joined(RUN, STRANGER, 0, 0, later))
        replica = 0
    with pytest.raises(ViewError, match="cannot have taken replica"):
        made.apply(SitePlaced(RUN, SITE, replica, accounts, later))
