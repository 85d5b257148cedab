"""When a checker may say that a contribution's files are withheld: nobody is to lose its slot for good by bad luck."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from dlx.ledger.view.run_view import RunView
from dlx.node.audit.inner_inputs import MissingInputs
from dlx.node.daemon.challenges.draws import RoundDraw
from dlx.node.daemon.challenges.evidence import Effort, Evidence
from dlx.node.daemon.challenges.verifier import Verifier
from dlx.node.daemon.observable import Observable
from dlx.node.round.challenges.draw import drawn_of, seals_of
from dlx.node.round.challenges.turns import SERVE_TIMEOUTS, SLOW_TIMEOUTS, Case
from tests.node.daemon.contexts import make_context
from tests.node.round.simulation import Simulation, digest, make_rules

TIMEOUT = 2.0


@pytest.fixture(scope="module")
def view() -> RunView:
    sim = Simulation(make_rules(rounds=6), replicas=4, seed=1)
    assert sim.run(lambda: sim.view.finished, 400)
    return sim.view


class Checker:
    """That is connected to everybody, and got nothing of the first contribution that round 0 has drawn."""

    def __init__(self, view: RunView) -> None:
        seals = seals_of(view, 0)
        assert seals is not None
        self.now = max(seal.at.time for seal in seals)
        drawn = drawn_of(seals, digest("block"), 1.0, 20)
        self.drawn, self.draw = drawn[0], RoundDraw(self.now, drawn, 1, digest("block"), ())
        self.rounds: Observable[Any] = Observable({0: self.draw})
        timing = SimpleNamespace(round_timeout=TIMEOUT, proposal_timeout=1.0)
        context = make_context(
            manifest=SimpleNamespace(timing=timing), now=lambda: self.now, account=drawn[-1].account,
            peer_of=lambda account: account,
        )  # fmt: skip
        draws: Any = SimpleNamespace(rounds=self.rounds)
        unused: Any = None
        self.verifier = Verifier(
            context, draws, unused, unused, Effort(1.0), lambda: view, lambda: tuple(view.members())
        )

    def in_vain(self, after: float, blob: bytes = b"one", came: float = 0.0) -> bool:
        """Nobody gives it, so much later than the draw, though it `came` for so long: whether it is withheld now."""
        self.now = self.draw.since + after
        return self.verifier._is_withheld(Case(self.drawn, self.draw.since), MissingInputs([blob], came))


LONG = SERVE_TIMEOUTS * TIMEOUT


def test_who_asks_for_the_first_time_long_after_the_draw_gives_as_much_time(view: RunView) -> None:
    """An alarm has everybody ask, whenever its author likes: what takes a while then is not withheld."""
    checker = Checker(view)
    assert not checker.in_vain(LONG + 1) and not checker.in_vain(2 * LONG), "not yet asked for so long"
    at_once = Checker(view)
    assert not at_once.in_vain(0.0) and not at_once.in_vain(LONG - 0.1) and at_once.in_vain(LONG)


def test_who_was_there_after_the_draw_but_not_since_it_was_asked_withholds_nothing(view: RunView) -> None:
    last = max(seal.at.time for seal in seals_of(view, 5) or ())
    checker = Checker(view)
    down = last - checker.draw.since
    assert not checker.in_vain(down) and not checker.in_vain(down + 2 * LONG)


def test_what_is_out_of_the_window_or_was_drawn_anew_is_not_withheld(view: RunView) -> None:
    for rounds in ({}, {0: "anew"}):
        checker = Checker(view)
        checker.in_vain(0.0)
        checker.rounds.set({round: replace(checker.draw, redrawn=True) for round in rounds})
        assert not checker.in_vain(LONG)


def test_each_blob_has_its_own_time_on_a_slow_link(view: RunView) -> None:
    checker = Checker(view)
    assert not checker.in_vain(0.0) and not checker.in_vain(0.5, b"two"), "the first one comes meanwhile"
    assert not checker.in_vain(LONG, b"two") and checker.in_vain(LONG + 0.5, b"two")


def test_who_sends_slowly_has_more_time_than_who_is_silent_and_what_the_checker_does_meanwhile_is_no_silence(
    view: RunView,
) -> None:
    checker = Checker(view)
    for visit in range(1, 8):  # each as long as it takes the checker to come back, who has other work too
        assert not checker.in_vain(2 * visit * TIMEOUT, came=TIMEOUT)
    silent_from = 15 * TIMEOUT
    assert not checker.in_vain(silent_from) and not checker.in_vain(silent_from + LONG - 2 * TIMEOUT)
    assert checker.in_vain(silent_from + LONG)


@pytest.mark.parametrize("pauses", [False, True])
def test_who_drips_for_ever_to_stay_slow_is_withholding_in_the_end(view: RunView, pauses: bool) -> None:
    """Also where he falls silent now and then, which alone is not silence for long enough."""
    checker, most = Checker(view), (SLOW_TIMEOUTS + SERVE_TIMEOUTS) * TIMEOUT
    tries = ((n * TIMEOUT, 0.0 if pauses and n % 4 == 3 else TIMEOUT) for n in range(1, 100))
    ends = next(at for at, came in tries if checker.in_vain(at, came=came))
    assert LONG < ends <= most


def test_who_drips_a_blob_keeps_nobody_from_checking_others_for_long() -> None:
    class Dripping:
        async def fetch(self, *_: Any) -> None:
            await trio.sleep_forever()  # the exchange waits as long as enough comes not to be silent

    async def check() -> None:
        timing = SimpleNamespace(round_timeout=TIMEOUT)
        context = make_context(manifest=SimpleNamespace(timing=timing), exchange=Dripping())
        with trio.fail_after(10 * LONG), pytest.raises(MissingInputs) as caught:
            await Evidence(context, Effort(1.0))._fetch(b"name", 1, "maker")
        assert caught.value.arriving_s > 0

    trio.run(check, clock=MockClock(autojump_threshold=0))
