"""The assignment: a session for each slot that the ledger gives, whatever becomes of the one before."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from dlx.node.daemon.chain.clock import ChainClock
from dlx.node.daemon.chain.follower import Follower
from dlx.node.daemon.membership.rest import Rest, pause, resume
from dlx.node.daemon.slot import assignment as module
from dlx.node.daemon.slot.assignment import Assignment
from dlx.node.daemon.supervisor import ReportHealthy, Supervisor
from dlx.node.home.errors import Failure
from dlx.training.models.placement import Placement
from dlx.training.recipe.recipe import Model
from tests.node.daemon.contexts import make_context
from tests.training.recipe.test_families import CASES


class Membership:
    """Slots as the test says; joining takes the next of `slots`."""

    def __init__(self, *slots: tuple[int, int]) -> None:
        self.slot: tuple[int, int] | None = None
        self.slots, self.asked, self.left = list(slots), list[tuple[int, ...]](), 0

    async def join(self, stages: tuple[int, ...], report_healthy: ReportHealthy) -> None:
        self.asked.append(stages)
        if not self.slots:
            await trio.sleep_forever()
        self.slot = self.slots.pop(0)

    async def leave(self) -> None:
        self.left += 1
        self.slot = None
        if Session.open:
            Session.open[-1].over.set()


class Session:
    """Ends when the test cancels it, or fails where the test wants that."""

    log: list[tuple[int, int]]
    fail: int  # so many of the first sessions
    open: list["Session"]

    def __init__(self, context: Any, trainer: Any, slot: tuple[int, int], view: Any, block: int) -> None:
        self.slot, self.over, self.told, self.last_trained = slot, trio.Event(), 0, 0
        Session.log.append(slot)
        Session.open.append(self)

    async def finish_step(self, deadline: float) -> None: ...

    async def run(self) -> None:
        if len(Session.log) <= Session.fail:
            raise RuntimeError("a fault of ours")
        await self.over.wait()

    def on_ledger(self, view: Any, block: int) -> None:
        self.told += 1


class Trainer:
    alive = 0

    def __init__(self, placement: Any) -> None:
        self.loaded = trio.Event()
        self.loaded.set()

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        Trainer.alive += 1
        try:
            task_status.started()
            await trio.sleep_forever()
        finally:
            Trainer.alive -= 1


@pytest.fixture
def act(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    def run(
        membership: Membership,
        program: Callable[[Assignment], Awaitable[None]],
        stage: int | None = None,
        rest: Rest | None = None,
    ) -> None:
        Session.log, Session.fail, Session.open, Trainer.alive = [], Session.fail, [], 0
        monkeypatch.setattr(module, "Session", Session)
        monkeypatch.setattr(module, "Trainer", Trainer)
        monkeypatch.setattr(module, "Terms", SimpleNamespace(of=lambda manifest: None))

        async def main() -> None:
            nobody: Any = None
            view: Any = SimpleNamespace(finished=False, next_round=lambda stage: 0, sealed={})
            follower, supervisor = Follower(nobody, bytes(32), ChainClock()), Supervisor()
            seen: Any = SimpleNamespace(view=view, head=SimpleNamespace(block=1))
            follower.seen.set(seen)
            place: Any = membership
            assignment = Assignment(follower, place, supervisor, stage, rest=rest)
            context = make_context(manifest=SimpleNamespace(is_exact=False), directory=tmp_path)
            monkeypatch.setattr(Assignment, "finished", False)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(supervisor.keep, "training", assignment.run)
                await trio.sleep(1)
                assert not Session.log, "there is nothing to train yet"
                assignment.open(context)
                await program(assignment)
                nursery.cancel_scope.cancel()
            assert Trainer.alive == 0 and assignment.session is None

        trio.run(main, clock=MockClock(autojump_threshold=0))

    Session.fail = 0
    return run


def test_a_slot_that_is_lost_makes_room_for_the_next_one(act: Callable[..., None]) -> None:
    membership = Membership((0, 1), (2, 1))

    async def program(assignment: Assignment) -> None:
        await trio.sleep(1)
        first: Any = assignment.session
        assert first.slot == (0, 1) and first.told == 1 and Trainer.alive == 1
        membership.slot = None
        first.over.set()
        await trio.sleep(1)
        second: Any = assignment.session
        assert second.slot == (2, 1) and Trainer.alive == 1

    act(membership, program)
    assert Session.log == [(0, 1), (2, 1)]


def test_a_closed_slot_takes_no_slot_when_the_chain_has_taken_back_the_one_before(act: Callable[..., None]) -> None:
    membership = Membership((0, 1), (2, 1))

    async def program(assignment: Assignment) -> None:
        await trio.sleep(1)
        await assignment.close()
        assert assignment.session is not None, "it goes on until the slot is returned"
        await membership.leave()
        await trio.sleep(60)
        assert assignment.session is None and Trainer.alive == 0

    act(membership, program)
    assert Session.log == [(0, 1)] and len(membership.asked) == 1


def test_a_slot_that_comes_when_the_slot_is_closed_is_not_opened(act: Callable[..., None]) -> None:
    class Slow(Membership):
        async def join(self, stages: tuple[int, ...], report_healthy: ReportHealthy) -> None:
            await trio.sleep(5)
            await super().join(stages, report_healthy)

    async def program(assignment: Assignment) -> None:
        await trio.sleep(2)
        await assignment.close()
        await trio.sleep(60)
        assert assignment.session is None and Trainer.alive == 0

    membership = Slow((0, 1))
    act(membership, program)
    assert membership.slot == (0, 1) and not Session.log


def test_no_slot_is_taken_by_ranks_that_cannot_share_the_model() -> None:
    nobody: Any = None
    context = make_context(manifest=SimpleNamespace(model=Model(CASES["gpt2"][0])))
    assignment = Assignment(nobody, nobody, Supervisor(), None, Placement(ranks=4, tensor_parallel=4))
    with pytest.raises(Failure, match="tensor_parallel 4: there is no plan for gpt2; use 1"):
        assignment.open(context)


def test_no_slot_of_an_exact_run_is_taken_where_the_settings_name_a_gpu() -> None:
    nobody: Any = None
    context = make_context(manifest=SimpleNamespace(is_exact=True))
    assignment = Assignment(nobody, nobody, Supervisor(), None, Placement(device="cuda"))
    with pytest.raises(Failure, match="device cuda: an exact run is computed on the CPU: choose cpu, or auto"):
        assignment.open(context)


def test_a_session_that_fails_is_followed_by_another_with_a_training_process_of_its_own(
    act: Callable[..., None],
) -> None:
    Session.fail = 1

    async def program(assignment: Assignment) -> None:
        await trio.sleep(60)
        assert assignment.session is not None and Trainer.alive == 1

    act(Membership((0, 1)), program)
    assert Session.log == [(0, 1), (0, 1)]


def test_sessions_that_fail_before_they_trained_anything_are_tried_ever_less_often(act: Callable[..., None]) -> None:
    Session.fail = 1000

    async def program(assignment: Assignment) -> None:
        await trio.sleep(300)

    act(Membership((0, 1)), program)
    assert 10 <= len(Session.log) <= 20, "0.5 s doubling to 30 s"


def test_it_asks_for_the_stage_that_it_has_the_state_of(act: Callable[..., None], tmp_path: Path) -> None:
    (tmp_path / "stage-3" / "slot").mkdir(parents=True)
    (tmp_path / "stage-3" / "slot" / "slot.json").write_text("{}")
    membership, chosen = Membership((0, 3)), Membership((0, 1))

    async def program(assignment: Assignment) -> None:
        await trio.sleep(1)

    act(membership, program)
    assert membership.asked[0][0] == 3 and len(membership.asked[0]) == 2
    act(chosen, program, stage=1)
    assert chosen.asked == [(1,)], "what the user asked for, and nothing else"


def test_a_rest_without_a_slot_gives_it_back_and_ends_the_training_process_until_it_is_over(
    act: Callable[..., None], tmp_path: Path
) -> None:
    membership, file = Membership((0, 1), (0, 1)), tmp_path / "paused.json"
    rest = Rest(file)

    async def program(assignment: Assignment) -> None:
        await trio.sleep(1)
        assert assignment.session is not None
        pause(file, "leave")
        rest.look()
        await trio.sleep(60)
        assert assignment.session is None and membership.slot is None and Trainer.alive == 0
        assert membership.left and membership.asked == [(65535,)], "nothing is asked for meanwhile"
        resume(file)
        rest.look()
        await trio.sleep(1)
        assert assignment.session is not None and Trainer.alive == 1
        pause(file, "keep")
        rest.look()
        await trio.sleep(60)
        assert assignment.session is not None, "a rest that keeps the slot goes on in it"

    act(membership, program, rest=rest)
    assert Session.log == [(0, 1), (0, 1)]


def test_a_node_that_starts_while_it_rests_gives_back_what_it_held(act: Callable[..., None], tmp_path: Path) -> None:
    file = tmp_path / "paused.json"
    pause(file, "leave")
    membership = Membership()
    membership.slot = (0, 1)

    async def program(assignment: Assignment) -> None:
        await trio.sleep(10)
        assert membership.left == 1 and not Session.log and Trainer.alive == 0

    act(membership, program, rest=Rest(file))
