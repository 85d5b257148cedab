"""The view and the auditor's recount, on events made here (test_view_differential.py has them from the contract)."""

import dataclasses
import time
import tracemalloc

import pytest
from ledger_run import PLAN, STEPS, config, seal_of, signatures_of, verdicts_of, work

from dlx.ledger.abi import ZERO32, ascending
from dlx.ledger.events import (
    Accused,
    Answered,
    CheckpointPublished,
    Convicted,
    Dealt,
    Event,
    EventPosition,
    Evicted,
    Joined,
    Left,
    Moved,
    RunCreated,
    RunOpened,
    Sealed,
)
from dlx.ledger.keys import account_of, sign
from dlx.ledger.typed import HONEST, RECORD_SIZE, WITHHELD, Domain, Outcome, Plan, conviction_entries, entries
from dlx.ledger.view.recount import verify_conviction, verify_seal
from dlx.ledger.view.run_state import Accusation, Return, ViewError
from dlx.ledger.view.run_view import MAX_CHECKPOINTS, RunView

RUN = b"\x10" * 32
DOMAIN = Domain(31337, account_of(b"\x99" * 32))
KEYS = {account_of(bytes([i]) * 32): bytes([i]) * 32 for i in range(1, 20)}
ACCOUNTS = ascending(list(KEYS))
GENESIS = (b"\x01" * 32, b"\x02" * 32)
MIN, TIMEOUT, EVICTION = 10, 60, 30


class Story:
    """A run told event by event, without a chain; accounts by their index."""

    def __init__(self, **changes) -> None:
        self.view, self.block, self.time = RunView(RUN, DOMAIN), 0, 1000
        self.told: list[Event] = []
        times = {"min_round_time": MIN, "round_timeout": TIMEOUT, "eviction_time": EVICTION}
        settings = config(**{"rounds": 100, **times, **changes})
        self.tell(RunCreated, ACCOUNTS[0], settings, "story", GENESIS[: settings.stages])

    def at(self) -> EventPosition:
        return EventPosition(self.block, b"\x33" * 32, 0, b"\x44" * 32, self.time)

    def tell(self, kind, *values) -> None:
        self.apply(kind(RUN, *values, self.at()))

    def apply(self, event: Event) -> None:
        self.block += 1
        self.told.append(event)
        self.view.apply(event)

    def join(self, index: int, replica: int, stage: int) -> None:
        self.tell(Joined, ACCOUNTS[index], replica, stage)

    def leave(self, index: int) -> None:
        self.tell(Left, ACCOUNTS[index], *self.view.slot_of(ACCOUNTS[index]))
        self.time += 1  # in the same second nobody can take the slot

    def open(self) -> None:
        self.tell(RunOpened, self.time)

    def sealed(self, stage: int, counted, signers, made=None, wait=MIN, **changes) -> Sealed:
        """A correct seal of the stage's next round but for the changes, so long after the round opened. `counted`:
        accounts, or for those without a slot {replica: account}."""
        view = self.view
        self.time = max(self.time, view.opened_at + wait)
        if not isinstance(counted, dict):
            counted = {view.slot_of(ACCOUNTS[index])[0]: index for index in counted}
        makers = {replica: ACCOUNTS[index] for replica, index in counted.items()}
        contributions = work(view, stage, makers, KEYS, **(made or {}))
        seal = seal_of(view, stage, contributions, **changes)
        signatures = signatures_of(view, seal, contributions, names(signers), KEYS)
        digest = seal.digest(DOMAIN)
        return Sealed(RUN, stage, seal.round, digest, seal.outcome, seal.records, signatures, self.at())

    def seal(self, stage: int, counted, signers, wait=MIN) -> None:
        event = self.sealed(stage, counted, signers, wait=wait)
        assert verify_seal(self.view, event) == []
        self.apply(event)

    def convicted(self, account: int, signers, round: int = 0, stage: int = 0, **changes) -> Convicted:
        """The event of what these sign, whether or not it is enough."""
        verdicts = verdicts_of(self.view, stage, round, ACCOUNTS[account], names(signers), KEYS, **changes)
        about = verdicts[0].verdict
        return Convicted(RUN, about.account, stage, round, about.statement, conviction_entries(verdicts), self.at())

    def bits(self, stage: int = 0) -> list[int]:
        return list(self.view.stages[stage].counts[:4])


