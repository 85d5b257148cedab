"""A view from a snapshot and later events is the view from all events: whatever happened, and whatever was undone."""

import random
from collections.abc import Sequence

import pytest
from ledger_logs import LEDGER, OTHER, REGISTRY, RUN, deregistered, encoded, joined

from dlx.ledger.abi import ZERO_ACCOUNT, ascending
from dlx.ledger.events import (
    Accused,
    Answered,
    Convicted,
    Dealt,
    Dismissed,
    Event,
    EventPosition,
    Evicted,
    Joined,
    Left,
    Moved,
    RunCreated,
    Sealed,
)
from dlx.ledger.index import rebuild, seal_rows
from dlx.ledger.index.event_index import Contracts, EventIndex
from dlx.ledger.index.rebuild import NodesReplay, RunReplay
from dlx.ledger.keys import account_of, sign
from dlx.ledger.typed import Domain, Outcome, Plan, Record, RunConfig, Seal, entries
from dlx.ledger.view.node_registry import NodeTable
from dlx.ledger.view.run_state import ViewError
from dlx.ledger.view.run_view import RunView

KEYS = {account_of(bytes([i]) * 32): bytes([i]) * 32 for i in range(1, 9)}
ACCOUNTS = ascending(list(KEYS))
STAGES = 2
GENESIS = (b"\x01" * 32, b"\x02" * 32)
CONFIG = RunConfig(
    manifest=b"\x03" * 32, rounds=1000, stages=STAGES, min_replicas=1, max_replicas=3, quorum_numerator=2,
    quorum_denominator=3, min_round_time=1, round_timeout=2, eviction_time=2, max_inner_steps=10, start_time=0,
    tokens_per_step=64, horizon=8, invited=False, bond=0, outer=bytes(32),
)  # fmt: skip
DOMAIN = Domain(31337, LEDGER)
DEEDS = ("join", "join", *["seal"] * 8, "leave", "move", "deal", "ask", "answer", "evict", "dismiss", "convict")
CONTRACTS = Contracts(LEDGER, REGISTRY)


@pytest.fixture
def open_index(tmp_path):
    return lambda path="index.db": EventIndex(path and tmp_path / path, 31337, CONTRACTS)


class Chance:
    """Events of a run at random, of which the view refuses those that no contract emits."""

    def __init__(self, dice: random.Random, told: Sequence[Event] = ()) -> None:
        self.dice, self.view, self.told = dice, RunView(RUN, DOMAIN), []
        for event in told or (RunCreated(RUN, ACCOUNTS[0], CONFIG, "chance", GENESIS, ACCOUNTS[:1], at(0)),):
            self.told.append(event)
            self.view.apply(event)

    def next(self, block: int) -> Event:
        """One more event, in this block."""
        while True:
            before = self.view.copy()
            try:
                event = self.view.due[0] if self.view.due else self._try(at(block))
                self.view.apply(event)
                self.told.append(event)
                return event
            except (ViewError, KeyError, IndexError):
                self.view = before

    def _try(self, now: EventPosition) -> Event:
        dice, view = self.dice, self.view
        who, stage, replica = dice.choice(ACCOUNTS), dice.randrange(STAGES), dice.randrange(CONFIG.max_replicas)
        slot = view.slot_of(who) or (replica, stage)
        match dice.choice(DEEDS):
            case "join":
                return Joined(RUN, who, view.free_slot(stage, who, now.time) or 0, stage, now)
            case "seal":
                return self._sealed(stage, now)
            case "leave":
                return Left(RUN, who, *slot, now)
            case "move":
                return Moved(RUN, who, slot[0], view.free_slot(slot[1], who, now.time) or 0, slot[1], now)
            case "deal":
                stage, other = (view.deal_of(replica) if view.may_deal(replica) else ())[0]
                return Dealt(RUN, stage, replica, other, now)
            case "ask":
                return Accused(RUN, who, dice.choice(ACCOUNTS), view.is_forfeit(who), now)
            case "answer":
                return Answered(RUN, who, now)
            case "dismiss":
                successor = dice.choice([ZERO_ACCOUNT, *ACCOUNTS])
                until = 0 if successor == ZERO_ACCOUNT else now.time + CONFIG.eviction_time
                return Dismissed(RUN, who, ACCOUNTS[0], *slot, successor, until, now)
            case "convict":  # one of a few, or nobody would be left
                return Convicted(RUN, dice.choice(ACCOUNTS[-2:]), stage, 0, dice.randbytes(32), bytes(98), now)
            case _:
                until = now.time + CONFIG.eviction_time if dice.random() < 0.5 else 0
                return Evicted(RUN, who, *slot, until, now)

    def _sealed(self, stage: int, now: EventPosition) -> Sealed:
        view, dice, members = self.view, self.dice, self.view.members_in(stage)
        makers = dice.sample(members, dice.randint(0, len(members)))
        slots = {account: view.accounts[account].replica for account in makers}
        records = [
            Record(replica, dice.randbytes(32), dice.randrange(10**7), 5, 1, 32768)
            for replica in sorted(slots.values())
        ]
        plan = Plan(4, 0, dice.randint(1, 9))
        hashes = [dice.randbytes(32) for _ in range(4)]
        outcome = Outcome(*hashes, 9, plan) if records else Outcome.empty(9, plan)
        digest = Seal(RUN, stage, view.next_round(stage), view.head(stage), outcome, tuple(records)).digest(DOMAIN)
        signed = entries({a: (replica, sign(digest, KEYS[a])) for a, replica in slots.items()}, {}, bytes(65))
        return Sealed(RUN, stage, view.next_round(stage), digest, outcome, tuple(records), signed, now)


