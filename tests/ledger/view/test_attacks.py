"""What attackers with accounts, gas and a little work could do while votes were counted by accounts, and cannot now."""

import random
from pathlib import Path
from typing import Any

import pytest
from ledger_run import STEPS, config
from story import ACCOUNTS, EVICTION, FOUNDER, MIN, TIMEOUT, Story, names

from dlx.ledger.abi import ZERO_ACCOUNT
from dlx.ledger.events import Accused, Dealt, Dismissed, Evicted, Reclaimed
from dlx.ledger.view import runs
from dlx.ledger.view.run_state import ViewError
from dlx.ledger.view.weights import ENOUGH, FULL
from dlx.node.round.sealing import ALONE_PATIENCE

ROOT = Path(__file__).parents[3]


def page(name: str) -> str:
    return " ".join((ROOT / name).read_text().split())


def weight_of(story: Story, accounts: range, stage: int = 0) -> float:
    """Their part of all."""
    view, now = story.view, story.time
    return view.seal_votes(stage, names(accounts), now) / view.total(stage, now)


def test_a_sixteenth_of_the_work_is_a_sixteenth_of_the_weight():
    """Sixteen slots beside eight honest ones had two thirds of the votes for 3% of the work."""
    honest, few = range(8), range(8, 24)
    story = Story.staffed(24)
    for round in range(64):
        part = {index: 1 for index in few} if round % 8 < 2 else {}
        steps = {index: STEPS for index in honest} | part
        story.seal(0, [*honest, *part], honest, steps=steps)
    assert weight_of(story, few) < 0.1
    story.seal(0, honest, [*honest], founder=None)


def test_noise_earns_what_it_is_counted_for_and_loses_all_with_its_conviction():
    story = Story.staffed(12, horizon=64)
    for _ in range(16):
        story.seal(0, range(12), range(8))
    assert 0.1 < weight_of(story, range(8, 12)) < 0.2
    for index in range(8, 12):
        story.apply(story.convicted(index, [*range(8), len(ACCOUNTS) - 1]))
    assert weight_of(story, range(8, 12)) == 0
    story.work(8, range(8))


def test_before_the_first_seal_accounts_decide_nothing():
    """Seven against three owned the run."""
    story = Story.staffed(10)
    view, now = story.view, story.view.opened_at + 31 * TIMEOUT
    assert view.seal_votes(0, names(range(10)), now) == 0
    assert not view.may_seal(0, names(range(7)), names(range(10)), now)
    assert view.may_seal(0, names(range(7, 10)), [], view.opened_at + 10, founder=True)


def test_nor_does_the_first_to_join_a_run_that_begins_with_one():
    story = Story(stages=1, max_replicas=4, min_replicas=1)
    story.join(3, 0, 0)
    story.open()
    alone = names([3])
    for time in (0, TIMEOUT, 100 * TIMEOUT, 10_000 * TIMEOUT):
        assert not story.view.may_seal(0, alone, alone, story.view.opened_at + time)


def test_who_takes_a_stage_at_birth_is_dismissed():
    """One round of work in thirty timeouts kept every slot of it."""
    story = Story.staffed(3, max_replicas=3)
    story.seal(0, [0], [], wait=TIMEOUT)
    for _ in range(2):
        story.seal(0, [], [], wait=TIMEOUT)
    for index in range(3):
        assert story.view.may_dismiss(FOUNDER, ACCOUNTS[index], story.time)
        story.tell(Dismissed, ACCOUNTS[index], FOUNDER, index, 0, ZERO_ACCOUNT, 0)
    story.time += 1
    for index in range(8, 11):
        story.join(index, index - 8, 0)
    story.seal(0, {0: 0, 1: 1, 2: 2}, [], wait=TIMEOUT)  # of who held the slots when the last round was sealed
    story.work(1, [8, 9, 10])


def test_who_works_a_while_at_birth_and_then_stands_still_is_dismissed():
    """With 25 rounds of honest work a stage's members kept every slot of it, and no round was worked in any more."""
    story = Story.staffed(3, max_replicas=3, horizon=128)
    story.work(25, range(3))
    for _ in range(31):
        story.seal(0, [], range(3), wait=TIMEOUT)
    assert not story.view.may_dismiss(FOUNDER, ACCOUNTS[0], story.time)
    story.seal(0, [], range(3), wait=TIMEOUT)
    assert all(story.view.may_dismiss(FOUNDER, ACCOUNTS[index], story.time) for index in range(3))
    story.work(1, range(3))
    assert not story.view.may_dismiss(FOUNDER, ACCOUNTS[0], story.time)