@pytest.fixture
def story() -> Story:
    """One stage, four replicas with a member each, in round 0."""
    story = Story(stages=1, max_replicas=6, min_replicas=4)
    for index in range(4):
        story.join(index, index, 0)
    story.open()
    return story


def names(indices) -> tuple[str, ...]:
    return tuple(ACCOUNTS[i] for i in indices)


# ---- votes -----------------------------------------------------------------------------------------------------------


def test_accounts_come_in_numeric_order(story):
    assert story.view.members_in(0) == names(range(4))
    assert list(ACCOUNTS) == sorted(ACCOUNTS, key=lambda a: int(a, 16)) != sorted(ACCOUNTS)


def test_a_vote_is_earned_by_being_counted_and_not_by_signing(story):
    view = story.view
    assert view.voters(0) == names(range(4)) and view.quorum(0) == 3 and not view.has_earned(0)
    story.seal(0, [0, 1, 2], [0, 1, 2, 3])
    assert view.voters(0) == names([0, 1, 2]) and view.has_earned(0)
    for _ in range(6):
        story.seal(0, [0, 1, 2], [0, 1, 2, 3])
    assert story.bits()[:3] == [0b1111111] * 3 and story.bits()[3] == 0
    story.seal(0, [0, 1, 3], [0, 1, 2, 3])
    assert view.voters(0) == names([0, 1, 2]), "a vote takes two counts once there were eight seals"
    story.seal(0, [0, 1, 3], [0, 1, 2, 3])
    assert view.voters(0) == names([0, 1, 2, 3]) and story.bits() == [0xFF, 0xFF, 0xFC, 0b11]


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


def test_a_quorum_is_of_no_fewer_votes_than_the_smallest_number_of_replicas(story):
    story.seal(0, [0], [0, 1, 2], wait=TIMEOUT)
    assert story.view.voters(0) == names([0]) and story.view.quorum(0) == 3


def test_a_vote_ends_with_the_eighth_seal_that_leaves_its_member_out(story):
    for round in range(12):
        story.seal(0, [0, 1, 2, 3] if round < 2 else [0, 1, 2], [0, 1, 2, 3])
        assert (ACCOUNTS[3] in story.view.voters(0)) == (round <= 8 - 1), round
    assert story.view.last_round_counted(ACCOUNTS[3]) == 1 and story.view.last_round_counted(ACCOUNTS[8]) is None


def test_who_left_votes_and_is_counted_until_the_next_seal(story):
    view = story.view
    for _ in range(2):
        story.seal(0, [0, 1, 2], [0, 1, 2])
    story.leave(2)
    assert view.slot_of(ACCOUNTS[2]) is None and view.may_vote(ACCOUNTS[2], 0)
    assert view.admissible(ACCOUNTS[2], 0, 2) and not view.admissible(ACCOUNTS[2], 0, 1)
    assert view.voters(0) == names([0, 1]) and view.votes(0, names([0, 2, 3])) == 2
    story.join(7, 2, 0)
    story.seal(0, {0: 0, 2: 2, 3: 3}, [0, 1, 2])
    assert view.sealed[0, 2].accounts == names([0, 2, 3])
    assert story.bits() == [0b111, 0b110, 0, 0b001], "nothing goes to the newcomer in its slot"
    assert not view.may_vote(ACCOUNTS[2], 0) and not view.admissible(ACCOUNTS[2], 0, 2)
    assert view.last_round_counted(ACCOUNTS[2]) == 2


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
    assert view.sealed[0, 1].accounts == names([0, 2, 3, 8]) and story.bits() == [0b11, 0b10, 0, 0b1]
    assert view.maker(2, 0) == ACCOUNTS[7]


