"""The view and the auditor's recount, on events made here. In tests/ledger/test_view_differential.py they come from the
contract."""

import dataclasses
import time
import tracemalloc

import pytest
from ledger_run import PLAN, STEPS, verdicts_of
from story import ACCOUNTS, DOMAIN, EVICTION, FOUNDER, GENESIS, KEYS, MIN, RUN, TIMEOUT, Story, names

from dlx.ledger.abi import ZERO32, ZERO_ACCOUNT
from dlx.ledger.events import (
    Accused,
    Answered,
    CheckpointPublished,
    Convicted,
    Dealt,
    Dismissed,
    Evaluated,
    Evicted,
    Joined,
    Left,
    Moved,
    RunCreated,
    RunOpened,
    Sealed,
)
from dlx.ledger.keys import sign
from dlx.ledger.typed import HONEST, RECORD_SIZE, WITHHELD, Outcome, Plan, entries
from dlx.ledger.view import seals
from dlx.ledger.view.pay import Earning
from dlx.ledger.view.recount import verify_conviction, verify_seal
from dlx.ledger.view.run_state import Accusation, Return, ViewError
from dlx.ledger.view.run_view import MAX_CHECKPOINTS, MAX_EVALUATIONS, RunView
from dlx.ledger.view.weights import ENOUGH, FULL


@pytest.fixture
def story() -> Story:
    """One stage, four replicas with a member each, in round 0."""
    return Story.staffed(4, max_replicas=6)


# ---- weight ----------------------------------------------------------------------------------------------------------


def test_accounts_come_in_numeric_order(story):
    assert story.view.members_in(0) == names(range(4))
    assert list(ACCOUNTS) == sorted(ACCOUNTS, key=lambda a: int(a, 16)) != sorted(ACCOUNTS)


def test_weight_is_earned_by_being_counted_and_not_by_signing(story):
    view = story.view
    assert view.vacuum(0, story.time) == view.total(0, story.time) == ENOUGH
    assert view.seal_votes(0, names(range(4)), story.time) == 0
    story.seal(0, [0, 1, 2], range(4))
    first = story.weights(0, 1, 2, 3)
    assert sum(first) == FULL // 8 and max(first[:3]) - min(first[:3]) <= 1 and first[3] == 0
    assert view.vacuum(0, story.time) == ENOUGH - FULL // 8
    story.work(60, [0, 1, 2])
    assert sum(story.weights(0, 1, 2)) > 0.99 * FULL and view.vacuum(0, story.time) == 0
    assert view.weight_of(ACCOUNTS[3], story.time) == 0 and view.voters(0) == names([0, 1, 2])