def test_who_seals_what_it_made_up_is_dismissed_for_the_stage_that_cannot_work_with_it():
    """The stage that stood still was the honest one, so who held the other one could not be dismissed. And who was is
    not back before its successors, nor takes their slots when the founder seals late."""
    story = Story(stages=2, max_replicas=3, min_replicas=3, horizon=128)
    view, honest, captors, successors = story.view, range(3), range(3, 6), range(6, 9)
    for index in range(6):
        story.join(index, index % 3, index // 3)
    story.open()

    def rounds(count: int, **others: Any) -> None:
        for _ in range(count):
            story.seal(1, captors, captors)
            story.seal(0, **others)

    rounds(18, counted=honest, signers=honest)
    rounds(31, counted=[], signers=honest, wait=TIMEOUT)
    assert not any(view.may_dismiss(FOUNDER, ACCOUNTS[index], story.time) for index in captors)
    rounds(1, counted=[], signers=honest, wait=TIMEOUT)
    assert not view.may_dismiss(ACCOUNTS[0], ACCOUNTS[3], story.time)
    for index in captors:
        assert view.may_dismiss(FOUNDER, ACCOUNTS[index], story.time)
        story.tell(Dismissed, ACCOUNTS[index], FOUNDER, index - 3, 1, ACCOUNTS[index + 3], story.time + EVICTION)
    story.time += 1
    assert [view.free_slot(1, one, story.time) for one in names([3, 9])] == [None, None]
    for index in successors:
        story.join(index, index - 6, 1)
    story.time = view.opened_at + 8 * TIMEOUT + 1
    assert view.reclaimable_from(ACCOUNTS[3], ACCOUNTS[6]) == story.time - 1
    assert not view.may_reclaim(ACCOUNTS[3], ACCOUNTS[6], story.time)
    with pytest.raises(ViewError, match="cannot have taken the slot"):
        story.tell(Reclaimed, ACCOUNTS[3], ACCOUNTS[6], 0, 1)
    story.seal(1, [], [], wait=12 * TIMEOUT)
    story.seal(0, honest, honest)
    story.seal(1, successors, successors, wait=6 * TIMEOUT)


@pytest.mark.parametrize(("rounds", "convict"), [(51, False), (52, True)])
def test_who_has_two_thirds_of_a_stage_convicts_its_successors(rounds: int, convict: bool):
    """A dismissal takes no weight, and time takes none of it in verdicts."""
    story = Story.staffed(3, max_replicas=3, horizon=128)
    story.work(rounds, range(3))
    for _ in range(32):
        story.seal(0, [], range(3), wait=TIMEOUT)
    for index in range(3):
        story.tell(Dismissed, ACCOUNTS[index], FOUNDER, index, 0, ACCOUNTS[8 + index], story.time + EVICTION)
    story.time += 1
    story.join(8, 0, 0)
    assert story.view.may_convict(0, ACCOUNTS[8], names(range(3))) == convict
    told = "Captors with two thirds of their stage, from their 52nd seal on, convict"
    assert told in page("docs/threats.md")


@pytest.mark.parametrize(("members", "last"), [(1, 36), (2, 51), (3, 59), (8, 74)])
def test_the_pages_say_until_when_a_founder_dismisses_equal_members(members: int, last: int):
    """And a founder that dismisses all has their slots and not their weight: its first seal without them takes long."""
    for rounds in (last, last + 1):
        story = Story.staffed(members, max_replicas=members, horizon=128)
        story.work(rounds, range(members))
        for _ in range(32):
            story.seal(0, [], range(members), wait=TIMEOUT)
        everybody = names(range(members))
        able = [story.view.may_dismiss(FOUNDER, account, story.time) for account in everybody]
        assert able == [rounds == last] * members
    told = {3: "Three equal captors outweigh each founder's part from 60 rounds", 8: "work on, eight from 75, made-up"}
    assert told.get(members, "") in page("docs/threats.md")


def test_a_founder_that_dismisses_everybody_has_their_slots_and_not_their_weight():
    story = Story.staffed(8, max_replicas=8, horizon=128, quorum_numerator=5, quorum_denominator=8)
    story.work(74, range(8))
    for _ in range(32):
        story.seal(0, [], range(8), wait=TIMEOUT)
    for index in range(8):
        story.tell(Dismissed, ACCOUNTS[index], FOUNDER, index, 0, ACCOUNTS[8 + index], story.time + EVICTION)
    story.time += 1
    for index in range(8, 16):
        story.join(index, index - 8, 0)
    view, everybody = story.view, names(range(8))

    def may_seal(timeouts: int, *signers: str) -> bool:
        return view.may_seal(0, [], signers, story.time + timeouts * TIMEOUT, founder=not signers)

    assert may_seal(26) and not may_seal(25), "alone"
    assert may_seal(1, *everybody) and view.may_convict(0, ACCOUNTS[8], everybody)
    faded = next(n for n in range(100) if 2 * view.vacuum(0, story.time + n * TIMEOUT) > ENOUGH)
    assert faded == 53
    told = "its own seals come first after 53 T, and the dismissed can convict its puppets at any time"
    assert told in page("docs/threats.md")


@pytest.mark.parametrize(("rounds", "dismissed"), [(51, True), (52, False)])
def test_captors_that_seal_nothing_are_dismissed_as_long_as_a_founder_can_seal_empty_rounds_alone(
    rounds: int, dismissed: bool
):
    """An open round that nobody seals is no empty one: their stage stands still for nobody."""
    story = Story.staffed(3, max_replicas=3, horizon=128)
    story.work(rounds, range(3))
    view, captor = story.view, ACCOUNTS[0]
    story.time = view.opened_at + 1000 * TIMEOUT
    assert not view.may_dismiss(FOUNDER, captor, story.time)
    assert view.may_seal(0, [], [], story.time, founder=True) == dismissed
    if dismissed:
        for _ in range(32):
            story.seal(0, [], [], wait=5 * TIMEOUT)
        assert view.may_dismiss(FOUNDER, captor, story.time)
    assert "After 51 seals not even such a founder can" in page("docs/threats.md")


@pytest.mark.parametrize(("every", "until"), [(30, 56), (20, 23)])
def test_captors_that_let_one_round_of_many_through_while_a_founders_node_seals_the_others_empty(
    every: int, until: int
):
    """In round timeouts: how often. `until` which of their rounds a founder can dismiss them."""
    story = Story.staffed(3, max_replicas=3, horizon=128, rounds=2000)
    view, worked, last = story.view, 0, 0
    while worked < 60:
        begins, patience = view.opened_at, ALONE_PATIENCE  # the round was just worked
        while True:
            late = range(1, 6)
            first = next((n for n in late if view.may_seal(0, [], [], view.opened_at + n * TIMEOUT, founder=True)), 99)
            if view.opened_at + (first + patience) * TIMEOUT > begins + every * TIMEOUT:
                break
            story.seal(0, [], [], wait=(first + patience) * TIMEOUT)
            patience = 1
        if view.may_dismiss(FOUNDER, ACCOUNTS[0], story.time):
            last = worked
        story.work(1, range(3), wait=TIMEOUT)
        worked += 1
    assert last == until, "before their 24th seal a founder can at once"
    told = "So it can dismiss them until their 56th seal. Squatters that let one through in 20 T do not"
    assert told in page("docs/threats.md")


@pytest.mark.parametrize(("silent", "after"), [(6, 5), (7, None)])
def test_more_than_two_thirds_stop_a_stage_by_signing_nothing(silent: int, after: int | None):
    """They hold their slots. With less the others seal late, with or without a founder."""
    story = Story.staffed(10, max_replicas=10, horizon=128)
    story.work(400, range(10))
    view, others = story.view, names(range(silent, 10))

    def first(founder: bool) -> int | None:
        late = (view.opened_at + n * TIMEOUT for n in range(1001))
        return next((n for n, at in enumerate(late) if view.may_seal(0, [], others, at, founder=founder)), None)

    assert first(founder=True) == first(founder=False) == after
    told = "So who holds more than two thirds stops the stage, and with it the run, for as long as it likes"
    assert told in page("docs/threats.md")


def test_a_captor_that_leaves_just_before_its_dismissal_has_its_weight_and_no_more_of_a_slot():
    """It is back if it is the quickest, and dismissed again. In another stage it has no weight, nor in its former."""
    story = Story(stages=2, max_replicas=3, min_replicas=3, horizon=128)
    view = story.view
    for index in range(6):
        story.join(index, index % 3, index // 3)
    story.open()
    for _ in range(25):
        story.seal(1, range(3, 6), range(3, 6))
        story.seal(0, range(3), range(3))
    for _ in range(32):
        story.seal(1, [], range(3, 6), wait=TIMEOUT)
        story.seal(0, [], range(3), wait=TIMEOUT)
    (before,) = story.weights(3, stage=1)
    for _ in range(3):  # as often as it likes
        story.leave(3)
        assert not view.may_dismiss(FOUNDER, ACCOUNTS[3], story.time), "nobody is there"
        story.join(3, 0, 1)
        assert story.weights(3, stage=1) == [before]
        assert view.may_dismiss(FOUNDER, ACCOUNTS[3], story.time)
    story.leave(3)
    story.join(6, 0, 1)  # a successor that was quicker
    story.time = view.opened_at + 100 * TIMEOUT
    assert view.free_slot(1, ACCOUNTS[3], story.time) is None
    assert not view.may_reclaim(ACCOUNTS[3], ACCOUNTS[6], story.time), "founders outweigh it"
    assert view.seal_votes(1, names([3]), view.opened_at) > 0, "it signs as before"
    story.seal(1, [], range(3, 6), wait=100 * TIMEOUT)
    story.leave(0)
    story.join(3, 0, 0)
    assert story.weights(3) == [0], "weight stays where it was earned"
    assert view.seal_votes(1, names([3]), story.time) == 0, "and is nobody's any more"


@pytest.mark.parametrize("slots", [2, 3])
def test_breakers_that_work_in_two_rounds_of_eight_keep_their_slots_and_have_the_weight_of_their_work(slots: int):
    """Of eight in a stage so many break their replicas in the other rounds. Their mates in the other stage lose weight,
    which deals share out. Where those that are left have less than a quorum, a round waits for its timeout."""
    random.seed(slots)  # deals are drawn by what is sealed
    story = Story(stages=2, max_replicas=8, min_replicas=8, horizon=16, quorum_numerator=5, quorum_denominator=8)
    view, breakers, members = story.view, range(slots), (range(8), range(8, 16))
    for index in range(16):
        story.join(index, index % 8, index // 8)
    story.open()
    late = 0
    for round in range(96):
        for replica in range(8):  # as soon as the ledger takes it
            for stage, other in runs.deal_of(view, replica) if view.may_deal(replica) else ():
                story.tell(Dealt, stage, replica, other)
        makers = [_makers(story, stage, members[stage]) for stage in range(2)]
        works = [replica for replica, index in makers[0].items() if round % 8 < 2 or index not in breakers]
        waits = MIN
        for stage in range(2):
            made = {replica: makers[stage][replica] for replica in works}
            signers = [index for index in members[stage] if index not in breakers]
            vouched = view.vacuum(stage, story.time) > 0
            in_time = max(story.time, view.opened_at + MIN), vouched
            wait = MIN if view.may_seal(stage, names(made.values()), names(signers), *in_time) else TIMEOUT
            story.seal(stage, made, signers, founder=FOUNDER if vouched else None, wait=wait)
            waits = max(waits, wait)
        late += waits > MIN
        assert not any(view.is_forfeit(account) for account in names(breakers))
    assert late == 0 if slots == 2 else 0 < late < 32
    assert slots / 40 < weight_of(story, breakers) < slots / 32, "about a fifth of that of as many honest ones"
    assert min(story.weights(*range(8, 16), stage=1)) > FULL / 32, "deals share out what their mates lose"
    assert "Two of eight make no round late, three 10 to 19 of 96" in page("docs/threats.md")


def _makers(story: Story, stage: int, members: range) -> dict[int, int]:
    """Who makes the record of each replica in the stage's next seal."""
    pairs = ((replica, index) for replica in range(8) for index in members)
    return {one: index for one, index in pairs if story.view.admissible(ACCOUNTS[index], stage, one)}


def test_successors_are_safe_from_another_founder_once_both_stages_work():
    story = Story.staffed(3, max_replicas=3, horizon=128)
    story.work(25, range(3))
    for _ in range(40):
        story.seal(0, [], range(3), wait=TIMEOUT)
    story.tell(Dismissed, ACCOUNTS[0], FOUNDER, 0, 0, ACCOUNTS[8], story.time + EVICTION)
    story.time += 1
    story.join(8, 0, 0)
    assert story.view.may_dismiss(FOUNDER, ACCOUNTS[8], story.time)
    story.seal(0, [], range(3), wait=TIMEOUT)
    story.seal(0, [1, 2, 8], [1, 2, 8], wait=4 * TIMEOUT)
    assert not story.view.may_dismiss(FOUNDER, ACCOUNTS[8], story.time)


def test_a_convicted_founder_has_no_slot_and_is_a_founder_still():
    story = Story.staffed(3, max_replicas=4, horizon=128)
    view, founder = story.view, len(ACCOUNTS) - 1
    story.join(founder, 3, 0)
    story.work(55, range(3))
    for _ in range(32):
        story.seal(0, [], range(3), wait=TIMEOUT)
    story.apply(story.convicted(founder, range(3)))
    assert view.is_convicted(FOUNDER) and view.slot_of(FOUNDER) is None
    assert view.seal_votes(0, [], story.time, founder=True) == view.vacuum(0, story.time) > 0
    assert view.may_dismiss(FOUNDER, ACCOUNTS[0], story.time)


def test_a_captor_that_lets_an_eighth_of_the_rounds_through_is_not_dismissed():
    """In every stage, while its own stage seals each round: so it has earned all of that before it can be."""
    story = Story(stages=2, max_replicas=3, min_replicas=3, horizon=128)
    for index in range(6):
        story.join(index, index % 3, index // 3)
    story.open()
    for round in range(89):
        works = round < 24 or round % 8 == 0
        story.seal(1, range(3, 6), range(3, 6))
        story.seal(0, range(3) if works else [], range(3), wait=MIN if works else TIMEOUT)
        assert story.view.may_dismiss(FOUNDER, ACCOUNTS[3], story.time) == (round < 23)
    assert story.view.vacuum(1, story.time) == 0


def test_a_founder_dismisses_nobody_of_a_stage_that_has_earned_half_of_all_weight():
    """Whatever it does to another stage: of its own nobody works, and it seals nothing there."""
    story = Story(stages=2, max_replicas=3, min_replicas=3, horizon=128)
    for index in range(6):
        story.join(index, index % 3, index // 3)
    story.open()
    for _ in range(89):
        story.seal(1, range(3, 6), range(3, 6))
        story.seal(0, [], [], wait=TIMEOUT)
    assert runs.stands_still(story.view, 0) and story.view.vacuum(1, story.time) == 0
    assert not any(story.view.may_dismiss(FOUNDER, ACCOUNTS[index], story.time) for index in range(3, 6))


def test_work_in_one_round_of_many_keeps_no_stage_from_its_founders():
    story = Story.staffed(3, max_replicas=3, horizon=128)
    story.work(25, range(3))
    while not story.view.may_dismiss(FOUNDER, ACCOUNTS[0], story.time):
        assert story.view.next_round(0) < 256
        for _ in range(31):
            story.seal(0, [], range(3), wait=TIMEOUT)
        story.work(1, range(3))
    assert story.view.stages[0].empties == 0


def test_founders_do_not_dismiss_who_outweighs_them_for_what_another_stage_does():
    story = Story.staffed(1, max_replicas=1, horizon=128)
    story.work(60, [0])
    for _ in range(40):
        story.seal(0, [], [0], wait=TIMEOUT)
    assert story.view.vacuum(0, story.time) > 0
    assert not story.view.may_dismiss(FOUNDER, ACCOUNTS[0], story.time)


def test_who_has_earned_all_weight_is_not_dismissed_however_long_others_stand_still():
    """A run whose other stage does nothing is not its founders' for that."""
    story = Story.staffed(3, max_replicas=3, horizon=128)
    story.work(89, range(3))
    for _ in range(40):
        story.seal(0, [], range(3), wait=TIMEOUT)
    assert not story.view.may_dismiss(FOUNDER, ACCOUNTS[0], story.time)


def test_slots_that_are_taken_in_an_outage_are_taken_back():
    """One member evicted a whole stage in an outage of minutes, and held its slots for good with answers alone."""
    story = Story.staffed(3, max_replicas=3, horizon=128)
    view = story.view
    story.work(130, range(3))
    for index in range(3):
        story.leave(index)
    story.time += 1
    for index in range(8, 11):
        story.join(index, index - 8, 0)
    for index in range(8, 11):  # leaving and joining again puts nothing off
        story.time = view.opened_at + 8 * TIMEOUT - 12 + index
        story.leave(index)
        story.time += 1
        story.join(index, index - 8, 0)
    story.time = view.opened_at + 8 * TIMEOUT
    assert not view.may_reclaim(ACCOUNTS[0], ACCOUNTS[8], story.time)
    story.time += 1
    assert view.may_reclaim(ACCOUNTS[0], ACCOUNTS[8], story.time)
    assert not view.may_reclaim(ACCOUNTS[7], ACCOUNTS[8], story.time), "who has no weight"
    with pytest.raises(ViewError, match="cannot have taken the slot"):
        story.tell(Reclaimed, ACCOUNTS[7], ACCOUNTS[8], 0, 0)
    for index in range(3):
        story.tell(Reclaimed, ACCOUNTS[index], ACCOUNTS[8 + index], index, 0)
        story.join(index, index, 0)
    assert [view.member_at(replica, 0) for replica in range(3)] == [*names(range(3))]
    assert not any(view.may_reclaim(by, one, story.time + 99 * TIMEOUT) for by in ACCOUNTS for one in names(range(3)))
    story.work(1, range(3))


def test_a_little_work_before_an_outage_keeps_no_slot_from_who_did_more():
    """Accounts that were each counted once held the slots of a stage that stood still for good."""
    story = Story.staffed(2, max_replicas=3, horizon=128)
    view = story.view
    story.work(100, range(2))
    story.join(8, 2, 0)
    story.work(1, range(2))
    story.work(1, [0, 1, 8])
    for index in (0, 1, 8):
        story.leave(index)
    story.time += 1
    for replica, index in enumerate((8, 9, 10)):
        story.join(index, replica, 0)
    story.time += 8 * TIMEOUT + 1
    assert all(view.may_reclaim(ACCOUNTS[0], ACCOUNTS[index], story.time) for index in (8, 9, 10))
    story.leave(8)
    assert not any(view.may_reclaim(ACCOUNTS[8], ACCOUNTS[index], story.time) for index in (9, 10)), "a little weight"


def test_newcomers_keep_their_slots_where_another_is_free_or_their_stage_has_sealed():
    """Who had left some weight threw out newcomers of its choice, wherever they went."""
    story = Story(stages=2, min_replicas=2, max_replicas=3, horizon=128)
    view = story.view
    for index in range(4):
        story.join(index, index // 2, index % 2)
    story.open()
    for _ in range(60):
        for stage in range(2):
            story.seal(stage, [stage, 2 + stage], [stage, 2 + stage])
    story.leave(2)
    story.time += 1
    story.join(8, 1, 0)
    story.time += 9 * TIMEOUT
    assert not view.may_reclaim(ACCOUNTS[2], ACCOUNTS[8], story.time), "a slot is free"
    story.join(9, 2, 0)
    assert view.may_reclaim(ACCOUNTS[2], ACCOUNTS[8], story.time)
    story.seal(0, [0], [0], wait=0)
    assert not view.may_reclaim(ACCOUNTS[2], ACCOUNTS[8], story.time), "the other stage is what the round waits for"


def test_work_in_two_rounds_of_eight_stops_none_of_the_others():
    """Four of nine that did made every other round take four timeouts."""
    honest, part = range(5), range(5, 9)
    story = Story.staffed(9)
    for round in range(64):
        counted = range(9) if round % 8 < 2 else honest
        if story.view.vacuum(0, story.time):
            story.seal(0, counted, honest)
        else:
            story.seal(0, counted, honest, founder=None)
    assert weight_of(story, part) < 1 / 3


def test_who_never_signs_does_not_stop_a_young_run():
    """Two of three that did stopped it for 32 timeouts; then the honest slot was forfeit."""
    story = Story.staffed(3)
    for _ in range(8):
        story.seal(0, [0], [0])
    assert not story.view.is_forfeit(ACCOUNTS[0]) and story.view.is_forfeit(ACCOUNTS[2])
    story.work(8, [0], founder=None)


def test_empty_seals_take_no_slot_from_anybody():
    """The neighbours of a stage that sealed what nobody could use sealed empty rounds, and lost their slots."""
    story = Story.staffed(4)
    story.work(40, range(4))
    for _ in range(33):
        story.seal(0, [], range(4), wait=TIMEOUT, founder=None)
    assert not any(story.view.is_forfeit(account) for account in names(range(4)))
    assert min(story.weights(*range(4))) > FULL // 5
    story.work(1, range(4), founder=None)


def test_an_outage_is_no_exile():
    """Two of six evicted four that had no chain for three minutes, and convicted them."""
    story = Story.staffed(6)
    story.work(60, range(6))
    story.time = story.view.opened_at + TIMEOUT + 1
    for index in range(2, 6):
        story.tell(Accused, ACCOUNTS[index], ACCOUNTS[0], False)
    story.time += EVICTION
    for index in range(2, 6):
        story.tell(Evicted, ACCOUNTS[index], index, 0, story.time + EVICTION)
    view, left = story.view, story.time
    assert not any(view.may_convict(0, ACCOUNTS[index], names([0, 1])) for index in range(2, 6)), "time changes nothing"
    assert not view.may_seal(0, names([0, 1]), names([0, 1]), left + 30)
    before = weight_of(story, range(2, 6))
    story.time = left + 20 * TIMEOUT
    for index in range(2, 6):
        story.join(index, index, 0)
    assert abs(weight_of(story, range(2, 6)) - before) < 0.01


def test_who_stays_alone_does_not_seal_alone():
    """After four of six left, the two that stayed sealed the same round."""
    story = Story.staffed(6)
    story.work(60, range(6))
    for index in range(2, 6):
        story.leave(index)
    rest = names([0, 1])
    view, opened = story.view, story.view.opened_at
    first = next(n for n in range(1, 1000) if view.may_seal(0, rest, rest, opened + n * TIMEOUT))
    assert first >= 3 and not view.may_seal(0, rest[:1], rest[:1], opened + 20 * TIMEOUT)


def test_no_smallest_number_of_replicas_shields_a_liar():
    """`min_replicas` above the living made a quorum of verdicts impossible."""
    story = Story.staffed(6)
    for _ in range(60):
        story.seal(0, range(4), range(4))
    assert story.view.may_convict(0, ACCOUNTS[3], names([0, 1, 2]))


def test_half_of_the_weight_stops_a_stage_no_longer_than_three_timeouts_and_convicts_nobody():
    """It stopped it for 32 and then won it. Now either half may seal: whose transaction is first decides."""
    story = Story.staffed(4)
    story.work(60, range(4))
    half, opened = names([0, 1]), story.view.opened_at
    found = [story.view.may_seal(0, half, half, opened + TIMEOUT + n * TIMEOUT) for n in range(5)]
    assert found == [False, False, True, True, True]
    assert not story.view.may_convict(0, ACCOUNTS[3], half)


def test_a_lone_newcomer_owns_no_abandoned_stage():
    story = Story.staffed(3)
    story.work(60, range(3))
    for index in range(3):
        story.leave(index)
    story.seal(0, {0: 0, 1: 1, 2: 2}, range(3))
    story.join(8, 0, 0)
    for time in (0, 100 * TIMEOUT, 10_000 * TIMEOUT):
        now = story.view.opened_at + time
        assert not story.view.may_seal(0, names([8]), names([8]), now)
    assert story.view.vacuum(0, now) > ENOUGH * 9 // 10, "it is its founders' again"


def test_moving_from_account_to_account_multiplies_no_weight():
    """Working, leaving, and working with a fresh account kept the weight of both."""
    story = Story.staffed(5, max_replicas=16)
    story.work(60, range(5))
    for index in range(8, 16):
        story.leave(4 if index == 8 else index - 1)
        story.join(index, 4, 0)
        story.seal(0, range(4), range(4))
        story.work(8, [*range(4), index])
    hopper = names([4, *range(8, 16)])
    assert story.view.seal_votes(0, hopper, story.time) / story.view.total(0, story.time) < 0.22


@pytest.mark.parametrize(
    "absurd",
    [
        {"tokens_per_step": 2**64 - 1},
        {"round_timeout": 2**32 - 1, "min_round_time": 1},
        {"quorum_numerator": 1, "quorum_denominator": 65535},
        {"horizon": 1024, "max_replicas": 64},
        {"bond": 2**128 - 1},
    ],
)
def test_absurd_terms_are_refused(absurd):
    assert runs.config_problem(config(**absurd))
