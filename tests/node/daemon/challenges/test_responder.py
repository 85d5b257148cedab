"""What a member shows of its own work: the drawn segments' files are public, and the rest is gone."""

import hashlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dlx.ground.blobs import BlobStore, Kind
from dlx.ground.constants import NO_HASH
from dlx.ledger.view.run_view import RunView
from dlx.node.daemon.challenges.draws import RoundDraw
from dlx.node.daemon.challenges.responder import ChallengeResponder
from dlx.node.daemon.context import RunContext
from dlx.node.daemon.observable import Observable
from dlx.node.round.challenges.draw import drawn_of, seals_of
from dlx.node.round.rules.round_rules import base_version
from dlx.training.recipe.recipe import Audit, Outer, Plan
from dlx.training.slot.rounds import RoundInputs, Trained
from dlx.training.slot.segments import SegmentState
from dlx.training.slot.trace import Boundary, Step, Trace, handed_over
from dlx.training.slot.undecided import Undecided
from tests.node.daemon.contexts import make_context
from tests.node.made_statements import contribution
from tests.node.round.simulation import RUN, Simulation, digest, make_rules

ROUNDS, WINDOW, SEGMENTS = 8, 1, 2
PARTS = 2 * (SEGMENTS + 1) + 2 * SEGMENTS + 2  # files of a round
RULES = make_rules(rounds=ROUNDS)


@pytest.fixture(scope="module")
def view() -> RunView:
    sim = Simulation(RULES, replicas=2, seed=1)
    assert sim.run(lambda: sim.view.finished, 300)
    return sim.view


def draw_of(view: RunView, round: int, share: float) -> RoundDraw:
    seals = seals_of(view, round)
    assert seals is not None
    return RoundDraw(0.0, drawn_of(seals, digest("block", round), share, 3), 1, digest("block", round), ())


class Member:
    """Of stage 1 in replica 0, with files of rounds that it trained."""

    def __init__(self, folder: Path, view: RunView, ahead: float = 0.0) -> None:
        self.view, self.account, self.ahead = view, str(view.member_at(0, 1)), ahead
        self.store = BlobStore(folder / "blobs")
        self.slot = Undecided(folder / "run" / "stage-1" / "slot")
        self.traces: dict[int, Trace] = {}
        self.trained: dict[int, Trained] = {}
        self.again(folder)

    def again(self, folder: Path) -> None:
        """As after a restart."""
        manifest: Any = SimpleNamespace(audit=Audit(window=WINDOW), outer=Outer(ahead=self.ahead))
        context = make_context(manifest=manifest, blobs=self.store, account=self.account, directory=folder / "run")
        self.responder = _made(context, lambda: self.view)

    def train(self, round: int) -> None:
        folder, names = self.slot.begin(round), []
        for part in range(PARTS):
            data = f"{round}/{part}".encode()
            names.append(hashlib.sha256(data).digest())
            (folder / names[-1].hex()).write_bytes(data)
        states = tuple(SegmentState(names[2 * one], names[2 * one + 1]) for one in range(SEGMENTS + 1))
        rest = iter(names[2 * (SEGMENTS + 1) :])
        boundaries = tuple(Boundary(next(rest), NO_HASH, NO_HASH, next(rest)) for _ in range(SEGMENTS))
        trace = Trace(states, boundaries, (Step(0.0, 1.0, 1.0, 1.0),))
        self.traces[round] = trace
        trained = Trained(
            inputs=RoundInputs(round, Plan(), 0, 1, round, NO_HASH),
            round=round, payload=digest("payload"), payload_size=1, payload_root=NO_HASH, base_weights=NO_HASH,
            start_payload=NO_HASH, folded=(), weights_before=states[0].weights,
            optimiser_before=states[0].optimiser, optimiser_after=states[-1].optimiser, change_before=next(rest),
            payload_before=next(rest), change=states[-1].weights, trace=digest("trace"), segments=SEGMENTS,
            inner_steps=1, tokens=1, loss=1, training_ms=1, reset=False,
        )  # fmt: skip
        self.trained[round] = trained
        self.slot.finish(trained, trace)

    def know(self, *drawn: tuple[int, tuple[int, ...]]) -> None:
        """These segments of these rounds are drawn, and those rounds alone are in the window."""
        known = {round: self.draw(round, segments) for round, segments in drawn}
        self.responder.held = self.responder._settle(self.view, known)

    def draw(self, round: int, segments: tuple[int, ...]) -> RoundDraw:
        """As if chance had drawn these segments of every replica."""
        whole = draw_of(self.view, round, 1.0)
        return replace(whole, drawn=tuple(one for one in whole.drawn if one.segment in segments))

    def served(self, round: int, *segments: int) -> bool:
        """All that the drawn segments take is public; False: nothing of the round is."""
        each = (handed_over(self.traces[round], one, self.trained[round], self.ahead) for one in segments)
        wanted = {name for files in each for name in files.values()}
        here = {hashlib.sha256(f"{round}/{part}".encode()).digest() for part in range(PARTS)} & self.store.hashes()
        assert here in (wanted, set()), "exactly that, or nothing"
        return bool(here)


