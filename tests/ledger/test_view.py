"""The view and the auditor's recount, on events made here (test_client.py has them from real chains)."""

import dataclasses
import random
import time
import tracemalloc

import pytest
from ledger_run import TOKENS, config, contribution

from dlx.ledger.abi import ascending
from dlx.ledger.events import (
    Accused,
    Answered,
    Event,
    EventPosition,
    Evicted,
    Joined,
    Left,
    Moved,
    RoundOpened,
    RunCreated,
    Sealed,
)
from dlx.ledger.keys import account_of, sign
from dlx.ledger.typed import RECORD_SIZE, Domain, Seal, encode_records, join_signatures, summarise
from dlx.ledger.verify import verify_seal
from dlx.ledger.view import RunView, ViewError

RUN = b"\x10" * 32
DOMAIN = Domain(31337, account_of(b"\x99" * 32))
KEYS = {account_of(bytes([i]) * 32): bytes([i]) * 32 for i in range(1, 20)}
ACCOUNTS = ascending(list(KEYS))
GENESIS = (b"\x01" * 32, b"\x02" * 32)


class Story:
    """A run told event by event, without a chain."""

    def __init__(self, **changes) -> None:
        self.view, self.block, self.time = RunView(RUN), 0, 1000
        self.told: list[Event] = []
        settings = config(**{"rounds": 20, "round_timeout": 60, "eviction_time": 30, **changes})
        self.tell(RunCreated, ACCOUNTS[0], settings, "story", GENESIS[: settings.stages])

    def at(self) -> EventPosition:
        return EventPosition(self.block, b"\x33" * 32, 0, b"\x44" * 32, self.time)

    def tell(self, kind, *values) -> None:
        self.block += 1
        self.told.append(kind(RUN, *values, self.at()))
        self.view.apply(self.told[-1])

    def join(self, index: int, replica: int, stage: int) -> None:
        self.tell(Joined, ACCOUNTS[index], replica, stage)

    def open(self, round: int) -> None:
        self.tell(RoundOpened, round, self.time)

    def sealed(self, stage: int, counted, signers, contributed=None, **changes) -> Sealed:
        """A correct seal of the stage's next round but for the changes; accounts by index."""
        view, round = self.view, self.view.next_round(stage)
        records = []
        for index in sorted(counted):
            replica, _ = view.slot_of(ACCOUNTS[index])
            place = {"round": round, "stage": stage, "replica": replica, "account": ACCOUNTS[index]}
            made = contribution(RUN, **{**place, **(contributed or {})})
            records.append(made.sign(DOMAIN, KEYS[ACCOUNTS[index]]))
        before = view.weights(stage, round), view.momentum(stage, round)
        after = (random.randbytes(32), bytes(32)) if counted else before
        s = summarise(records)
        hashes = (before[0], after[0], before[1], after[1], s.root, s.hash)
        multipliers = (32768,) * s.count
        seal = Seal(RUN, stage, round, *hashes, s.count, s.total_tokens, s.mean_loss, 0, 0, 10, multipliers)
        seal = dataclasses.replace(seal, **changes)
        digest = seal.digest(DOMAIN)
        signatures = join_signatures({ACCOUNTS[i]: sign(digest, KEYS[ACCOUNTS[i]]) for i in signers})
        return Sealed(RUN, round, stage, digest, seal, encode_records(records), signatures, self.at())

    def seal(self, stage: int, counted, signers) -> None:
        event = self.sealed(stage, counted, signers)
        assert verify_seal(self.view, event, DOMAIN) == []
        self.view.apply(event)


@pytest.fixture
def story() -> Story:
    """One stage, four replicas with a holder each, in round 0."""
    story = Story(stages=1, max_replicas=4, min_replicas=4)
    for index in range(4):
        story.join(index, index, 0)
    story.open(0)
    return story


def names(indices) -> tuple[str, ...]:
    return tuple(ACCOUNTS[i] for i in indices)


def test_accounts_come_in_numeric_order(story):
    assert story.view.holders(0) == names(range(4))
    assert list(ACCOUNTS) == sorted(ACCOUNTS, key=lambda a: int(a, 16)) != sorted(ACCOUNTS)


def test_everyone_votes_until_someone_is_active(story):
    view = story.view
    assert view.active(0) == () and view.voters(0) == names(range(4)) and view.quorum(0) == 3
    story.seal(0, [0, 1], [0, 1, 2])
    assert view.active(0) == names(range(3)) and view.quorum(0) == 2


