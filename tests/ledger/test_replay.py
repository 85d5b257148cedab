"""A view from a snapshot and later events is the view from all events: whatever happened, and whatever was undone."""

import random

import pytest
from ledger_logs import LEDGER, OTHER, REGISTRY, deregistered, encoded, joined
from test_view import ACCOUNTS, RUN, Story

from dlx.ledger import replay, rows
from dlx.ledger.abi import ZERO32
from dlx.ledger.events import Accused, Answered, Evicted, Left, Moved, RoundOpened
from dlx.ledger.index import Contracts, EventIndex
from dlx.ledger.logs import Unsettled
from dlx.ledger.nodes import NodeTable
from dlx.ledger.replay import NodesReplay, RunReplay
from dlx.ledger.rpc import Rpc
from dlx.ledger.view import RunView, ViewError

CONTRACTS = Contracts(LEDGER, REGISTRY)


@pytest.fixture
def rpc(fake_chain):
    return Rpc(fake_chain.url, patience=1)


@pytest.fixture
def open_index(tmp_path):
    return lambda path="index.db": EventIndex(path and tmp_path / path, 31337, CONTRACTS)


class Chance(Story):
    """Events at random, of which the view refuses those that no contract emits."""

    def __init__(self, dice: random.Random) -> None:
        super().__init__(stages=2, min_replicas=1, max_replicas=3, rounds=1000)
        self.dice = dice

    def next(self):
        """One more event."""
        while True:
            told = len(self.told)
            before = self.view.copy()
            try:
                self._try()
                return self.told[-1]
            except (ViewError, TypeError, KeyError, ValueError):
                self.view = before
                del self.told[told:]

    def _try(self) -> None:
        dice, view = self.dice, self.view
        who, stage, replica = dice.choice(ACCOUNTS[:8]), dice.randrange(2), dice.randrange(3)
        at = view.slot_of(who) or (replica, stage)
        match dice.choice(
            ["join", "seal", "seal", "seal", "open", "open", "open", "leave", "move", "ask", "answer", "evict"]
        ):
            case "join":
                self.join(ACCOUNTS.index(who), replica, stage)
            case "open":
                self.tell(RoundOpened, view.next_round(0), self.time)
            case "seal":
                holders = [ACCOUNTS.index(one) for one in view.holders(stage)]
                event = self.sealed(stage, dice.sample(holders, dice.randint(0, len(holders))), holders)
                view.apply(event)
                self.told.append(event)
            case "leave":
                self.tell(Left, who, *at)
            case "move":
                self.tell(Moved, who, at[0], replica, at[1])
            case "ask":
                self.tell(Accused, who, *at, view.open_round, ACCOUNTS[0])
            case "answer":
                self.tell(Answered, who)
            case "evict":
                self.tell(Evicted, who, *at)


def all_of(view: RunView):
    """Everything that a view says."""
    stages, sealed = range(view.config.stages), view.sealed
    return (
        {name: value for name, value in vars(view).items() if name != "sealed"},
        {key: sealed[key] for key in sealed},
        [[sealed.next_hashes(s, r) for r in range(sealed.rounds(s))] for s in stages],
        [[sealed.planned_steps(s, r) for r in range(sealed.rounds(s) + 1)] for s in stages],
    )


def from_all_events(rpc, keep=None):
    index = EventIndex(None, 31337, CONTRACTS)
    index.sync(rpc)
    view = RunView(RUN, keep)
    for event in index.events(RUN):
        view.apply(event)
    return view


