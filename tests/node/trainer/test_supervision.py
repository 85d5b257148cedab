"""Training processes that are killed, whose inputs are damaged, or whose owner dies."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import psutil
import pytest
import trio
import trio.testing

from dlx.ground.backoff import Backoff
from dlx.ground.blobs import write_blob
from dlx.node.home.errors import Failure
from dlx.node.trainer import client, spawn
from dlx.node.trainer import messages as m
from dlx.node.trainer.client import BlobTrouble, LocalTrouble, Trainer, TrainerSilent
from dlx.training.data.shards import Dataset
from dlx.training.models.placement import Placement, settle
from dlx.training.outer.step import SealedPayload, apply_round
from dlx.training.recipe.manifest import Manifest, canonical_bytes
from dlx.training.slot.rounds import RoundInputs, Trained
from dlx.training.slot.slot import Slot
from tests.patience import PATIENCE
from tests.training.devices import DEVICES

NO_HASH = bytes(32)
T = TypeVar("T")


class Run:
    """A run of one stage in folders of its own, and what its training process says."""

    def __init__(self, manifest: Manifest, blobs: Path, folder: Path) -> None:
        self.manifest, self.blobs, self.folder = manifest, blobs, folder
        self.plan = manifest.plan
        self.name = write_blob(blobs, [canonical_bytes(manifest)])
        self.genesis = bytes.fromhex(manifest.genesis[0].sha256)
        self._say, self.heard = trio.open_memory_channel[m.FromTrainer](1000)

    @property
    def opening(self) -> m.Open:
        return m.Open(self.name, 0, str(self.folder / "slot"), str(self.blobs))

    @property
    def inputs(self) -> RoundInputs:
        plan = self.plan
        lot = (0, plan.inner_steps * self.manifest.data.batch_size)
        return RoundInputs(0, plan, 0, self.manifest.rounds * plan.inner_steps, 0, self.genesis, (lot,))

    def hear(self, message: m.FromTrainer) -> None:
        self._say.send_nowait(message)

    async def next(self, kind: type[T]) -> T:
        async for message in self.heard:
            if isinstance(message, kind):
                return message
        raise AssertionError

    def forget(self) -> None:
        """What was heard and not read."""
        with contextlib.suppress(trio.WouldBlock):
            while True:
                self.heard.receive_nowait()

    def trained_here(self, dataset: Dataset) -> Trained:
        """The same round in this process, with a state of its own."""
        slot = Slot.open(self.manifest, 0, self.folder / "here", self.blobs, dataset)
        return _bits(slot.train(self.inputs, None, None))


@pytest.fixture
def run(tiny_run: Callable[..., Manifest], blobs: Path, tmp_path: Path) -> Run:
    return Run(tiny_run([(0, 3)], rounds=4), blobs, tmp_path)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "RESTART", Backoff(0.05, 0.05))


@asynccontextmanager
async def trainer(run: Run, seconds: float = PATIENCE) -> AsyncIterator[Trainer]:
    with trio.fail_after(seconds):
        async with trio.open_nursery() as nursery:
            made = Trainer()
            await nursery.start(made.run)
            yield made
            nursery.cancel_scope.cancel()


def in_trio(test: Callable[[], Awaitable[None]]) -> None:
    trio.run(test)


async def kill(one: Trainer) -> None:
    assert one.pid is not None
    os.kill(one.pid, signal.SIGKILL)


def test_a_process_killed_while_idle_comes_back_with_its_slot(run: Run) -> None:
    async def test() -> None:
        async with trainer(run) as one:
            opened = await one.open(run.opening, run.hear)
            first = one.pid
            wanted = spawn.environment(os.environ).get("GOMP_SPINCOUNT")
            assert psutil.Process(first).environ().get("GOMP_SPINCOUNT") == wanted
            await kill(one)
            assert "SIGKILL" in (await run.next(m.Gone)).reason
            assert await run.next(m.Opened) == opened
            assert one.trouble is None and one.pid not in (None, first)

    in_trio(test)


def test_a_wake_up_with_nothing_to_read_is_not_the_end_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel may say that there is something to read where there is nothing."""
    ours, theirs = socket.socketpair()
    wait, waits = trio.lowlevel.wait_readable, list[object]()

    async def spurious(sock: trio.socket.SocketType) -> None:
        waits.append(sock)
        if len(waits) == 1:
            await trio.lowlevel.checkpoint()
        else:
            theirs.send(b"alive")
            await wait(sock)

    async def main() -> bytes:
        async with trio.SocketStream(trio.socket.from_stdlib_socket(ours)) as stream:
            monkeypatch.setattr(trio.lowlevel, "wait_readable", spurious)
            return await client._read(stream)

    with theirs:
        assert trio.run(main) == b"alive"