def test_a_majority_of_the_earned_votes_is_enough_when_a_round_is_overdue():
    story = Story(stages=1, max_replicas=5, min_replicas=1, quorum_numerator=4, quorum_denominator=5)
    for index in range(5):
        story.join(index, index, 0)
        if index == 0:
            story.open()
    view = story.view
    for _ in range(2):
        story.seal(0, range(5), range(5))
    overdue = view.opened_at + 4 * TIMEOUT
    assert (view.needed(0, names(range(5)), overdue - 1), view.needed(0, names(range(5)), overdue)) == (4, 3)
    assert [p.check for p in verify_seal(view, story.sealed(0, [0, 1, 2], [0, 1, 2], wait=TIMEOUT))] == ["quorum"]
    story.seal(0, [0, 1, 2], [0, 1, 2], wait=4 * TIMEOUT)


def test_a_stage_whose_voters_are_gone_waits_until_the_round_is_overdue(story):
    view = story.view
    story.seal(0, [0, 1, 2, 3], [0, 1, 2, 3])
    for index in range(4):
        story.leave(index)
    for index in range(10, 14):
        story.join(index, index - 10, 0)
    assert not view.has_earned(0) and view.voters(0) == names(range(10, 14))
    assert view.opens_at(0, 4) == view.opened_at + 4 * TIMEOUT
    story.seal(0, [], range(10, 14), wait=4 * TIMEOUT)


def test_few_contributions_and_none_wait_for_the_timeout(story):
    view, opened = story.view, story.view.opened_at
    assert [view.opens_at(0, n) - opened for n in range(5)] == [TIMEOUT] * 3 + [MIN] * 2
    story.seal(0, [], [0, 1, 2], wait=TIMEOUT)
    assert (view.weights(0, 1), view.momentum(0, 1)) == (GENESIS[0], ZERO32)
    assert view.open_round == 1 and view.opened_at == story.time
    with pytest.raises(ViewError, match="no round is open"):
        Story().view.opens_at(0, 1)


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
    with pytest.raises(ViewError, match="cannot have been dealt"):
        view.copy().apply(Dealt(RUN, swaps[0][0], 2, 1 - swaps[0][1], story.at()))
    for stage, other in swaps:
        story.tell(Dealt, stage, 2, other)
        here, there = ACCOUNTS[4 + stage], view.member_at(2, stage)
        assert view.slot_of(here) == (other, stage) and before[there] == (other, stage)
        assert view.may_vote(there, stage) and view.maker(2, stage) == here and view.maker(other, stage) == there
        assert not view.admissible(here, stage, other), "it ends the round where it began it"
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


def test_a_member_s_counts_go_with_it_when_it_moves():
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
    two.leave(2)
    two.tell(Moved, ACCOUNTS[3], 2, 1, 0)
    assert two.bits()[:3] == [1, 1, 0] and two.view.maker(2, 0) == ACCOUNTS[3]


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


def test_who_left_cannot_change_stage_before_its_old_stage_s_next_seal():
    story = Story(stages=2, max_replicas=3, min_replicas=1)
    for index, slot in enumerate([(0, 0), (0, 1), (1, 0)]):
        story.join(index, *slot)
        if index == 1:
            story.open()
    story.leave(2)
    with pytest.raises(ViewError, match="changed stage"):
        story.view.copy().apply(Joined(RUN, ACCOUNTS[2], 1, 1, story.at()))
    story.seal(0, [0], [0])
    story.join(2, 1, 1)
    assert story.view.slot_of(ACCOUNTS[2]) == (1, 1)


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
    assert story.bits()[1] == 0, "without its votes"


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
        assert not view.is_forfeit(idler, story.time)
        story.seal(0, [0, 1, 2], [0, 1, 2])
        if round == 5:  # leaving and joining again wipes nothing
            story.leave(3)
            story.join(3, 3, 0)
    assert view.is_forfeit(idler, story.time) and not view.is_forfeit(ACCOUNTS[0], story.time)
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


def test_all_slots_of_a_stage_that_stands_still_are_forfeit(story):
    story.seal(0, [0, 1, 2], [0, 1, 2])
    until = story.time + 32 * TIMEOUT  # its round has been open for longer than 8
    assert not story.view.is_forfeit(ACCOUNTS[0], until) and story.view.is_forfeit(ACCOUNTS[0], until + 1)
    story.time = until
    story.join(8, 4, 0)
    assert not story.view.is_forfeit(ACCOUNTS[8], until + 1), "it has just come"
    assert not story.view.is_forfeit(ACCOUNTS[9], until + 1), "it holds nothing"


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
    for ask in (view.quorum, view.voters, view.head, view.has_earned):
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
    assert kept / 950 < 16 * RECORD_SIZE / 5 + 150


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