def test_activity_lasts_three_rounds(story):
    view = story.view
    story.seal(0, [0, 3], [0, 1, 2])
    for round in (1, 2, 3):
        story.open(round)
        assert ACCOUNTS[3] in view.active(0)
        story.seal(0, [0], [0, 1, 2])
    assert view.active(0) == names(range(3)) and view.last_round_counted(ACCOUNTS[3]) == 0
    assert view.last_round_counted(ACCOUNTS[1]) is None


def test_rejoining_the_same_stage_keeps_activity_and_changing_it_does_not():
    story = Story(stages=2, max_replicas=3, min_replicas=1)
    for index, slot in enumerate([(0, 0), (0, 1), (1, 0), (1, 1)]):
        story.join(index, *slot)
    story.open(0)
    story.seal(0, [0, 2], [0, 2])
    story.tell(Left, ACCOUNTS[2], 1, 0)
    story.join(2, 1, 0)
    assert story.view.active(0) == names([0, 2])
    story.tell(Left, ACCOUNTS[2], 1, 0)
    story.join(2, 2, 1)
    assert story.view.active(1) == () and story.view.slot_of(ACCOUNTS[2]) == (2, 1)


def test_replicas_are_complete_with_every_stage():
    story = Story(stages=2, max_replicas=3, min_replicas=1)
    for index, slot in enumerate([(0, 0), (1, 0), (1, 1)]):
        story.join(index, *slot)
    assert story.view.complete_replicas() == (1,)
    story.tell(Moved, ACCOUNTS[2], 1, 0, 1)
    assert story.view.complete_replicas() == (0,) and story.view.holder(0, 1) == ACCOUNTS[2]
    assert story.view.members() == {ACCOUNTS[0]: (0, 0), ACCOUNTS[2]: (0, 1), ACCOUNTS[1]: (1, 0)}


def test_accusations_wait_for_time_and_blocks(story):
    view = story.view
    opened = view.opened_at
    assert not view.may_accuse(ACCOUNTS[1], opened + 60) and view.may_accuse(ACCOUNTS[1], opened + 61)
    assert not view.may_accuse(ACCOUNTS[9], opened + 61)
    story.time = opened + 61
    story.tell(Accused, ACCOUNTS[1], 1, 0, 0, ACCOUNTS[0])
    assert view.accusations[ACCOUNTS[1]].time == story.time and not view.may_accuse(ACCOUNTS[1], story.time + 1)
    at = story.block
    assert not view.may_evict(ACCOUNTS[1], story.time + 29, at + 50)
    assert not view.may_evict(ACCOUNTS[1], story.time + 300, at + 4)
    assert view.may_evict(ACCOUNTS[1], story.time + 30, at + 5)
    story.tell(Answered, ACCOUNTS[1])
    assert view.accusations == {} and not view.may_evict(ACCOUNTS[1], story.time + 300, at + 50)
    assert not view.may_accuse(ACCOUNTS[1], story.time + 60) and view.may_accuse(ACCOUNTS[1], story.time + 61)
    story.tell(Accused, ACCOUNTS[1], 1, 0, 0, ACCOUNTS[0])
    story.tell(Evicted, ACCOUNTS[1], 1, 0)
    assert view.accusations == {} and view.slot_of(ACCOUNTS[1]) is None and view.holder(1, 0) is None


def test_a_member_that_was_not_active_for_three_rounds_may_be_accused_at_once(story):
    story.seal(0, [0, 1], [0, 1, 2])
    for round in (1, 2):
        story.open(round)
        story.seal(0, [0, 1], [0, 1])
        assert story.view.may_accuse(ACCOUNTS[3], story.view.opened_at) == (round == 2)
    assert not story.view.may_accuse(ACCOUNTS[2], story.view.opened_at)


def test_the_last_round_closes_the_run():
    story = Story(stages=1, min_replicas=1, max_replicas=1, rounds=1)
    story.join(0, 0, 0)
    story.open(0)
    assert not story.view.finished
    story.seal(0, [0], [0])
    assert story.view.finished and (story.view.open_round, story.view.opened_at) == (None, None)


def test_versions_are_genesis_and_seals(story):
    view = story.view
    assert view.weights(0, 0) == GENESIS[0] and view.momentum(0, 0) == bytes(32)
    story.seal(0, [0, 1], [0, 1, 2])
    assert view.weights(0, 1) == view.sealed[0, 0].seal.next_weights
    with pytest.raises(KeyError):
        view.weights(0, 2)