def test_why_there_is_no_process_is_known_until_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    known = list[str | None]()

    async def test() -> None:
        one = Trainer()

        def fails_twice() -> spawn.Spawned:
            known.append(one.trouble)
            if len(known) < 3:
                raise OSError("no room for another process")
            return spawn.spawn()

        monkeypatch.setattr(client, "spawn", fails_twice)
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                await nursery.start(one.run)
                await one.loaded.wait()
                nursery.cancel_scope.cancel()
        assert one.trouble is None
        reason = "it could not be started: no room for another process"
        assert known == [None, reason, f"{reason} (2 times in a row)"]

    in_trio(test)


def test_a_process_that_hangs_is_ended_after_two_silences_and_comes_back(
    run: Run, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    payload = run.trained_here(dataset).payload

    async def test() -> None:
        async with trainer(run) as one:
            await one.open(run.opening, run.hear)
            assert one.pid is not None
            first = one.pid
            os.kill(first, signal.SIGSTOP)
            with monkeypatch.context() as patch:
                patch.setattr(client, "REQUEST_SECONDS", 0.1)
                for _ in range(2):
                    assert one.pid == first
                    with pytest.raises(TrainerSilent):
                        await one.check(payload, run.manifest.plan)
            assert "2 questions in a row without an answer" in (await run.next(m.Gone)).reason
            await run.next(m.Opened)
            assert one.trouble is None and one.pid != first
            await one.check(payload, run.manifest.plan)

    in_trio(test)


@pytest.mark.parametrize(("works", "seconds"), [(False, 120.0), (True, 1200.0)])
def test_a_process_that_works_is_waited_for_longer_and_not_for_ever(works: bool, seconds: float) -> None:
    one, ended = client.Trainer(), []

    async def test() -> None:
        async def work() -> None:
            used = 0.0
            while True:
                one._dispatch(m.Working(used))
                await trio.sleep(5)
                used += 3.0 if works else 0.001  # a process that hangs still says so

        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            with pytest.raises(trio.TooSlowError):
                await one._while_working(trio.sleep_forever, 120.0)
            ended.append(trio.current_time())
            nursery.cancel_scope.cancel()

    clock = trio.testing.MockClock(autojump_threshold=0)
    trio.run(test, clock=clock)
    assert ended[0] == pytest.approx(seconds, abs=11)


@pytest.mark.parametrize(("weights", "least", "most"), [(0, 60, 300), (50 * 10**9, 3600, 5 * 3600)])
def test_a_process_that_does_not_open_its_slot_is_given_up_not_before_it_can_have_read_it(
    run: Run, monkeypatch: pytest.MonkeyPatch, weights: int, least: float, most: float
) -> None:
    ours, theirs = socket.socketpair()
    gone = trio.Event()

    class Deaf:
        pid, channel = 0, ours

        def end(self) -> str:
            return ""

    def hear(message: m.FromTrainer) -> None:
        if isinstance(message, m.Gone):
            gone.set()

    async def test() -> None:
        async with trio.open_nursery() as nursery:
            one = Trainer()
            await nursery.start(one.run)
            nursery.start_soon(one.open, run.opening, hear, weights)
            await gone.wait()
            nursery.cancel_scope.cancel()
        assert least < trio.current_time() - began < most

    monkeypatch.setattr(client, "spawn", Deaf)
    clock = trio.testing.MockClock(autojump_threshold=0.05)
    began = clock.current_time()
    with theirs:
        trio.run(test, clock=clock)


def test_a_process_killed_in_a_round_leaves_the_state_before_it_and_the_next_trains_the_same_bits(
    run: Run, dataset: Dataset
) -> None:
    async def killed(one: Trainer) -> bool:
        """Whether it was in the round."""
        one.post(m.Train(run.inputs))
        await run.next(m.Step)
        await kill(one)
        await run.next(m.Gone)
        return (await run.next(m.Opened)).trained is None

    async def test() -> None:
        for attempt in range(7):  # where this process is slower than the other one, its round is over: a longer one
            run.forget()
            run.plan = msgspec.structs.replace(run.plan, inner_steps=2 * run.plan.inner_steps)
            async with trainer(run) as one:
                directory = str(run.folder / f"slot-{attempt}")
                await one.open(msgspec.structs.replace(run.opening, directory=directory), run.hear)
                if not await killed(one):
                    continue
                one.post(m.Train(run.inputs))
                trained = (await run.next(m.Finished)).trained
                assert _bits(trained) == run.trained_here(dataset), "a fork computes what any process computes"
                await kill(one)
                assert (await run.next(m.Opened)).trained == trained
                return
        pytest.fail("each round was over before its process was killed")

    in_trio(test)


def test_a_process_killed_in_an_outer_step_fails_the_question_as_local_and_the_next_answers(
    run: Run, dataset: Dataset
) -> None:
    payload = run.trained_here(dataset).payload
    sealed = (m.SealedPayload(payload, 64, 32768, run.manifest.plan),)

    async def test() -> None:
        async with trainer(run) as one:
            await one.open(run.opening, run.hear)
            assert one.pid is not None
            os.kill(one.pid, signal.SIGSTOP)  # so that it does not answer before it is killed
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_refused, one, run, sealed)
                await trio.testing.wait_all_tasks_blocked()
                await kill(one)
            with pytest.raises(LocalTrouble, match="being started"):
                await one.outer(run.genesis, NO_HASH, sealed)
            await run.next(m.Opened)
            version = await one.outer(run.genesis, NO_HASH, sealed)
            counted = [SealedPayload(run.blobs / payload.hex(), 64, 32768, run.manifest.plan)]
            expected = apply_round(run.manifest, 0, run.blobs / run.genesis.hex(), None, counted, run.folder)
            assert version == expected

    in_trio(test)


