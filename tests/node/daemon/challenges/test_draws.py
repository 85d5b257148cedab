"""What was drawn, as blocks come, are taken back, and cannot be had."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from dlx.ledger.errors import LedgerUnavailable
from dlx.ledger.view.run_view import RunView
from dlx.node.daemon.challenges.draws import Draws
from dlx.node.daemon.observable import Observable
from dlx.node.round.challenges.draw import SETTLED, draw_block, drawn_of, seals_of
from dlx.training.recipe.recipe import Audit
from tests.node.round.simulation import Simulation, digest, make_rules
from tests.patience import PATIENCE

SEALED = 3
MANIFEST: Any = SimpleNamespace(audit=Audit(share=1.0, draw_after=2, window=2), confirmations=1, precision="float32")


@pytest.fixture(scope="module")
def view() -> RunView:
    sim = Simulation(make_rules(rounds=SEALED), replicas=2, seed=1)
    assert sim.run(lambda: sim.view.finished, 200)
    return sim.view


def block_of(view: RunView, round: int) -> int:
    seals = seals_of(view, round)
    assert seals is not None
    return draw_block(seals, MANIFEST.audit.draw_after)


class Chain:
    """Blocks have any hash until they change; asks for one are counted."""

    def __init__(self, view: RunView) -> None:
        self.view, self.now, self.asked, self.salt, self.down = view, 100.0, 0, 0, False
        self.recent: dict[int, bytes] = {}  # what the follower knows
        self.seen: Observable[Any] = Observable(None)
        follower: Any = SimpleNamespace(seen=self.seen)
        self.draws = Draws(follower, MANIFEST, self.hash, lambda: self.now)

    def hash(self, number: int) -> bytes | None:
        self.asked += 1
        if self.down:
            raise LedgerUnavailable("down")
        return digest("block", number, self.salt)

    def show(self, head: int) -> dict[int, int]:
        """The rounds whose draw is known once the chain is at `head`, and how many contributions are drawn of each."""
        looked: list[Callable[[], None]] = []

        async def main() -> None:
            self.seen.set(SimpleNamespace(view=self.view, head=SimpleNamespace(block=head), recent=self.recent))
            done = trio.Event()
            looked.append(done.set)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.draws.run, done.set)
                with trio.fail_after(PATIENCE):
                    await done.wait()
                nursery.cancel_scope.cancel()

        trio.run(main)
        return {round: len(one.drawn) for round, one in self.draws.rounds.value.items()}


def test_a_block_that_the_follower_has_read_is_not_asked_for(view: RunView) -> None:
    chain = Chain(view)
    last = block_of(chain.view, SEALED - 1)
    chain.recent = {number: digest("block", number, 0) for number in range(last + SETTLED + 1)}
    assert SEALED - 1 in chain.show(last + SETTLED) and chain.asked == 0


def test_a_round_of_the_window_is_drawn_once_its_block_is_confirmed(view: RunView) -> None:
    chain, last = Chain(view), block_of(view, SEALED - 1)
    assert chain.show(last)[SEALED - 2] == 4 and SEALED - 1 not in chain.draws.rounds.value, "one more block is needed"
    assert chain.show(last + 1) == {SEALED - 2: 4, SEALED - 1: 4}, "round 0 is out of the window"
    seals = seals_of(view, SEALED - 1)
    assert seals is not None
    expected = drawn_of(seals, digest("block", last, 0), 1.0, 20)
    assert chain.draws.rounds.value[SEALED - 1].drawn == expected
    assert [one.round for one in chain.draws] == [SEALED - 2] * 4 + [SEALED - 1] * 4


def test_a_hash_is_asked_for_once_and_once_more_when_it_is_settled(view: RunView) -> None:
    chain, last = Chain(view), block_of(view, SEALED - 1)
    chain.show(last + 1)
    asked = chain.asked
    for head in (last + 1, last + 2, last + 3):
        chain.show(head)
    assert chain.asked == asked
    chain.show(last + SETTLED)
    settled = chain.asked
    assert settled == asked + 2
    chain.show(last + SETTLED + 1)
    assert chain.asked == settled


def test_what_a_reorg_took_back_is_drawn_anew_and_the_time_to_serve_it_begins_again(view: RunView) -> None:
    chain, last = Chain(view), block_of(view, SEALED - 1)
    chain.show(last + 1)
    before = chain.draws.rounds.value[SEALED - 1]
    chain.salt, chain.now = 1, 500.0
    chain.show(last + SETTLED)
    after = chain.draws.rounds.value[SEALED - 1]
    assert after.block_hash != before.block_hash and (before.since, after.since) == (100.0, 500.0)
    assert {one.seed for one in after.drawn}.isdisjoint(one.seed for one in before.drawn)
    assert after.redrawn and not before.redrawn, "so that nobody withholds what was given away for the first draw"


def test_a_silent_chain_takes_nothing_back(view: RunView) -> None:
    chain, last = Chain(view), block_of(view, SEALED - 1)
    chain.down = True
    assert chain.show(last + 1) == {}
    chain.down = False
    known = chain.show(last + 1)
    assert len(known) == 2
    chain.down = True
    assert chain.show(last + SETTLED) == known