def test_weight_is_the_share_of_the_steps(story):
    for _ in range(60):
        story.seal(0, [0, 1, 2], range(3), steps={0: STEPS, 1: STEPS // 2, 2: STEPS // 2})
    first, *others = story.weights(0, 1, 2)
    assert abs(first - FULL // 2) < 50 and max(abs(one - FULL // 4) for one in others) < 50


def test_weight_fades_with_the_seals_that_do_not_count_its_account(story):
    story.work(40, [0, 1, 2, 3])
    (before,) = story.weights(3)
    story.work(8, [0, 1, 2])
    assert abs(story.weights(3)[0] - before * (7 / 8) ** 8) < 10
    assert story.view.last_round_counted(ACCOUNTS[3]) == 39 and story.view.last_round_counted(ACCOUNTS[8]) is None


def test_the_founder_signs_until_work_has_enough_weight(story):
    view, everybody = story.view, range(4)
    alone = story.sealed(0, everybody, everybody, founder=None)
    assert [problem.check for problem in verify_seal(view, alone)] == ["quorum", "time"]
    stranger = story.sealed(0, everybody, everybody, founder=ACCOUNTS[0])
    assert {problem.check for problem in verify_seal(view, stranger)} == {"quorum", "time"}, "it is none"
    story.work(2, everybody)
    assert [p.check for p in verify_seal(view, story.sealed(0, everybody, everybody, founder=None))]
    story.work(3, everybody)
    story.work(3, everybody, founder=None)
    assert view.seal_votes(0, [], story.time, founder=True) == view.vacuum(0, story.time) < ENOUGH // 2


def test_a_founder_decides_alone_as_long_as_nobody_has_weight(story):
    story.seal(0, [0], [])
    assert story.view.seal_votes(0, [], story.time, founder=True) == ENOUGH - FULL // 8
    assert story.view.may_vote(FOUNDER, 0, story.time) and not story.view.may_vote(ACCOUNTS[3], 0, story.time)
    story.work(20, range(4))
    assert not story.view.may_vote(FOUNDER, 0, story.time) and story.view.may_vote(ACCOUNTS[3], 0, story.time)
    assert story.view.founders == (FOUNDER,) and not story.view.is_founder(ACCOUNTS[0])


def test_members_share_the_founders_part_among_those_in_complete_replicas():
    story = Story(stages=2, max_replicas=4, min_replicas=1)
    for index, slot in enumerate([(0, 0), (0, 1), (1, 0), (2, 0)]):
        story.join(index, *slot)
        if index == 1:
            story.open()
    view, now = story.view, story.time
    assert view.votes(0, names([0, 2, 3]), now) == view.votes(0, names([0]), now) == ENOUGH and view.voters(0) == names(
        [0]
    )
    story.seal(0, [0, 2], [0, 2])
    assert view.votes(0, names([2]), story.time) == view.weight_of(ACCOUNTS[2], story.time) == FULL // 16
    assert view.votes(0, names([0, 2]), story.time) == view.total(0, story.time)
    story.leave(1)
    share = view.vacuum(0, story.time) // 3
    assert view.votes(0, names([3]), story.time) == share, "where none is complete, among all"
    assert view.voters(0) == names([0, 2])


def test_two_seals_that_count_others_pass_a_replica_over_and_an_empty_one_does_not(story):
    view = story.view

    def passed_over() -> list[int]:
        return [replica for replica in range(5) if view.was_passed_over(replica, 2, view.next_round(0))]

    story.seal(0, [0, 1, 2], range(4))
    story.seal(0, [], range(4), wait=TIMEOUT)
    assert not passed_over(), "one seal has counted others"
    story.seal(0, [0, 1], range(4), wait=TIMEOUT)
    assert passed_over() == [3, 4]
    story.seal(0, [0, 3], range(4), wait=TIMEOUT)
    story.join(4, 4, 0)
    assert passed_over() == [2, 4], "nor was a newcomer counted yet"
    assert [view.age_of(account) for account in names(range(5))] == [0, 1, 2, 0, 15]


def test_a_replica_is_passed_over_where_one_of_its_stages_is():
    story = Story(stages=2, max_replicas=4, min_replicas=1)
    for replica in range(3):
        for stage in range(2):
            story.join(2 * replica + stage, replica, stage)
            if replica == 0 and stage == 1:
                story.open()
    for _ in range(2):
        story.seal(0, [0, 2, 4], [0, 2, 4])
        before = [story.view.was_passed_over(replica, 2, story.view.open_round) for replica in range(3)]
        assert before == [False] * 3, "a seal of the open round changes nothing of it"
        story.seal(1, [1, 3], [1, 3, 5])
    passed = [story.view.was_passed_over(replica, 2, story.view.open_round) for replica in range(3)]
    assert passed == [False, False, True]
    story.seal(1, [1, 3, 5], [1, 3, 5])
    assert story.view.was_passed_over(2, 2, story.view.open_round), "nor does one that counts it"


def test_who_left_weighs_and_is_counted_until_the_next_seal(story):
    view = story.view
    story.work(20, [0, 1, 2])
    (before,) = story.weights(2)
    story.leave(2)
    assert view.slot_of(ACCOUNTS[2]) is None and view.may_vote(ACCOUNTS[2], 0, story.time)
    assert view.admissible(ACCOUNTS[2], 0, 2) and not view.admissible(ACCOUNTS[2], 0, 1)
    assert before - 30 < view.weight_of(ACCOUNTS[2], story.time) <= before and view.voters(0) == names([0, 1])
    story.join(7, 2, 0)
    assert story.weights(7) == [0] and view.accounts[ACCOUNTS[7]].lane == 2, "a lane is not its weight's"
    story.seal(0, {0: 0, 2: 2, 3: 3}, [0, 1, 2, 3], wait=TIMEOUT)
    assert view.sealed[0, 20].accounts == names([0, 2, 3])
    assert story.weights(7) == [0] and story.weights(3)[0] > 0, "nothing goes to the newcomer in its slot"
    assert view.may_vote(ACCOUNTS[2], 0, story.time) and not view.admissible(ACCOUNTS[2], 0, 2)
    assert view.last_round_counted(ACCOUNTS[2]) == 20


def test_the_weight_of_the_absent_fades_in_seals_and_is_whole_when_they_come_back(story):
    view, away = story.view, ACCOUNTS[3]
    story.work(60, range(4))
    (before,) = story.weights(3)
    story.leave(3)
    left = story.time - 1
    whole = view.total(0, left)
    fading = [view.weight_of(away, left + time * TIMEOUT) for time in (0, 32, 64, 128)]
    assert [round(each / before, 2) for each in fading] == [1.0, 0.71, 0.5, 0.25]
    assert abs(whole - view.total(0, left + 64 * TIMEOUT) - before // 2) <= 2
    assert view.verdict_votes(0, ACCOUNTS[0], [away]) == before, "time takes nothing of it in verdicts"
    story.time = left + 64 * TIMEOUT
    story.join(3, 3, 0)
    assert story.weights(3) == [before] and view.total(0, story.time) == whole
    assert seals.absent_now(view, 0, story.time).for_seals <= 1


def test_seals_take_as_much_of_the_absent_as_of_those_who_stay_and_are_not_counted(story):
    view = story.view
    story.work(60, range(4))
    story.leave(3)
    story.work(16, [0, 1], founder=None, wait=3 * TIMEOUT)
    for now in (view.weight_of(ACCOUNTS[2], story.time), view.verdict_votes(0, ACCOUNTS[0], names([3]))):
        assert abs(now - FULL / 4 * (7 / 8) ** 16) < 100


def test_who_takes_a_slot_in_another_stage_leaves_its_weight_behind():
    story = Story(stages=2, max_replicas=3, min_replicas=1)
    for index, slot in enumerate([(0, 0), (0, 1), (1, 0)]):
        story.join(index, *slot)
        if index == 1:
            story.open()
    for _ in range(20):
        story.seal(0, [0, 2], [0, 2])
        story.seal(1, [1], [1])
    (before,) = story.weights(2)
    story.leave(2)
    with pytest.raises(ViewError, match="changed stage"):
        story.view.copy().apply(Joined(RUN, ACCOUNTS[2], 1, 1, story.at()))
    story.seal(0, [0], [0], wait=6 * TIMEOUT)
    story.join(2, 1, 1)
    assert story.view.slot_of(ACCOUNTS[2]) == (1, 1)
    assert story.weights(2, stage=1) == [0] and seals.absent_now(story.view, 0, story.time).for_seals > before // 2


def test_the_least_account_without_a_slot_signs_first(story):
    """The contract passes over those of them that do not ascend."""
    story.work(40, range(4))
    for index in (1, 2, 3):
        story.leave(index)
    event = story.sealed(0, [0], range(4), wait=TIMEOUT)
    assert verify_seal(story.view, event) == []
    parts = [event.signatures[i : i + 66] for i in range(0, len(event.signatures), 66)]
    backwards = dataclasses.replace(event, signatures=b"".join(reversed(parts)))
    assert [problem.check for problem in verify_seal(story.view, backwards)] == ["quorum"]


def test_whose_record_a_replica_s_is_does_not_change_while_a_round_runs(story):
    view = story.view
    story.seal(0, [0, 1, 2], [0, 1, 2])
    story.leave(2)
    story.leave(3)
    story.join(7, 2, 0)
    story.join(3, 3, 0)
    assert [view.maker(replica, 0) for replica in range(5)] == [*names([0, 1, 2, 3]), None]
    assert not view.admissible(ACCOUNTS[7], 0, 2)
    story.join(8, 4, 0)
    assert view.maker(4, 0) == ACCOUNTS[8], "the slot was free"
    story.seal(0, {0: 0, 2: 2, 3: 3, 4: 8}, [0, 1, 2])
    assert view.sealed[0, 1].accounts == names([0, 2, 3, 8])
    assert [weight > 0 for weight in story.weights(0, 7, 3, 8)] == [True, False, True, True]
    assert view.maker(2, 0) == ACCOUNTS[7]


def test_a_seal_that_leaves_much_weight_out_waits_for_the_timeout_and_an_empty_one_too(story):
    view = story.view
    story.work(60, range(4))
    opened, times = view.opened_at, [view.opens_at(0, names(range(n)), view.opened_at) for n in range(5)]
    assert [time - opened for time in times] == [TIMEOUT] * 3 + [MIN] * 2
    story.seal(0, [], [0, 1, 2], wait=TIMEOUT)
    assert (view.weights(0, 61), view.momentum(0, 61)) == (view.weights(0, 60), view.momentum(0, 60))
    assert view.open_round == 61 and view.opened_at == story.time
    with pytest.raises(ViewError, match="no round is open"):
        Story().view.opens_at(0, names([0]), 0)


def test_nor_does_a_founder_hurry_an_empty_seal(story):
    view = story.view
    assert view.opens_at(0, names([0]), story.time, founder=True) == view.opened_at + MIN
    assert view.opens_at(0, [], story.time, founder=True) == view.opened_at + TIMEOUT
    early = story.sealed(0, [], [], wait=TIMEOUT - 1)
    assert [problem.check for problem in verify_seal(view, early)] == ["time"]
    story.seal(0, [], [], wait=TIMEOUT)
    assert (view.weights(0, 1), view.momentum(0, 1)) == (GENESIS[0], ZERO32)


def test_the_silent_count_for_less_the_longer_a_round_is_late(story):
    view = story.view
    story.work(60, range(4))
    opened, half = view.opened_at, names([0, 1])
    whole = view.total(0, opened)
    assert view.needed(0, opened + TIMEOUT) == -(-2 * whole // 3)
    needed = [view.needed(0, opened + TIMEOUT + late) for late in range(0, 20 * TIMEOUT, 10)]
    assert needed == sorted(needed, reverse=True) and len({*needed}) > 20
    assert needed[-1] == -(-whole // 3), "a third of all at least"
    early = story.sealed(0, [0, 1], [0, 1], wait=TIMEOUT + TIMEOUT)
    assert [problem.check for problem in verify_seal(view, early)] == ["quorum"]
    turns = opened + TIMEOUT + 2 * TIMEOUT  # half of what is silent
    found = [view.may_seal(0, half, half, time) for time in (turns - 10, turns + 10)]
    assert found == [False, True]
    story.seal(0, [0, 1], [0, 1], wait=turns + 10 - opened)


def test_less_than_a_third_never_seals_by_being_late(story):
    story.work(60, range(4))
    alone = names([0])
    assert not story.view.may_seal(0, alone, alone, story.time + 63 * TIMEOUT)


def test_a_draw_deals_a_replica_that_nobody_counts():
    story = Story(stages=2, max_replicas=3, min_replicas=3)
    for index in range(6):
        story.join(index, index // 2, index % 2)
    story.open()
    view = story.view
    for _ in range(3):
        assert not view.may_deal(2), "its members have come too lately"
        for stage in (0, 1):
            story.seal(stage, [stage, 2 + stage], range(stage, 6, 2))
    while not view.may_deal(2):  # it may draw itself
        for stage in (0, 1):
            story.seal(stage, [stage, 2 + stage], range(stage, 6, 2))
    assert not view.may_deal(0)
    swaps, before = view.deal_of(2), view.members()
    weights = {account: view.weight_of(account, story.time) for account in before}
    with pytest.raises(ViewError, match="cannot have been dealt"):
        view.copy().apply(Dealt(RUN, swaps[0][0], 2, 1 - swaps[0][1], story.at()))
    for stage, other in swaps:
        story.tell(Dealt, stage, 2, other)
        here, there = ACCOUNTS[4 + stage], view.member_at(2, stage)
        assert view.slot_of(here) == (other, stage) and before[there] == (other, stage)
        assert view.maker(2, stage) == here and view.maker(other, stage) == there
        assert not view.admissible(here, stage, other), "it ends the round where it began it"
    assert weights == {account: view.weight_of(account, story.time) for account in before}
    assert not view.may_deal(2)


# ---- slots -----------------------------------------------------------------------------------------------------------


def test_replicas_are_complete_with_every_stage():
    story = Story(stages=2, max_replicas=3, min_replicas=1)
    for index, slot in enumerate([(0, 0), (1, 0), (0, 1)]):
        story.join(index, *slot)
    story.open()
    story.join(3, 1, 1)
    story.leave(2)
    assert story.view.complete_replicas() == (1,)
    assert not story.view.may_move(ACCOUNTS[3], story.time), "its replica is complete"
    story.leave(1)
    assert story.view.may_move(ACCOUNTS[3], story.time)
    story.tell(Moved, ACCOUNTS[3], 1, 0, 1)
    assert story.view.complete_replicas() == (0,) and story.view.member_at(0, 1) == ACCOUNTS[3]
    assert story.view.members() == {ACCOUNTS[0]: (0, 0), ACCOUNTS[3]: (0, 1)}


def test_a_member_s_weight_goes_with_it_when_it_moves():
    story = Story(stages=1, max_replicas=4, min_replicas=2)
    for index in range(2):
        story.join(index, index, 0)
    story.open()
    story.join(2, 2, 0)
    story.seal(0, [0, 1, 2], [0, 1])
    assert not story.view.may_move(ACCOUNTS[2], story.time)
    two = Story(stages=2, max_replicas=3, min_replicas=1)
    for index, slot in enumerate([(0, 0), (0, 1), (1, 0), (2, 0)]):
        two.join(index, *slot)
        if index == 1:
            two.open()
    two.seal(0, [0, 2, 3], [0])
    before = two.weights(3)
    two.leave(2)
    two.tell(Moved, ACCOUNTS[3], 2, 1, 0)
    assert two.view.maker(2, 0) == ACCOUNTS[3] and two.view.age_of(ACCOUNTS[3]) == 0
    assert two.weights(3) == before != [0]


def test_round_0_opens_with_the_replica_that_completes_enough():
    for start, opened in ((0, 1000), (5000, 5000)):
        story = Story(stages=2, max_replicas=3, min_replicas=1, start_time=start)
        story.join(0, 0, 0)
        assert story.view.open_round is None and story.view.started_at == 0
        story.join(1, 0, 1)
        with pytest.raises(ViewError, match="had to come next"):
            story.view.copy().apply(RunOpened(RUN, opened + 1, story.at()))
        with pytest.raises(ViewError, match="had to come next"):
            story.view.copy().apply(Joined(RUN, ACCOUNTS[3], 1, 0, story.at()))
        story.tell(RunOpened, opened)
        assert (story.view.open_round, story.view.opened_at, story.view.started_at) == (0, opened, opened)


# ---- silence ---------------------------------------------------------------------------------------------------------


def test_a_silent_member_is_asked_and_evicted_and_its_slot_kept_where_it_worked(story):
    view = story.view
    first, second, stranger = ACCOUNTS[0], ACCOUNTS[1], ACCOUNTS[9]
    story.seal(0, [0, 1, 2, 3], [0, 1, 2])
    opened = view.opened_at
    assert not view.may_accuse(first, second, opened + 60) and view.may_accuse(first, second, opened + 61)
    assert not view.may_accuse(stranger, second, opened + 61) and not view.may_accuse(first, stranger, opened + 61)
    story.time = opened + 61
    story.tell(Accused, second, first, False)
    assert view.accusations == {second: Accusation(story.time, False)}
    assert not view.may_accuse(first, second, story.time + 100) and not view.may_evict(second, story.time + 29)
    assert view.may_evict(second, story.time + 30)
    story.tell(Answered, second)
    assert view.accusations == {} and not view.may_evict(second, story.time + 300)
    assert not view.may_accuse(first, second, story.time + 60) and view.may_accuse(first, second, story.time + 61)
    story.time += 61
    story.tell(Accused, second, first, False)
    story.time += 30
    story.tell(Evicted, second, 1, 0, story.time + EVICTION)
    assert view.slot_of(second) is None and view.returns == {(1, 0): Return(second, story.time + EVICTION)}
    assert view.free_slot(0, second, story.time) == 1 and view.free_slot(0, stranger, story.time) == 4
    assert view.free_slot(0, stranger, story.time + EVICTION + 1) == 1
    with pytest.raises(ViewError, match="the free one was 4"):
        view.copy().apply(Joined(RUN, stranger, 1, 0, story.at()))
    story.join(1, 1, 0)
    assert story.weights(1)[0] > 0, "with what is left of its weight"


def test_being_counted_is_an_answer(story):
    view = story.view
    story.time = view.opened_at + 61
    story.tell(Accused, ACCOUNTS[1], ACCOUNTS[0], False)
    story.seal(0, [0, 1, 2], [0, 1, 2])
    assert view.accusations == {} and not view.may_evict(ACCOUNTS[1], story.time + 300)


def test_a_member_that_was_not_counted_for_three_rounds_may_be_asked_at_once(story):
    for round in range(3):
        story.seal(0, [0, 1, 2], [0, 1, 2, 3])
        asked = story.view.may_accuse(ACCOUNTS[0], ACCOUNTS[3], story.view.opened_at)
        assert asked == (round == 2), "not in its first three rounds"
    assert not story.view.may_accuse(ACCOUNTS[0], ACCOUNTS[2], story.view.opened_at)


def test_a_slot_that_is_never_worked_in_is_forfeit_to_anybody(story):
    view, idler, stranger = story.view, ACCOUNTS[3], ACCOUNTS[15]
    for round in range(8):
        assert not view.is_forfeit(idler)
        story.seal(0, [0, 1, 2], [0, 1, 2])
        if round == 5:  # leaving and joining again wipes nothing
            story.leave(3)
            story.join(3, 3, 0)
    assert view.is_forfeit(idler) and not view.is_forfeit(ACCOUNTS[0])
    assert view.may_accuse(stranger, idler, story.time)
    story.tell(Accused, idler, stranger, True)
    assert view.accusations == {idler: Accusation(story.time, True)} and view.may_evict(idler, story.time + EVICTION)
    assert view.should_answer(idler)
    story.tell(Answered, idler)
    assert view.accusations == {} and not view.should_answer(idler) and not view.may_evict(idler, story.time + EVICTION)
    for _ in range(16):
        assert not view.may_evict(idler, story.time + EVICTION), "words keep it for a while"
        story.seal(0, [0, 1, 2], [0, 1, 2])
    story.time += EVICTION
    story.tell(Evicted, idler, 3, 0, 0)
    assert view.returns == {}
    assert (view.free_slot(0, stranger, story.time), view.free_slot(0, stranger, story.time + 1)) == (4, 3)


def test_work_keeps_a_slot_that_was_forfeit(story):
    view, idler = story.view, ACCOUNTS[3]
    for _ in range(8):
        story.seal(0, [0, 1, 2], [0, 1, 2])
    story.tell(Accused, idler, ACCOUNTS[15], True)
    story.tell(Answered, idler)
    story.seal(0, [0, 1, 2, 3], [0, 1, 2])
    assert view.should_answer(idler) and not view.may_evict(idler, story.time + EVICTION)
    story.tell(Answered, idler)
    assert not view.should_answer(idler)
    for _ in range(20):
        story.seal(0, [0, 1, 2], [0, 1, 2])
    assert not view.may_evict(idler, story.time + EVICTION), "it has to be asked again"


def test_a_round_that_is_open_for_long_lets_anybody_ask_who_is_there(story):
    view, stranger = story.view, ACCOUNTS[9]
    until = view.opened_at + 32 * TIMEOUT
    assert not view.may_accuse(stranger, ACCOUNTS[0], until) and view.may_accuse(stranger, ACCOUNTS[0], until + 1)
    assert not view.is_forfeit(ACCOUNTS[0])
    story.time = until + 1
    story.tell(Accused, ACCOUNTS[0], stranger, False)
    story.tell(Answered, ACCOUNTS[0])
    assert not view.may_evict(ACCOUNTS[0], until + 1 + EVICTION), "a word is an answer"


# ---- the run ---------------------------------------------------------------------------------------------------------


def test_the_last_round_closes_the_run():
    story = Story(stages=1, min_replicas=1, max_replicas=1, rounds=1)
    story.join(0, 0, 0)
    story.open()
    assert not story.view.finished
    story.seal(0, [0], [0])
    assert story.view.finished and (story.view.open_round, story.view.opened_at) == (None, None)


def test_versions_are_genesis_and_seals(story):
    view = story.view
    assert view.weights(0, 0) == view.head(0) == GENESIS[0] and view.momentum(0, 0) == bytes(32)
    story.seal(0, [0, 1, 2], [0, 1, 2])
    story.seal(0, [], [0, 1, 2], wait=TIMEOUT)
    outcome = view.sealed[0, 0].outcome
    for version in (1, 2):
        assert (view.weights(0, version), view.momentum(0, version)) == (outcome.weights, outcome.momentum)
    assert view.head(0) == view.sealed[0, 1].digest
    with pytest.raises(KeyError):
        view.weights(0, 3)


def test_an_unknown_run_says_so():
    view = RunView(RUN, DOMAIN)
    assert not view.created and not view.finished and view.slot_of(ACCOUNTS[0]) is None
    for ask in (view.voters, view.head, lambda stage: view.vacuum(stage, 0)):
        with pytest.raises(ViewError, match="knows no run 1010"):
            ask(0)


# ---- memory ----------------------------------------------------------------------------------------------------------


def test_copies_are_independent(story):
    early = story.view.copy()
    story.seal(0, [0, 1, 2], [0, 1, 2])
    story.leave(3)
    assert early.next_round(0) == 0 and len(early.sealed) == 0 and early.slot_of(ACCOUNTS[3]) == (3, 0)
    late = story.view.copy()
    first = story.sealed(0, [0, 1, 2], [0, 1, 2], outcome=planning(14))
    second = story.sealed(0, [0, 2, 1], [0, 1, 2], outcome=planning(7))
    story.view.apply(first)
    late.apply(second)  # another branch of the chain
    assert story.view.sealed[0, 1].digest == first.digest and late.sealed[0, 1].digest == second.digest
    assert list(late.sealed) == [(0, 0), (0, 1)]
    assert [story.view.sealed.planned_steps(0, rounds) for rounds in range(3)] == [0, 10, 24]
    assert [late.sealed.planned_steps(0, rounds) for rounds in range(3)] == [0, 10, 17]
    with pytest.raises(KeyError):
        early.sealed.planned_steps(0, 1)


def planning(steps: int) -> Outcome:
    return Outcome(b"\x0a" * 32, b"\x0b" * 32, b"\x0c" * 32, b"\x0d" * 32, STEPS, Plan(0, 0, steps))


def test_only_the_newest_seals_are_kept_in_full(story):
    whole, kept = story.view, RunView(RUN, DOMAIN, keep=3)
    for event in story.told:
        kept.apply(event)
    early = kept.copy()
    for step in range(10):
        event = story.sealed(0, [0, 1, 2], [0, 1, 2], outcome=planning(step + 1))
        for view in (whole, kept):
            view.apply(event)
        if step == 6:
            middle = kept.copy()
    assert list(kept.sealed) == [(0, 7), (0, 8), (0, 9)] and len(kept.sealed) == 3 and kept.sealed.oldest(0) == 7
    assert (0, 6) not in kept.sealed and (0, 6) in middle.sealed
    assert [kept.sealed[0, round] for round in (7, 8, 9)] == [whole.sealed[0, round] for round in (7, 8, 9)]
    assert kept.next_round(0) == 10 and early.next_round(0) == 0 and middle.next_round(0) == 7
    for version in range(11):
        assert kept.weights(0, version) == whole.weights(0, version)
        assert kept.momentum(0, version) == whole.momentum(0, version)
        assert kept.sealed.planned_steps(0, version) == whole.sealed.planned_steps(0, version)
    with pytest.raises(KeyError):
        middle.weights(0, 8)
    story.view = middle  # a copy that goes on alone
    middle.apply(story.sealed(0, [0, 1, 2], [0, 1, 2], outcome=planning(20)))
    assert middle.weights(0, 8) == b"\x0a" * 32 and middle.sealed.planned_steps(0, 8) == 1 + sum(range(1, 8)) + 19
    assert kept.sealed[0, 7] == whole.sealed[0, 7] != middle.sealed[0, 7]


def test_a_thousand_rounds_cost_a_node_hardly_any_memory(story):
    view = RunView(RUN, DOMAIN, keep=16)
    one = story.sealed(0, [0, 1, 2], [0, 1, 2])

    def grow(rounds):
        for _ in range(rounds):
            records = tuple(dataclasses.replace(one.records[0], replica=replica) for replica in range(16))
            view.sealed.append(dataclasses.replace(one, records=records, signatures=bytes(16 * 66)), GENESIS[0])

    grow(50)
    tracemalloc.start()
    grow(950)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept / 950 < 16 * RECORD_SIZE / 4 + 150


def test_a_copy_costs_the_same_after_thousands_of_seals(story):
    story.seal(0, [0, 1, 2], [0, 1, 2])
    view = story.view
    for _ in range(5000):
        view.sealed.append(view.sealed[0, 0], GENESIS[0])
    started = time.process_time()
    for _ in range(100):
        view.copy()
    assert time.process_time() - started < 0.5


def test_events_of_others_change_nothing(story):
    story.view.apply(Joined(b"\x77" * 32, ACCOUNTS[9], 0, 0, story.at()))
    assert story.view.slot_of(ACCOUNTS[9]) is None


# ---- verdicts --------------------------------------------------------------------------------------------------------


def test_two_thirds_of_the_others_weight_convict(story):
    view, accused = story.view, ACCOUNTS[3]
    story.work(60, range(4))
    now = story.time
    assert view.jury(0, accused) == names([0, 1, 2]), "and not the founder"
    assert not view.may_convict(0, accused, names([0, 1])) and view.may_convict(0, accused, names([0, 1, 2]))
    assert not view.may_convict(0, accused, names([0, 1, 3, 9])), "nor the accused, nor a stranger"
    assert not view.may_convict(0, ACCOUNTS[9], names([0, 1, 2, 3])), "it never held a slot"
    assert not view.may_convict(7, accused, names([0, 1, 2, 3])), "there is no such stage"
    whole = view.total(0, now)
    event = story.convicted(3, [0, 1, 2])
    assert verify_conviction(view, event) == []
    story.apply(event)
    assert view.is_convicted(accused) and view.slot_of(accused) is None and view.convictions == (event,)
    assert view.weight_of(accused, now) == 0 and view.total(0, now) < 0.8 * whole, "its weight is gone"
    assert not view.may_convict(0, accused, names([0, 1, 2]))
    # The round's seal may still have its record, but gives it nothing.
    assert view.admissible(accused, 0, 3) and not view.may_vote(accused, 0, now)
    story.seal(0, {0: 0, 1: 1, 2: 2, 3: 3}, [0, 1, 2])
    assert not view.admissible(accused, 0, 3) and view.weight_of(accused, story.time) == 0
    with pytest.raises(ViewError):
        story.join(3, 3, 0)


def test_who_has_most_of_the_weight_is_convicted_by_no_minority(story):
    for _ in range(60):
        story.seal(0, range(4), range(4), steps={1: 2, 2: 2, 3: 2})
    view, now = story.view, story.time
    assert view.weight_of(ACCOUNTS[0], now) > 0.6 * FULL
    assert not view.may_convict(0, ACCOUNTS[0], names([1, 2, 3]))
    assert view.verdicts_needed(0, ACCOUNTS[0]) >= 0.6 * view.total(0, now)


def test_who_left_is_convicted_as_well(story):
    story.work(60, range(4))
    story.leave(3)
    copy = story.view.copy()
    story.apply(story.convicted(3, [0, 1, 2]))
    assert story.view.is_convicted(ACCOUNTS[3]) and not copy.is_convicted(ACCOUNTS[3])
    assert seals.absent_now(story.view, 0, story.time).for_seals <= 1 < seals.absent_now(copy, 0, story.time).for_seals
    with pytest.raises(ViewError):
        story.join(3, 3, 0)


def test_those_who_left_have_their_say(story):
    story.work(60, range(4))
    for index in (1, 2):
        story.leave(index)
    story.time += 20 * TIMEOUT
    assert story.view.may_convict(0, ACCOUNTS[3], names([0, 1, 2]))
    assert not story.view.may_convict(0, ACCOUNTS[3], names([0, 1]))
    event = story.convicted(3, [0, 1, 2])
    assert verify_conviction(story.view, event) == []


def test_a_founder_judges_where_no_work_has_weight(story):
    view = story.view
    story.work(1, range(4))
    assert FOUNDER in view.jury(0, ACCOUNTS[3])
    assert not view.may_convict(0, ACCOUNTS[3], names([0, 1, 2])) and view.may_convict(0, ACCOUNTS[3], [FOUNDER])
    event = story.convicted(3, [len(ACCOUNTS) - 1])
    assert verify_conviction(view, event) == []
    story.apply(event)
    story.work(60, range(3))
    assert not view.may_convict(0, ACCOUNTS[2], [FOUNDER]) and FOUNDER not in view.jury(0, ACCOUNTS[2])


def test_who_was_counted_before_it_left_has_three_rounds_after_it_came_back(story):
    """And who was not has none: so leaving and coming back puts a deal off once for each round of work."""
    view = story.view
    story.work(8, range(4))
    story.leave(3)
    story.join(3, 3, 0)
    assert view.came_back(ACCOUNTS[3]) and not view.came_back(ACCOUNTS[2])
    for _ in range(2):
        story.work(1, range(3), wait=TIMEOUT)
    assert view.came_back(ACCOUNTS[3])
    story.work(1, range(3), wait=TIMEOUT)
    assert not view.came_back(ACCOUNTS[3])
    story.leave(3)
    story.join(3, 3, 0)
    assert not view.came_back(ACCOUNTS[3]), "no round of late counted it"
    story.work(1, range(3), wait=TIMEOUT)
    story.work(1, range(4))
    story.leave(3)
    assert not view.came_back(ACCOUNTS[3]), "it holds none"
    story.join(3, 3, 0)
    assert view.came_back(ACCOUNTS[3])
    story.work(1, range(3), wait=TIMEOUT)
    story.work(1, range(4))
    assert not view.came_back(ACCOUNTS[3]), "it is counted again"
    story.join(9, 4, 0)
    assert not view.came_back(ACCOUNTS[9]), "it is new"


# ---- founders --------------------------------------------------------------------------------------------------------


def test_a_founder_dismisses_who_holds_a_stage_without_weight(story):
    view, squatter = story.view, ACCOUNTS[3]
    assert view.may_dismiss(FOUNDER, squatter, story.time) and not view.may_dismiss(ACCOUNTS[0], squatter, story.time)
    story.tell(Dismissed, squatter, FOUNDER, 3, 0, ZERO_ACCOUNT, 0)
    assert view.slot_of(squatter) is None and view.returns == {}
    story.work(2, range(3))
    assert not view.may_dismiss(FOUNDER, ACCOUNTS[0], story.time), "a third of it is their own"
    with pytest.raises(ViewError, match="cannot have dismissed"):
        story.tell(Dismissed, ACCOUNTS[0], FOUNDER, 0, 0, ZERO_ACCOUNT, 0)


def test_a_dismissed_member_s_slot_waits_for_its_successor(story):
    view, successor, until = story.view, ACCOUNTS[9], story.time + EVICTION
    for said in ((successor, 0), (successor, until - 1), (ZERO_ACCOUNT, until)):
        before = view.copy()
        with pytest.raises(ViewError, match="is kept until"):
            before.apply(Dismissed(RUN, ACCOUNTS[3], FOUNDER, 3, 0, *said, story.at()))
    story.tell(Dismissed, ACCOUNTS[3], FOUNDER, 3, 0, successor, until)
    assert [view.free_slot(0, one, until) for one in (successor, ACCOUNTS[3], ACCOUNTS[10])] == [3, 4, 4]
    assert view.free_slot(0, ACCOUNTS[10], until + 1) == 3
    story.join(9, 3, 0)


def test_an_abandoned_stage_is_its_founders_again(story):
    story.work(60, range(4))
    for index in range(4):
        story.leave(index)
    now = story.time
    assert [story.view.vacuum(0, now + n * TIMEOUT) > 0 for n in (0, 32, 80)] == [False, False, True]
    assert story.view.vacuum(0, now + 32 * 20 * TIMEOUT) > 0.99 * ENOUGH


# ---- pay -------------------------------------------------------------------------------------------------------------


def test_an_epoch_pays_255_for_each_seal_that_counts_anything(story):
    view = story.view
    story.work(14, range(4))
    with pytest.raises(ViewError, match="epoch 0 is not over"):
        view.seals_in(0, 0)
    story.seal(0, [], range(4), wait=TIMEOUT)
    story.seal(0, [0, 1], range(4), wait=TIMEOUT)
    assert view.seals_in(0, 0) == 15
    paid = [view.earned_in(0, 0, account, 0) for account in names(range(4))]
    assert sum(paid) == 15 * 255 and abs(paid[0] - (14 * 255 / 4 + 255 / 2)) < 3 and abs(paid[3] - 14 * 255 / 4) < 3
    story.work(1, range(4))
    assert paid == [view.earned_in(0, 0, account, 0) for account in names(range(4))]
    assert view.earnings(ACCOUNTS[3]) == (Earning(stage=0, epoch=0, stay=0, pay=paid[3]),)


def test_pay_stays_whose_it_was(story):
    view = story.view
    story.work(20, range(4))
    story.leave(3)
    story.join(8, 3, 0)
    assert view.accounts[ACCOUNTS[8]].lane == 3
    story.work(1, [0, 1, 2], wait=TIMEOUT)
    story.work(11, [0, 1, 2, 8])
    story.leave(8)
    story.join(3, 3, 0)
    story.seal(0, [0, 1, 2], range(4), wait=TIMEOUT)
    story.work(19, range(4))
    assert [stay.rest > 0 for stay in view.stays[ACCOUNTS[3]]] == [True]
    everybody = [one for account in names([0, 1, 2, 3, 8]) for one in view.earnings(account)]
    for epoch in range(3):
        assert sum(one.pay for one in everybody if one.epoch == epoch) == 16 * 255, epoch
    mine = view.earnings(ACCOUNTS[3])
    assert [(one.epoch, one.stay) for one in mine] == [(0, 0), (1, 0), (2, 1)]
    assert [view.earned_in(0, 1, ACCOUNTS[8], stay) for stay in (0, 1)] == [view.stays[ACCOUNTS[8]][0].rest, 0]


# ---- what cannot have happened ---------------------------------------------------------------------------------------

IMPOSSIBLE = {
    "a taken slot": lambda s: s.join(9, 0, 0),
    "a second slot": lambda s: s.join(0, 4, 0),
    "not the lowest slot": lambda s: s.join(9, 5, 0),
    "no such stage": lambda s: s.join(9, 4, 1),
    "no such replica": lambda s: [s.join(9, 4, 0), s.join(10, 5, 0), s.join(11, 6, 0)],
    "left by another": lambda s: s.tell(Left, ACCOUNTS[0], 1, 0),
    "evicted nobody": lambda s: s.tell(Evicted, ACCOUNTS[9], 1, 0, 0),
    "evicted unasked": lambda s: s.tell(Evicted, ACCOUNTS[1], 1, 0, s.time + EVICTION),
    "moved to a taken slot": lambda s: s.tell(Moved, ACCOUNTS[2], 2, 0, 0),
    "moved up": lambda s: s.tell(Moved, ACCOUNTS[2], 2, 4, 0),
    "convicted where it never was": lambda s: s.apply(s.convicted(9, [0, 1, 2])),
    "convicted in no stage": lambda s: s.apply(s.convicted(3, [0, 1, 2], stage=7)),
    "convicted twice": lambda s: [s.apply(s.convicted(3, [0, 1, 2])), s.apply(s.convicted(3, [0, 1, 2]))],
    "dismissed by nobody": lambda s: s.tell(Dismissed, ACCOUNTS[1], ACCOUNTS[0], 1, 0, ZERO_ACCOUNT, 0),
    "dismissed too late": lambda s: [
        s.work(40, range(4)),
        s.tell(Dismissed, ACCOUNTS[1], FOUNDER, 1, 0, ZERO_ACCOUNT, 0),
    ],
    "asked too early": lambda s: s.tell(Accused, ACCOUNTS[1], ACCOUNTS[0], False),
    "answered nothing": lambda s: s.tell(Answered, ACCOUNTS[0]),
    "dealt for nothing": lambda s: s.tell(Dealt, 0, 0, 1),
    "opened again": lambda s: s.open(),
    "created again": lambda s: s.tell(RunCreated, ACCOUNTS[0], s.view.config, "story", GENESIS[:1], (FOUNDER,)),
    "sealed the round after": lambda s: s.apply(dataclasses.replace(s.sealed(0, [0, 1, 2], [0, 1, 2]), round=1)),
    "sealed another stage": lambda s: s.apply(dataclasses.replace(s.sealed(0, [0, 1, 2], [0, 1, 2]), stage=1)),
    "sealed too early": lambda s: s.apply(s.sealed(0, [0, 1, 2], [0, 1, 2], wait=MIN - 1)),
    "counted few too early": lambda s: [s.work(40, range(4)), s.apply(s.sealed(0, [0, 1], range(4), wait=TIMEOUT - 1))],
    "counted nothing too early": lambda s: s.apply(s.sealed(0, [], [0, 1, 2], wait=TIMEOUT - 1)),
    "counted nobody's": lambda s: s.apply(s.sealed(0, {0: 0, 1: 1, 5: 9}, [0, 1, 2])),
    "changed by nothing": lambda s: s.apply(s.sealed(0, [], [0, 1, 2], wait=TIMEOUT, outcome=planning(5))),
    "planned too much": lambda s: s.apply(s.sealed(0, [0, 1, 2], [0, 1, 2], outcome=planning(2 * STEPS + 1))),
    "worked too much": lambda s: s.apply(s.sealed(0, [0, 1, 2], [0, 1, 2], made={"inner_steps": STEPS + 1})),
    "worked not at all": lambda s: s.apply(s.sealed(0, [0, 1, 2], [0, 1, 2], made={"inner_steps": 0})),
}


@pytest.mark.parametrize(
    "change",
    [
        {"manifest": bytes(32)},
        {"rounds": 0},
        {"rounds": 1_000_001},
        {"horizon": 4},
        {"horizon": 24},
        {"horizon": 2048},
        {"bond": 2**96},
        {"stages": 0},
        {"max_replicas": 65},
        {"min_replicas": 4},
        {"quorum_numerator": 0},
        {"quorum_denominator": 1},
        {"quorum_numerator": 1},
        {"quorum_numerator": 2, "quorum_denominator": 4},
        {"min_round_time": 0},
        {"round_timeout": 9},
        {"round_timeout": 30 * 86400 + 1},
        {"eviction_time": 0},
        {"eviction_time": 30 * 86400 + 1},
        {"max_inner_steps": 0},
        {"max_inner_steps": 100_001},
        {"start_time": 2**36},
        {"tokens_per_step": 0},
        {"tokens_per_step": 2**40},
        {"rounds": 1_000_000, "max_inner_steps": 100_000, "tokens_per_step": 2**34},
    ],
)
def test_a_run_that_the_contract_does_not_create_is_refused(change):
    with pytest.raises(ViewError, match="was created with"):
        Story(**change)


@pytest.mark.parametrize("founders", [(), ("0x" + "0" * 40,), ACCOUNTS[:9]])
def test_nor_one_without_founders_or_with_too_many(founders):
    with pytest.raises(ViewError, match="was created with founders"):
        RunView(RUN, DOMAIN).apply(dataclasses.replace(Story().told[0], founders=founders))


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_what_the_contract_cannot_have_emitted_is_refused(story, case):
    with pytest.raises(ViewError):
        IMPOSSIBLE[case](story)


# ---- the audit of a seal ---------------------------------------------------------------------------------------------


def _resigned(story: Story, event: Sealed, signers, **changes) -> Sealed:
    """The seal with changes that its signers and the founder signed."""
    event = dataclasses.replace(event, **changes)
    digest = event.seal(story.view.head(0)).digest(DOMAIN)
    by_seal = {ACCOUNTS[i]: (i, sign(digest, KEYS[ACCOUNTS[i]])) for i in signers}
    return dataclasses.replace(event, digest=digest, signatures=entries(by_seal, {}, sign(digest, KEYS[FOUNDER])))


def _good(story: Story) -> Sealed:
    return story.sealed(0, [0, 1, 2], [0, 1, 2])


TAMPERED = {
    "order": lambda s: dataclasses.replace(_good(s), round=1),
    "digest": lambda s: dataclasses.replace(_resigned(s, _good(s), [0, 1, 2]), outcome=planning(5)),
    "plan": lambda s: _resigned(s, _good(s), [0, 1, 2], outcome=planning(2 * STEPS + 1)),
    "outcome": lambda s: _resigned(s, _good(s), [0, 1, 2], outcome=Outcome.empty(STEPS, PLAN)),
    "empty seal": lambda s: s.sealed(0, [], [0, 1, 2], wait=TIMEOUT, outcome=planning(5)),
    "inner steps": lambda s: s.sealed(0, [0, 1, 2], [0, 1, 2], made={"inner_steps": STEPS + 1}),
    "record signature": lambda s: s.sealed(0, {0: 0, 1: 1, 2: 9}, [0, 1, 3]),
    "signatures": lambda s: dataclasses.replace(_good(s), signatures=bytes(67)),
    "quorum": lambda s: [s.work(40, range(4)), s.sealed(0, [0, 1, 2], [0, 1])][1],
    "time": lambda s: [s.work(40, range(4)), s.sealed(0, [0, 1], [0, 1, 2], wait=TIMEOUT - 1)][1],
}


@pytest.mark.parametrize("check", TAMPERED)
def test_the_audit_finds_what_no_contract_would_take(story, check):
    event = TAMPERED[check](story)
    problems = verify_seal(story.view, event)
    assert {(problem.check, problem.stage) for problem in problems} == {(check, 0)}


def test_the_audit_names_the_record(story):
    event = _good(story)
    other = dataclasses.replace(event.records[1], statement=b"\xee" * 32)
    records = (event.records[0], other, event.records[2])
    changed = _resigned(story, event, [0, 2, 3], records=records)  # all but its maker
    (problem,) = verify_seal(story.view, changed)
    assert (problem.check, problem.hash) == ("record signature", b"\xee" * 32)


def test_the_audit_counts_the_chain_of_digests(story):
    story.seal(0, [0, 1, 2], [0, 1, 2])
    early = story.view.copy()
    for _ in range(2):
        story.seal(0, [0, 1, 2], [0, 1, 2])
    early.apply(dataclasses.replace(story.view.sealed[0, 1], digest=b"\xee" * 32))
    assert [problem.check for problem in verify_seal(early, story.view.sealed[0, 2])] == ["digest"]


def test_a_signature_counts_once_and_for_its_own_account(story):
    story.work(40, range(4))
    event = story.sealed(0, [0, 1, 2], [0, 1, 2], founder=None)
    thrice = dataclasses.replace(event, signatures=event.signatures[:66] * 3)
    assert {p.check for p in verify_seal(story.view, thrice)} == {"quorum", "record signature", "time"}
    swapped = dataclasses.replace(event, signatures=event.signatures[66:] + event.signatures[:66])
    assert verify_seal(story.view, swapped) == [], "entries have no order"
    outsider = story.sealed(0, [0, 1, 2], [0, 1, 9], founder=None)
    assert [p.check for p in verify_seal(story.view, outsider)] == ["quorum"], "passed over"


# ---- the audit of a conviction ---------------------------------------------------------------------------------------


def _honest(story: Story) -> Convicted:
    """What three found honest, said to be false."""
    event = story.convicted(3, [0, 1, 2], finding=WITHHELD)
    verdicts = verdicts_of(story.view, 0, 0, ACCOUNTS[3], names([0, 1, 2]), KEYS, finding=HONEST)
    said = (b"\2" + one.verdict.report + one.signature for one in verdicts)
    return dataclasses.replace(event, entries=b"".join(said))


def _flipped(story: Story, place: int) -> Convicted:
    event = story.convicted(3, [0, 1, 2])
    changed = bytearray(event.entries)
    changed[place] ^= 1
    return dataclasses.replace(event, entries=bytes(changed))


WRONG_CONVICTIONS = {
    "too few": ("verdicts", lambda s: s.convicted(3, [0, 1])),
    "the accused": ("verdicts", lambda s: s.convicted(3, [0, 1, 3])),
    "a stranger": ("verdicts", lambda s: s.convicted(3, [0, 1, 9])),
    "twice the same": ("verdicts", lambda s: s.convicted(3, [0, 1, 1])),
    "found honest": ("verdicts", _honest),
    "another finding": ("verdicts", lambda s: _flipped(s, 0)),
    "another report": ("verdicts", lambda s: _flipped(s, 98 + 1)),
    "another signature": ("verdicts", lambda s: _flipped(s, 2 * 98 + 50)),
    "half an entry": ("verdicts", lambda s: dataclasses.replace(s.convicted(3, [0, 1, 2]), entries=bytes(97))),
    "no such stage": ("verdicts", lambda s: dataclasses.replace(s.convicted(3, [0, 1, 2]), stage=9)),
    "nobody's work": ("accused", lambda s: s.convicted(3, [0, 1, 2], statement=b"\xee" * 32)),
    "work of a round to come": ("accused", lambda s: s.convicted(3, [0, 1, 2], round=50)),
    "another's work": ("accused", lambda s: s.convicted(3, [0, 1, 2], statement=_statement_of(s, 2))),
}


def _statement_of(story: Story, replica: int) -> bytes:
    return story.view.sealed[0, 0].records[replica].statement


@pytest.mark.parametrize("case", WRONG_CONVICTIONS)
def test_the_audit_recounts_a_conviction(story, case):
    story.work(40, range(4))
    check, make = WRONG_CONVICTIONS[case]
    event = make(story)
    problems = verify_conviction(story.view, event)
    assert {(problem.check, problem.hash) for problem in problems} == {(check, event.statement)}


def test_who_publishes_again_and_again_fills_nobodys_memory() -> None:
    story = Story(stages=1)
    story.tell(CheckpointPublished, 0, ACCOUNTS[0], b"\x01" * 32, "https://a.example")
    for folder in range(50):
        story.tell(CheckpointPublished, 0, ACCOUNTS[1], bytes([folder]) * 32, "https://b.example")
    assert [one.folder[0] for one in story.view.checkpoints] == [1, 49], "each account's newest"
    for round in range(2 * MAX_CHECKPOINTS):
        story.tell(CheckpointPublished, round, ACCOUNTS[1], b"\x02" * 32, "https://b.example")
    assert len(story.view.checkpoints) == MAX_CHECKPOINTS


def test_the_first_word_of_an_account_about_a_version_stays():
    story = Story(stages=2, min_replicas=1)
    story.join(0, 0, 0)
    story.join(1, 0, 1)
    story.open()
    for _ in range(2):
        story.seal(0, [0], [0])
        story.seal(1, [1], [1])
    story.tell(Evaluated, ACCOUNTS[1], 1, 50, 10, b"\x07" * 32)
    story.tell(Evaluated, ACCOUNTS[1], 1, 5, 10, b"\x08" * 32)
    assert story.view.evaluation(ACCOUNTS[1], 1).sum == 50
    assert story.view.evaluation(ACCOUNTS[1], 2) is None and story.view.evaluation(ACCOUNTS[0], 1) is None
    for account, version, count in ((0, 1, 10), (2, 1, 10), (1, 0, 10), (1, 3, 10), (1, 1, 0)):
        with pytest.raises(ViewError, match="cannot have said"):
            story.tell(Evaluated, ACCOUNTS[account], version, 50, count, b"\x07" * 32)


def test_what_an_account_says_pushes_out_nobody_else(story):
    view = story.view
    story.work(3, range(4))
    story.tell(Evaluated, ACCOUNTS[1], 1, 50, 10, b"\x07" * 32)
    before = view.copy()
    view.round = 2 * MAX_EVALUATIONS
    for version in range(1, 2 * MAX_EVALUATIONS):
        story.tell(Evaluated, ACCOUNTS[2], version, 50, 10, b"\x07" * 32)
    assert len(view.evaluations[ACCOUNTS[2]]) == MAX_EVALUATIONS
    assert view.evaluation(ACCOUNTS[2], 2 * MAX_EVALUATIONS - 1) and view.evaluation(ACCOUNTS[1], 1)
    assert ACCOUNTS[2] not in before.evaluations, "a copy is left alone"