def test_contributions_are_decoded_when_asked_for(story):
    story.seal(0, [0, 2], [0, 1, 2])
    sealed = story.view.sealed[0, 0]
    assert sealed.accounts == names([0, 2]) and sealed.signers == names([0, 1, 2])
    assert [r.contribution.account for r in sealed.contributions] == list(sealed.accounts)
    assert sealed.contributions is sealed.contributions


def test_an_unknown_run_says_so():
    view = RunView(RUN)
    assert not view.created and not view.finished and view.slot_of(ACCOUNTS[0]) is None
    with pytest.raises(ViewError, match="knows no run 1010"):
        view.quorum(0)


def test_copies_are_independent(story):
    early = story.view.copy()
    story.seal(0, [0, 1], [0, 1, 2])
    story.tell(Left, ACCOUNTS[3], 3, 0)
    assert early.next_round(0) == 0 and len(early.sealed) == 0 and early.slot_of(ACCOUNTS[3]) == (3, 0)
    late = story.view.copy()
    story.open(1)
    first = story.sealed(0, [0], [0, 1, 2], plan_inner_steps=14)
    second = story.sealed(0, [1], [0, 1, 2], plan_inner_steps=7)
    late.apply(RoundOpened(RUN, 1, 5, story.at()))
    story.view.apply(first)
    late.apply(second)  # another branch of the chain
    assert story.view.sealed[0, 1] is first and late.sealed[0, 1] is second
    assert list(late.sealed) == [(0, 0), (0, 1)]
    assert [story.view.sealed.planned_steps(0, rounds) for rounds in range(3)] == [0, 10, 24]
    assert [late.sealed.planned_steps(0, rounds) for rounds in range(3)] == [0, 10, 17]
    with pytest.raises(KeyError):
        early.sealed.planned_steps(0, 1)


def test_only_the_newest_seals_are_kept_in_full(story):
    whole, kept = story.view, RunView(RUN, keep=3)
    for event in story.told:
        kept.apply(event)
    early = kept.copy()
    for step in range(10):
        event = story.sealed(0, [0], [0, 1, 2], plan_inner_steps=step + 1)
        for view in (whole, kept):
            view.sealed.append(event)
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
    other = story.sealed(0, [1], [0, 1, 2], plan_inner_steps=500)
    middle.sealed.append(other)  # a copy that goes on alone
    assert (middle.sealed[0, 7], middle.weights(0, 8)) == (other, other.seal.next_weights)
    assert middle.sealed.planned_steps(0, 8) == kept.sealed.planned_steps(0, 7) + 500
    assert kept.sealed[0, 7] == whole.sealed[0, 7]


def test_a_thousand_rounds_cost_a_node_hardly_any_memory(story):
    view = RunView(RUN, keep=16)

    def grow(rounds):
        for _ in range(rounds):
            sealed = story.sealed(0, [0, 1], [0, 1, 2])
            view.sealed.append(dataclasses.replace(sealed, records=bytes(16 * RECORD_SIZE)))

    grow(50)
    tracemalloc.start()
    grow(950)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept / 950 < 16 * RECORD_SIZE / 20 + 150


def test_a_copy_costs_the_same_after_thousands_of_seals(story):
    story.seal(0, [0, 1], [0, 1, 2])
    view = story.view
    for _ in range(5000):
        view.sealed.append(view.sealed[0, 0])
    started = time.process_time()
    for _ in range(100):
        view.copy()
    assert time.process_time() - started < 0.5


def test_events_of_others_change_nothing(story):
    story.view.apply(Joined(b"\x77" * 32, ACCOUNTS[9], 0, 0, story.at()))
    assert story.view.slot_of(ACCOUNTS[9]) is None