def test_a_process_without_a_slot_takes_outer_steps_and_leaves_no_training_state(run: Run, dataset: Dataset) -> None:
    """For a founder, who vouches for a stage. It needs none of the data."""
    payload = run.trained_here(dataset).payload
    plan = run.manifest.plan
    data = run.blobs / run.manifest.data.manifest.sha256
    aside = data.rename(run.folder / "data")

    async def test() -> None:
        async with trainer(run) as one:
            opened = await one.open(msgspec.structs.replace(run.opening, directory=None), run.hear)
            assert opened.trained is None and opened.max_payload_sizes
            await one.check(payload, plan)
            version = await one.outer(run.genesis, NO_HASH, (m.SealedPayload(payload, 64, 32768, plan),))
            counted = [SealedPayload(run.blobs / payload.hex(), 64, 32768, plan)]
            assert version == apply_round(run.manifest, 0, run.blobs / run.genesis.hex(), None, counted, run.folder)
            assert not (run.folder / "slot").exists()

    try:
        in_trio(test)
    finally:  # other tests have the same blobs
        aside.rename(data)


def test_a_mapped_payload_that_cannot_be_read_any_more_names_the_payloads_and_says_nothing_of_them(
    run: Run, dataset: Dataset
) -> None:
    """One that is cut short, or lies on a bad sector, kills whoever reads it with SIGBUS."""
    payload, own = run.trained_here(dataset).payload, b"p" * 32
    sealed = (m.SealedPayload(payload, 64, 32768, run.manifest.plan),)

    async def asked(one: Trainer) -> None:
        with pytest.raises(BlobTrouble, match="SIGBUS, over a file that it cannot read") as caught:
            await one.outer(run.genesis, NO_HASH, sealed)
        assert set(caught.value.blobs) == {payload, own}

    async def test() -> None:
        async with trainer(run) as one:
            await one.open(run.opening, run.hear)
            assert one.pid is not None
            os.kill(one.pid, signal.SIGSTOP)
            one.post(m.Train(msgspec.structs.replace(run.inputs, previous=own)))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(asked, one)
                await trio.testing.wait_all_tasks_blocked()
                os.kill(one.pid, signal.SIGBUS)
                with contextlib.suppress(ProcessLookupError):  # it may not have stopped before it died
                    os.kill(one.pid, signal.SIGCONT)
            assert set((await run.next(m.Gone)).blobs) == {payload, own}
            await run.next(m.Opened)

    in_trio(test)


def test_kills_at_every_step_leave_the_bits_of_an_undisturbed_round(run: Run, dataset: Dataset) -> None:
    async def test() -> None:
        async with trainer(run) as one:
            await one.open(run.opening, run.hear)
            for step in range(1, run.manifest.plan.inner_steps + 1):
                one.post(m.Train(run.inputs))
                while (await run.next(m.Step)).step < step:
                    pass
                await kill(one)
                trained = (await run.next(m.Opened)).trained
                if trained is not None:
                    break
            if trained is None:  # a kill may have come after the round was saved
                one.post(m.Train(run.inputs))
                trained = (await run.next(m.Finished)).trained
            assert _bits(trained) == run.trained_here(dataset)

    in_trio(test)