@pytest.mark.parametrize("seed", range(6))
def test_a_view_from_a_snapshot_is_the_view_from_all_events(fake_chain, rpc, open_index, monkeypatch, seed):
    monkeypatch.setattr(replay, "SNAPSHOT_EVENTS", 5)
    dice = random.Random(seed)
    stories = [Chance(dice)]
    blocks = [len(stories[-1].told)]  # events told up to each block
    fake_chain.mine(*map(encoded, stories[-1].told))
    followed = RunReplay(open_index(), RUN, keep=3)
    for _ in range(12):
        story = stories[-1]
        if dice.random() < 0.4 and len(blocks) > 1:
            kept = dice.randint(1, len(blocks) - 1)
            fake_chain.reorg(kept + 1, f"branch {dice.random()}")
            del blocks[kept:]
            again = Chance(dice)
            for event in story.told[1 : blocks[-1]]:
                again.view.apply(event)
                again.told.append(event)
            again.block, again.told[0] = story.block, story.told[0]
            stories.append(story := again)
        for _ in range(dice.randint(1, 8)):
            told = [story.next() for _ in range(dice.randint(0, 4))]
            fake_chain.mine(*map(encoded, told), joined(OTHER))
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
        found = {(row.stage, row.round): row.weights for row in rows.read(later, RUN)}
        assert found == {key: one.seal.next_weights for key, one in whole.sealed.items()}
        later.close()
    assert open_index().rows("SELECT count(*) FROM snapshots WHERE subject = ?", RUN)[0][0] > 0


def test_a_stranger_s_events_are_not_decoded(fake_chain, rpc, open_index, monkeypatch):
    story = Story(stages=1)
    fake_chain.mine(*map(encoded, story.told))
    fake_chain.mine(*[joined(OTHER, address=LEDGER)] * 500)
    index = open_index()
    index.sync(rpc)
    seen = []
    decode = replay.decoded
    monkeypatch.setattr(replay, "decoded", lambda log, time: seen.append(log) or decode(log, time))
    run = RunReplay(index, RUN)
    run.advance()
    assert run.view.created and len(seen) == len(story.told) and index.runs() == [RUN]


def test_a_later_start_decodes_what_came_after_the_snapshot(fake_chain, rpc, open_index, monkeypatch):
    monkeypatch.setattr(replay, "SNAPSHOT_EVENTS", 10)
    dice = random.Random(1)
    story = Chance(dice)
    for _ in range(40):
        story.next()
    for event in story.told:
        fake_chain.mine(encoded(event), deregistered())
    first = open_index()
    first.sync(rpc)
    RunReplay(first, RUN).advance()
    NodesReplay(first).advance()
    first.close()
    seen = []
    decode = replay.decoded
    monkeypatch.setattr(replay, "decoded", lambda log, time: seen.append(log) or decode(log, time))
    run, nodes = RunReplay(open_index(), RUN), NodesReplay(open_index())
    run.advance()
    nodes.advance()
    assert len(seen) < 20 and all_of(run.view) == all_of(from_all_events(rpc))
    assert nodes.nodes.nodes == NodeTable().nodes


def test_a_snapshot_that_cannot_be_read_is_done_without(fake_chain, rpc, open_index, monkeypatch):
    monkeypatch.setattr(replay, "SNAPSHOT_EVENTS", 2)
    story = Chance(random.Random(2))
    for _ in range(20):
        story.next()
    for event in story.told:
        fake_chain.mine(encoded(event))
    for wrong in ("UPDATE snapshots SET state = x'c1'", "DELETE FROM seals"):
        index = open_index()
        index.sync(rpc)
        RunReplay(index, RUN).advance()
        index._file.db.execute(wrong)
        again = RunReplay(index, RUN)
        with pytest.raises(Unsettled):
            again.advance()
        again.advance()
        assert all_of(again.view) == all_of(from_all_events(rpc))
        index.close()


def test_a_history_with_a_hole_is_read_anew(fake_chain, rpc, open_index):
    """A chain node that once left out a block's logs."""
    story = Story(stages=1)
    story.join(0, 0, 0)
    story.tell(Left, ACCOUNTS[0], 0, 0)
    for event in story.told:
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
    assert run.view.joined_at(ACCOUNTS[0]) == 1002 and run.view.momentum(0, 0) == ZERO32