def at(block: int) -> EventPosition:
    return EventPosition(block, bytes(32), 0, bytes(32), 1000 + block)  # as the fake chain has it


def all_of(view: RunView):
    """Everything that a view says."""
    stages, sealed = range(view.config.stages), view.sealed
    return (
        {name: value for name, value in vars(view).items() if name != "sealed"},
        {key: sealed[key] for key in sealed},
        [[sealed.hashes_after(s, r) for r in range(sealed.rounds(s))] for s in stages],
        [[sealed.planned_steps(s, r) for r in range(sealed.rounds(s) + 1)] for s in stages],
        [[sealed.paid(s, epoch) for epoch in range(sealed.rounds(s) // 16 + 1)] for s in stages],
    )


def from_all_events(rpc, keep=None):
    index = EventIndex(None, 31337, CONTRACTS)
    index.sync(rpc)
    view = RunView(RUN, DOMAIN, keep)
    for event in index.events(RUN):
        view.apply(event)
    return view


def told(fake_chain, dice: random.Random, events: int) -> Chance:
    """A history of so many events, one a block."""
    story = Chance(dice)
    fake_chain.mine(encoded(story.told[0]))
    for _ in range(events - 1):
        fake_chain.mine(encoded(story.next(fake_chain.length)), deregistered())
    return story


@pytest.mark.parametrize("seed", range(6))
def test_a_view_from_a_snapshot_is_the_view_from_all_events(fake_chain, rpc, open_index, monkeypatch, seed):
    monkeypatch.setattr(rebuild, "SNAPSHOT_EVENTS", 5)
    dice = random.Random(seed)
    story = Chance(dice)
    blocks = [1, 1]  # events told up to each block
    fake_chain.mine(*map(encoded, story.told))
    followed = RunReplay(open_index(), RUN, keep=3)
    for _ in range(12):
        if dice.random() < 0.4 and len(blocks) > 2:
            kept = dice.randint(2, len(blocks) - 1)
            fake_chain.reorg(kept, f"branch {dice.random()}")
            del blocks[kept:]
            story = Chance(dice, story.told[: blocks[-1]])
        for _ in range(dice.randint(1, 12)):
            events = [story.next(fake_chain.length) for _ in range(dice.randint(0, 4))]
            fake_chain.mine(*map(encoded, events), joined(OTHER))
            blocks.append(len(story.told))
        followed._index.sync(rpc)
        followed.advance()
        whole, newest = from_all_events(rpc), from_all_events(rpc, keep=3)
        assert all_of(followed.view) == all_of(newest)
        later = open_index()
        once = RunReplay(later, RUN)
        once.advance()
        assert all_of(once.view) == all_of(whole), "with the seals that are read when asked for"
        earlier = RunReplay(later, RUN, keep=3)
        try:
            earlier.advance(until=dice.randrange(fake_chain.length))
        except ViewError:
            raise AssertionError("a prefix of a history is a history") from None
        earlier.advance()
        assert all_of(earlier.view) == all_of(newest)
        found = {(row.stage, row.round): row.weights for row in seal_rows.read(later, RUN)}
        assert found == {(s, r): whole.weights(s, r + 1) for s, r in whole.sealed}
        later.close()
    assert open_index().rows("SELECT count(*) FROM snapshots WHERE subject = ?", RUN)[0][0] > 0


def test_a_stranger_s_events_are_not_decoded(fake_chain, rpc, open_index, monkeypatch):
    story = told(fake_chain, random.Random(3), 10)
    fake_chain.mine(*[joined(OTHER)] * 500)
    index = open_index()
    index.sync(rpc)
    seen = []
    decode = rebuild.decoded
    monkeypatch.setattr(rebuild, "decoded", lambda log, time: seen.append(log) or decode(log, time))
    run = RunReplay(index, RUN)
    run.advance()
    assert run.view.created and len(seen) == len(story.told) and index.runs() == [RUN]


def test_a_later_start_decodes_what_came_after_the_snapshot(fake_chain, rpc, open_index, monkeypatch):
    monkeypatch.setattr(rebuild, "SNAPSHOT_EVENTS", 10)
    told(fake_chain, random.Random(1), 40)
    first = open_index()
    first.sync(rpc)
    RunReplay(first, RUN).advance()
    NodesReplay(first).advance()
    first.close()
    seen = []
    decode = rebuild.decoded
    monkeypatch.setattr(rebuild, "decoded", lambda log, time: seen.append(log) or decode(log, time))
    run, nodes = RunReplay(open_index(), RUN), NodesReplay(open_index())
    run.advance()
    nodes.advance()
    assert len(seen) < 20 and all_of(run.view) == all_of(from_all_events(rpc))
    assert nodes.nodes.nodes == NodeTable().nodes


def test_a_snapshot_that_cannot_be_read_is_done_without(fake_chain, rpc, open_index, monkeypatch):
    monkeypatch.setattr(rebuild, "SNAPSHOT_EVENTS", 2)
    told(fake_chain, random.Random(2), 60)
    for wrong in ("UPDATE snapshots SET state = x'c1'", "DELETE FROM seals"):
        index = open_index()
        index.sync(rpc)
        RunReplay(index, RUN).advance()
        index._file.db.execute(wrong)
        again = RunReplay(index, RUN)
        again.advance()
        assert all_of(again.view) == all_of(from_all_events(rpc))
        index.close()


def test_a_history_with_a_hole_is_read_anew(fake_chain, rpc, open_index):
    """A chain node that once left out a block's logs."""
    created = RunCreated(RUN, ACCOUNTS[0], CONFIG, "hole", GENESIS, ACCOUNTS[:1], at(0))
    for event in (created, Joined(RUN, ACCOUNTS[0], 0, 0, at(2)), Left(RUN, ACCOUNTS[0], 0, 0, at(3))):
        fake_chain.mine(encoded(event))
    whole = fake_chain.logs[2]
    fake_chain.logs[2] = []
    index = open_index()
    index.sync(rpc)
    fake_chain.logs[2] = whole
    run = RunReplay(index, RUN)
    with pytest.raises(ViewError, match="does not hold"):
        run.advance()
    index.sync(rpc)
    run.advance()
    assert run.view.joined_at(ACCOUNTS[0]) == 1002