@pytest.mark.slow
def test_a_fork_server_that_was_killed_is_replaced(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(spawn.SHARED, raising=False)

    async def test() -> None:
        async with trainer(run) as one:
            opened = await one.open(run.opening, run.hear)
            server = psutil.Process(one.pid).parent()
            assert server is not None
            server.kill()
            server.wait(PATIENCE)
            await kill(one)
            assert await run.next(m.Opened) == opened

    in_trio(test)


async def _refused(one: Trainer, run: Run, sealed: tuple[m.SealedPayload, ...]) -> None:
    with pytest.raises(LocalTrouble, match="ended"):
        await one.outer(run.genesis, NO_HASH, sealed)


def test_damaged_inputs_are_named_and_good_copies_mend_all(run: Run, dataset: Dataset) -> None:
    payload = run.trained_here(dataset).payload
    sealed = (m.SealedPayload(payload, 64, 32768, run.manifest.plan),)
    whole = {name: (run.blobs / name.hex()).read_bytes() for name in (run.genesis, payload)}
    shard = dataset.manifest.train[0].sha256
    data = (run.blobs / shard).read_bytes()

    async def test() -> None:
        async with trainer(run) as one:
            await one.open(run.opening, run.hear)
            for damage in (b"rotten", None):
                _put(run.blobs / run.genesis.hex(), damage)
                one.post(m.Train(run.inputs))
                abandoned = await run.next(m.Abandoned)
                assert abandoned.trouble is not None
                assert (abandoned.trouble.kind, abandoned.trouble.blobs) == (m.Kind.BLOBS, (run.genesis,))
                with pytest.raises(BlobTrouble) as base:
                    await one.outer(run.genesis, NO_HASH, sealed)
                assert base.value.blobs == (run.genesis,)
                _put(run.blobs / run.genesis.hex(), whole[run.genesis])
                _put(run.blobs / payload.hex(), damage)
                for ask in (one.outer(run.genesis, NO_HASH, sealed), one.check(payload, run.manifest.plan)):
                    with pytest.raises(BlobTrouble) as caught:
                        await ask
                    assert caught.value.blobs == (payload,)
                _put(run.blobs / payload.hex(), whole[payload])
            await one.outer(run.genesis, NO_HASH, sealed)
            for damage in (b"rotten", None):
                _put(run.blobs / shard, damage)
                one.post(m.Train(run.inputs))
                abandoned = await run.next(m.Abandoned)
                assert abandoned.trouble == m.Trouble(m.Kind.BLOBS, abandoned.reason, (bytes.fromhex(shard),)), (
                    "data is looked at when it is read"
                )
            _put(run.blobs / shard, data)
            one.post(m.Train(run.inputs))
            assert (await run.next(m.Finished)).trained.payload == payload

    in_trio(test)


def test_a_slot_whose_manifest_is_lost_opens_when_it_is_back(run: Run) -> None:
    path = run.blobs / run.name.hex()
    whole = path.read_bytes()
    path.unlink()

    async def bring_back(one: Trainer) -> None:
        assert (await run.next(m.Gone)).blobs == (run.name,)
        assert one.trouble is not None and run.name.hex() in one.trouble
        path.write_bytes(whole)

    async def test() -> None:
        async with trainer(run) as one, trio.open_nursery() as nursery:
            nursery.start_soon(bring_back, one)
            assert (await one.open(run.opening, run.hear)).trained is None
            assert one.trouble is None

    in_trio(test)


def test_a_manifest_that_is_none_ends_the_node(run: Run) -> None:
    run.name = write_blob(run.blobs, [b"{}"])

    async def test() -> None:
        async with trainer(run) as one:
            await one.open(run.opening, run.hear)

    with pytest.raises(ExceptionGroup) as caught:
        in_trio(test)
    assert caught.value.subgroup(Failure) is not None


def test_a_device_that_is_not_here_is_told_before_a_slot_is_taken() -> None:
    async def test() -> None:
        one = Trainer(Placement(device="cuda:63"))
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                await nursery.start(one.run)
                await one.loaded.wait()
                nursery.cancel_scope.cancel()

    with pytest.raises(ExceptionGroup) as caught:
        in_trio(test)
    assert caught.group_contains(Failure, match="device cuda:63: this machine has")


_OWNER = """\
import sys, trio
from dlx.node.trainer.client import Trainer
async def main():
    async with trio.open_nursery() as nursery:
        trainer = Trainer()
        await nursery.start(trainer.run)
        await trainer.loaded.wait()
        print(trainer.pid, flush=True)
        await trio.sleep_forever()
trio.run(main)
"""


def test_threads_spin_shortly_for_each_other_unless_the_operator_says_otherwise() -> None:
    def waits(**ours: str) -> dict[str, str]:
        found = spawn.environment(ours)
        return {name: found[name] for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT") if name in found}

    assert waits() == {"GOMP_SPINCOUNT": spawn.SPINS}
    for wanted in ({"OMP_WAIT_POLICY": "passive"}, {"GOMP_SPINCOUNT": "7"}):
        assert waits(**wanted) == wanted


def test_what_a_process_dies_of_is_in_the_log_and_not_on_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(spawn, "_log", None)
    spawn.log_to(tmp_path / "trainers.log")
    process = spawn.spawn(b"?")
    assert process.wait(PATIENCE) == 1
    process.end()
    assert "KeyError: b'?'" in (tmp_path / "trainers.log").read_text()
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
@pytest.mark.parametrize("shared", [False, True])
def test_whose_owner_dies_dies_too_and_a_shared_server_serves_the_next(
    shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = spawn.ForkServer() if shared else None
    if server:
        monkeypatch.setenv(spawn.SHARED, str(server.path))
    else:
        monkeypatch.delenv(spawn.SHARED, raising=False)
    parents = set()
    try:
        for _ in range(2 if shared else 1):
            owner = subprocess.Popen([sys.executable, "-c", _OWNER], stdout=subprocess.PIPE)
            assert owner.stdout is not None
            process = psutil.Process(int(owner.stdout.readline()))
            parent = psutil.Process(process.ppid())
            parents.add(parent)
            assert parent.num_threads() == 1, "only then is a fork safe"
            owner.kill()
            owner.wait()
            owner.stdout.close()
            process.wait(PATIENCE)
            if not shared:
                parent.wait(PATIENCE)
    finally:
        if server:
            server.stop()
    assert len(parents) == 1 and not any(parent.is_running() for parent in parents)


def _put(path: Path, data: bytes | None) -> None:
    path.unlink(missing_ok=True)
    if data is not None:
        path.write_bytes(data)


def _bits(trained: Trained) -> Any:
    return msgspec.structs.replace(trained, training_ms=0)


@pytest.mark.parametrize("device", DEVICES)
def test_a_slot_is_trained_where_and_how_its_operator_chose(device: str, run: Run, dataset: Dataset) -> None:
    """With layers that are compiled in the fork, and the result of those that are not."""
    wanted = Placement(device=device, threads=2, compile=True, checkpoint="selective")

    async def test() -> None:
        async with trainer(run, 300.0) as one:  # which a compiler may take
            opened = await one.open(msgspec.structs.replace(run.opening, placement=wanted), run.hear)
            assert opened.placement == settle(wanted) and not opened.notes
            one.post(m.Train(run.inputs))
            trained = (await run.next(m.Finished)).trained
            assert trained.loss == pytest.approx(run.trained_here(dataset).loss, rel=1e-4)

    in_trio(test)


def test_a_device_that_is_not_here_ends_the_node_in_one_line(run: Run) -> None:
    async def test() -> None:
        async with trainer(run) as one:
            await one.open(msgspec.structs.replace(run.opening, placement=Placement(device="cuda:99")), run.hear)

    with pytest.raises(ExceptionGroup) as caught:
        in_trio(test)
    (failure,) = caught.value.exceptions
    assert isinstance(failure, Failure)
    assert "the training process failed: device cuda:99: this machine has" in str(failure)


def test_what_is_loaded_before_the_fork_asks_no_driver_of_a_gpu() -> None:
    """CUDA that was asked for anything before a fork is of no use after it."""
    script = """
import threading, torch
def asked(*known):
    raise SystemExit("asked")
torch.cuda.is_available = torch.cuda.device_count = torch.cuda.get_device_properties = torch.cuda.init = asked
torch.mps.is_available = asked
from dlx.node.trainer import checking, process, server
from dlx.training.models.stages import preload
preload()
assert threading.enumerate() == [threading.main_thread()]
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr.decode()