def test_a_quorum_convicts_with_the_accused_counted_in(story):
    view = story.view
    assert not view.may_convict(0, ACCOUNTS[3], names(range(4))), "nobody has earned a vote"
    story.seal(0, [0, 1, 2, 3], [0, 1, 2, 3])
    assert view.jury(0, ACCOUNTS[3]) == names([0, 1, 2]) and view.convictions_needed(0, ACCOUNTS[3]) == 3
    assert not view.may_convict(0, ACCOUNTS[3], names([0, 1]))
    assert not view.may_convict(0, ACCOUNTS[3], names([0, 1, 3, 9])), "nor the accused, nor a stranger"
    assert not view.may_convict(0, ACCOUNTS[9], names([0, 1, 2, 3])), "it never held a slot"
    assert not view.may_convict(7, ACCOUNTS[3], names([0, 1, 2, 3])), "there is no such stage"
    assert view.may_convict(0, ACCOUNTS[3], names([0, 1, 2]))
    event = story.convicted(3, [0, 1, 2])
    assert verify_conviction(view, event) == []
    story.apply(event)
    assert view.is_convicted(ACCOUNTS[3]) and view.slot_of(ACCOUNTS[3]) is None and view.convictions == (event,)
    assert not view.may_convict(0, ACCOUNTS[3], names([0, 1, 2]))
    # The round's seal may still count it, and it has its vote of that one.
    assert view.admissible(ACCOUNTS[3], 0, 3) and view.may_vote(ACCOUNTS[3], 0)
    story.seal(0, {0: 0, 1: 1, 2: 2, 3: 3}, [0, 1, 3])
    assert not view.admissible(ACCOUNTS[3], 0, 3) and not view.may_vote(ACCOUNTS[3], 0)
    with pytest.raises(ViewError):
        story.join(3, 3, 0)


def test_who_left_is_convicted_as_well(story):
    story.seal(0, [0, 1, 2, 3], [0, 1, 2, 3])
    story.leave(3)
    assert story.view.convictions_needed(0, ACCOUNTS[3]) == 3, "it counts as one vote more"
    copy = story.view.copy()
    story.apply(story.convicted(3, [0, 1, 2]))
    assert story.view.is_convicted(ACCOUNTS[3]) and not copy.is_convicted(ACCOUNTS[3])
    with pytest.raises(ViewError):
        story.join(3, 3, 0)


# ---- what cannot have happened ---------------------------------------------------------------------------------------