IMPOSSIBLE = {
    "a taken seat": lambda s: s.join(9, 0, 0),
    "a second slot": lambda s: s.join(0, 3, 1),
    "no such stage": lambda s: s.join(9, 3, 1),
    "no such replica": lambda s: s.join(9, 4, 0),
    "left by another": lambda s: s.tell(Left, ACCOUNTS[0], 1, 0),
    "evicted nobody": lambda s: s.tell(Evicted, ACCOUNTS[9], 1, 0),
    "moved to a taken seat": lambda s: s.tell(Moved, ACCOUNTS[2], 2, 0, 0),
    "answered nothing": lambda s: s.tell(Answered, ACCOUNTS[0]),
    "round 0 again": lambda s: s.open(0),
    "round 1 early": lambda s: s.open(1),
    "created again": lambda s: s.tell(RunCreated, ACCOUNTS[0], s.view.config, "story", GENESIS[:1]),
    "sealed twice": lambda s: [s.seal(0, [0], [0, 1, 2]), s.seal(0, [0], [0, 1, 2])],
    "sealed with no signature": lambda s: s.view.apply(
        dataclasses.replace(s.sealed(0, [0], [0, 1, 2]), signatures=bytes(65))
    ),
    "counted half a record": lambda s: s.view.apply(dataclasses.replace(s.sealed(0, [0], [0]), records=bytes(100))),
    "signed by a stranger": lambda s: s.view.apply(s.sealed(0, [0], [9])),
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_what_the_contract_cannot_have_emitted_is_refused(story, case):
    with pytest.raises((ViewError, AssertionError)):
        IMPOSSIBLE[case](story)


TAMPERED = {
    "previous weights": {"previous_weights": b"\xee" * 32},
    "previous momentum": {"previous_momentum": b"\xee" * 32},
    "contributions root": {"contributions_root": b"\xee" * 32},
    "contributions hash": {"contributions_hash": b"\xee" * 32},
    "count": {"count": 2},
    "total tokens": {"total_tokens": 1},
    "mean loss": {"mean_loss": 1},
    "multipliers": {"multipliers": (1, 2)},
}


@pytest.mark.parametrize("check", TAMPERED)
def test_the_audit_finds_wrong_seals(story, check):
    event = story.sealed(0, [0, 1, 2], [0, 1, 2], **TAMPERED[check])
    assert [problem.check for problem in verify_seal(story.view, event, DOMAIN)] == [check]


@pytest.mark.parametrize(
    "contributed", [{"tokens": 10 * TOKENS + 1}, {"inner_steps": 0, "tokens": 0}, {"replica": 3}, {"round": 5}]
)
def test_the_audit_finds_wrong_contributions(story, contributed):
    event = story.sealed(0, [1], [0, 1, 2], contributed=contributed)
    (problem,) = verify_seal(story.view, event, DOMAIN)
    assert (problem.check, problem.hash) == ("contribution", event.contributions[0].contribution.hash())


def _forged(story):
    """A record that its account never signed: the contract would not notice."""
    event = story.sealed(0, [0, 1], [0, 1, 2])
    records = list(event.contributions)
    records[1] = dataclasses.replace(records[1], signature=records[0].signature)
    fields = {"contributions_hash": summarise(records).hash}
    seal = dataclasses.replace(event.seal, **fields)
    digest = seal.digest(DOMAIN)
    signatures = join_signatures({a: sign(digest, KEYS[a]) for a in event.signers})
    return dataclasses.replace(event, seal=seal, digest=digest, signatures=signatures, records=encode_records(records))


CHEATED = {
    "contribution signature": _forged,
    "quorum": lambda story: story.sealed(0, [0, 1], [0, 1]),
    "seal signatures": lambda story: story.sealed(0, [0, 1], [0, 1, 2, 9]),
    "empty seal": lambda story: story.sealed(0, [], [0, 1, 2]),
    "order": lambda story: dataclasses.replace(story.sealed(0, [0], [0, 1, 2]), round=1),
    "contributions": lambda story: dataclasses.replace(story.sealed(0, [0], [0, 1, 2]), records=bytes(928)),
}


@pytest.mark.parametrize("check", CHEATED)
def test_the_audit_finds_what_no_contract_would_accept(story, check):
    problems = verify_seal(story.view, CHEATED[check](story), DOMAIN)
    assert check in [problem.check for problem in problems] and all(p.stage == 0 for p in problems)


def test_the_audit_finds_another_digest_and_swapped_signatures(story):
    event = story.sealed(0, [0, 1], [0, 1, 2])
    other = dataclasses.replace(event, digest=b"\xee" * 32)
    assert {"digest", "seal signatures"} <= {p.check for p in verify_seal(story.view, other, DOMAIN)}
    swapped = event.signatures[65:130] + event.signatures[:65] + event.signatures[130:]
    swapped_event = dataclasses.replace(event, signatures=swapped)
    assert [p.check for p in verify_seal(story.view, swapped_event, DOMAIN)] == ["seal signatures"]
    twice = dataclasses.replace(event, signatures=event.signatures[:65] * 3)
    assert {p.check for p in verify_seal(story.view, twice, DOMAIN)} == {"seal signatures", "quorum"}


def test_an_empty_seal_is_right_after_the_timeout(story):
    story.time = story.view.opened_at + 60
    assert verify_seal(story.view, story.sealed(0, [], [0, 1, 2]), DOMAIN) == []
    changed = story.sealed(0, [], [0, 1, 2], next_weights=b"\xee" * 32)
    assert [p.check for p in verify_seal(story.view, changed, DOMAIN)] == ["empty seal"]