def _made(context: RunContext, view: Any) -> ChallengeResponder:
    import dlx.node.daemon.challenges.responder as module

    patch = pytest.MonkeyPatch()
    with patch.context() as patched:
        patched.setattr(module.Terms, "of", lambda manifest: RULES)
        return ChallengeResponder(context, Observable({}), view)


@pytest.mark.parametrize("ahead", [0.0, 0.5])
def test_the_drawn_segments_become_public_and_the_rest_goes(tmp_path: Path, view: RunView, ahead: float) -> None:
    member = Member(tmp_path, view, ahead)
    for round in (3, 4, 5, 6, 7):
        member.train(round)
    member.know((3, (0, 1)), (4, (1,)), (6, (0,)), (7, ()))
    assert member.served(3, 0, 1) and member.served(4, 1) and member.served(6, 0) and not member.served(7)
    assert member.slot.rounds() == [5], "its draw is not known yet"
    assert member.responder.held.drawn == 3 and member.responder.held.undecided > 0
    member.store.evict(Kind.VERSION)
    member.store.evict(Kind.PAYLOAD)
    assert member.served(3, 0, 1) and member.served(4, 1), "nothing gives it away as long as it is of the window"


def test_what_is_out_of_the_window_is_served_no_more(tmp_path: Path, view: RunView) -> None:
    member = Member(tmp_path, view)
    for round in (1, 2, 3):
        member.train(round)
    member.know((1, (0,)), (3, (0,)))
    assert not member.served(1), "8 rounds are sealed, the window has 1"
    assert member.served(3, 0), "whoever sees the chain a little later still asks for it"
    assert member.slot.rounds() == [], "of round 2 nothing was asked in time"


def test_payload_statement_and_trace_of_drawn_work_stay_as_long(tmp_path: Path, view: RunView) -> None:
    """Also where the manifest keeps payloads for fewer rounds, or the node has left the stage."""
    member = Member(tmp_path, view)
    member.train(4)
    mine, *_ = [one for one in draw_of(view, 4, 1.0).drawn if one.account == member.account]
    said = [mine.statement, digest("payload"), digest("trace")]
    for name in said:
        member.store.path(name).write_bytes(b"as published")
        member.store.note(name, Kind.PAYLOAD)
    member.know((4, (1,)))
    member.store.evict(Kind.PAYLOAD)
    assert all(member.store.path(name).exists() for name in said)


def test_earlier_statements_that_say_of_which_plan_the_last_payload_is_stay_with_drawn_work(
    tmp_path: Path, view: RunView
) -> None:
    """Without them its residual could not be told, and its maker would be the one who hides it."""
    member = Member(tmp_path, view)
    member.train(4)
    before = contribution(round=3)
    said = replace(contribution(round=4), previous=before.hash())
    for one in (before, said):
        member.store.path(one.hash()).write_bytes(one.encode())
        member.store.note(one.hash(), Kind.PAYLOAD)
    draw = draw_of(view, 4, 1.0)
    drawn = tuple(replace(one, statement=said.hash()) if one.account == member.account else one for one in draw.drawn)
    member.responder._settle(view, {4: replace(draw, drawn=drawn)})
    member.store.evict(Kind.PAYLOAD)
    assert all(member.store.path(one.hash()).exists() for one in (before, said))


def test_a_restart_changes_nothing(tmp_path: Path, view: RunView) -> None:
    member = Member(tmp_path, view)
    member.train(4)
    member.know((4, (0, 1)))
    member.again(tmp_path)
    member.know((4, (0, 1)))
    assert member.served(4, 0, 1) and member.responder.held.drawn == 1


def test_members_of_the_stage_keep_the_version_that_drawn_work_began_with(tmp_path: Path, view: RunView) -> None:
    member = Member(tmp_path, view)
    bases = {round: view.weights(1, base_version(RULES, round)) for round in (3, 5)}
    member.know((3, (0,)), (5, ()))
    owners = member.store.owners("custody/")
    assert [owner for owner in owners if "/base/" in owner] == [f"custody/{RUN.hex()[:16]}/base/1/3"]
    assert bases[3] != bases[5]