IMPOSSIBLE = {
    "a taken slot": lambda s: s.join(9, 0, 0),
    "a second slot": lambda s: s.join(0, 4, 0),
    "not the lowest slot": lambda s: s.join(9, 5, 0),
    "no such stage": lambda s: s.join(9, 4, 1),
    "no such replica": lambda s: [s.join(9, 4, 0), s.join(10, 5, 0), s.join(11, 6, 0)],
    "left by another": lambda s: s.tell(Left, ACCOUNTS[0], 1, 0),
    "evicted nobody": lambda s: s.tell(Evicted, ACCOUNTS[9], 1, 0, 0),
    "evicted unasked": lambda s: s.tell(Evicted, ACCOUNTS[1], 1, 0, 0),
    "moved to a taken slot": lambda s: s.tell(Moved, ACCOUNTS[2], 2, 0, 0),
    "moved up": lambda s: s.tell(Moved, ACCOUNTS[2], 2, 4, 0),
    "convicted where it never was": lambda s: s.apply(s.convicted(9, [0, 1, 2])),
    "convicted in no stage": lambda s: s.apply(s.convicted(3, [0, 1, 2], stage=7)),
    "convicted twice": lambda s: [s.apply(s.convicted(3, [0, 1, 2])), s.apply(s.convicted(3, [0, 1, 2]))],
    "asked too early": lambda s: s.tell(Accused, ACCOUNTS[1], ACCOUNTS[0], False),
    "answered nothing": lambda s: s.tell(Answered, ACCOUNTS[0]),
    "dealt for nothing": lambda s: s.tell(Dealt, 0, 0, 1),
    "opened again": lambda s: s.open(),
    "created again": lambda s: s.tell(RunCreated, ACCOUNTS[0], s.view.config, "story", GENESIS[:1]),
    "sealed the round after": lambda s: s.apply(dataclasses.replace(s.sealed(0, [0, 1, 2], [0, 1, 2]), round=1)),
    "sealed another stage": lambda s: s.apply(dataclasses.replace(s.sealed(0, [0, 1, 2], [0, 1, 2]), stage=1)),
    "sealed too early": lambda s: s.apply(s.sealed(0, [0, 1, 2], [0, 1, 2], wait=MIN - 1)),
    "counted few too early": lambda s: s.apply(s.sealed(0, [0, 1], [0, 1, 2], wait=TIMEOUT - 1)),
    "counted nobody's": lambda s: s.apply(s.sealed(0, {0: 0, 1: 1, 5: 9}, [0, 1, 2])),
    "changed by nothing": lambda s: s.apply(s.sealed(0, [], [0, 1, 2], wait=TIMEOUT, outcome=planning(5))),
    "planned too much": lambda s: s.apply(s.sealed(0, [0, 1, 2], [0, 1, 2], outcome=planning(2 * STEPS + 1))),
    "planned nothing": lambda s: s.apply(s.sealed(0, [0, 1, 2], [0, 1, 2], outcome=planning(0))),
    "worked too much": lambda s: s.apply(s.sealed(0, [0, 1, 2], [0, 1, 2], made={"inner_steps": STEPS + 1})),
    "worked not at all": lambda s: s.apply(s.sealed(0, [0, 1, 2], [0, 1, 2], made={"inner_steps": 0})),
}


@pytest.mark.parametrize(
    "change",
    [
        {"manifest": bytes(32)},
        {"rounds": 0},
        {"rounds": 10_000_001},
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
        {"rounds": 10_000_000, "max_inner_steps": 100_000, "tokens_per_step": 2**30},
    ],
)
def test_a_run_that_the_contract_does_not_create_is_refused(change):
    with pytest.raises(ViewError, match="was created with"):
        Story(**change)


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_what_the_contract_cannot_have_emitted_is_refused(story, case):
    with pytest.raises(ViewError):
        IMPOSSIBLE[case](story)


# ---- the audit of a seal ---------------------------------------------------------------------------------------------


def _resigned(story: Story, event: Sealed, signers, **changes) -> Sealed:
    """The seal with changes that its signers signed."""
    event = dataclasses.replace(event, **changes)
    digest = event.seal(story.view.head(0)).digest(DOMAIN)
    by_seal = {ACCOUNTS[i]: (i, sign(digest, KEYS[ACCOUNTS[i]])) for i in signers}
    return dataclasses.replace(event, digest=digest, signatures=entries(by_seal, {}))


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
    "quorum": lambda s: s.sealed(0, [0, 1, 2], [0, 1]),
    "time": lambda s: s.sealed(0, [0, 1], [0, 1, 2], wait=TIMEOUT - 1),
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
    event = _good(story)
    thrice = dataclasses.replace(event, signatures=event.signatures[:66] * 3)
    assert {p.check for p in verify_seal(story.view, thrice)} == {"quorum", "record signature"}
    swapped = dataclasses.replace(event, signatures=event.signatures[66:] + event.signatures[:66])
    assert verify_seal(story.view, swapped) == [], "entries have no order"
    outsider = story.sealed(0, [0, 1, 2], [0, 1, 9])
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
    "work of a round to come": ("accused", lambda s: s.convicted(3, [0, 1, 2], round=5)),
    "another's work": ("accused", lambda s: s.convicted(3, [0, 1, 2], statement=_statement_of(s, 2))),
}


def _statement_of(story: Story, replica: int) -> bytes:
    return story.view.sealed[0, 0].records[replica].statement


@pytest.mark.parametrize("case", WRONG_CONVICTIONS)
def test_the_audit_recounts_a_conviction(story, case):
    story.seal(0, [0, 1, 2, 3], [0, 1, 2, 3])
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
