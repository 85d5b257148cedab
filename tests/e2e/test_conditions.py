"""Real nodes on machines and links as they are: slow, far away, cut off, asleep, with a wrong clock or a full disk.

After each condition everybody is counted again, nobody was blamed for what it did not do, and `status` told why.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import psutil
import pytest

from dlx.ledger.events import AddressesChanged, Evicted
from dlx.node.daemon.api.status import NodeStatus
from dlx.node.devnet.devnet import Devnet, DevnetShape
from dlx.node.devnet.server import PROGRAM
from dlx.node.home import config
from dlx.node.home.datadir import DataDir
from dlx.node.home.keys.slashing_protection import Entries, SignedStatements
from tests.e2e.devnets import BLOCK_TIME, PASSED, Timing, ToughDevnet, Watched, alive, draft
from tests.e2e.switch import FAST, Link, Switch, lacking
from tests.node.command import dlx

TIMING = Timing(grace=3, proposal=2, timeout=12, eviction=10)
ROUNDS, STEPS = 1000, 4
CHAIN, SPARE = "chain", "spare"
NODES = [f"node-{number}" for number in range(4)]
ADDRESSES = {CHAIN: "52.20.9.1", SPARE: "52.20.8.1"} | {name: f"52.20.{at}.1" for at, name in enumerate(NODES, 1)}
OTHER_ADDRESS = "52.20.7.1"
SMALL_DISK = "node-3"
DISK, FLOOR = 96 << 20, 4 << 20  # bytes
SKEW = 300.0  # s
SKEWED = {"node-1": SKEW, "node-2": -SKEW}
FAR = Link(far=0.05, loss=0.01)  # of two such links 200 ms of round trip, and 2% lost
GROWTH = 100 << 20  # bytes that conditions may add to a node's memory

pytestmark = [
    pytest.mark.timeout(3600),
    pytest.mark.skipif(lacking() is not None, reason=lacking() or ""),
]


@dataclass
class Machines(ToughDevnet):
    """A devnet whose chain and nodes are each on a machine of their own."""

    forks_nodes = False

    switch: Switch = field(default_factory=Switch)

    def address(self, name: str) -> str:
        return ADDRESSES[name] if name == CHAIN else "0.0.0.0"

    def command(self, name: str, module: Sequence[str]) -> list[str]:
        return self.switch.command(name, super().command(name, module))

    def start_node(self, name: str, program: Sequence[str] = PROGRAM) -> None:
        if name in SKEWED:
            program = ("tests.e2e.skewed", str(SKEWED[name]))
        super().start_node(name, program)

    def status(self, name: str) -> NodeStatus | None:
        with self.switch.inside(name):
            return super().status(name)


@pytest.fixture(scope="module")
def is_long(request: pytest.FixtureRequest) -> bool:
    """Whether all conditions are tried, each for long."""
    length = request.config.getoption("--conditions")
    if not length:
        pytest.skip("takes minutes: `make chaos`")
    return bool(length == "long")


@pytest.fixture(scope="module")
def devnet(is_long: bool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    """What all tests here share: each leaves it, as it found it, with every slot at work."""
    root = tmp_path_factory.mktemp("conditions") / "devnet"
    with contextlib.ExitStack() as stack:
        switch = Switch()
        stack.enter_context(switch.made(ADDRESSES))
        stack.enter_context(switch.inside(CHAIN))
        made = Machines(root, DevnetShape("", ROUNDS, 2, 2, BLOCK_TIME), switch=switch)
        stack.callback(made.stop)
        made.make(draft(ROUNDS, STEPS, TIMING, replicas=2), lambda line: None)
        stack.enter_context(small_disk(made.folder(SMALL_DISK)))
        made.start()
        yield made


@contextlib.contextmanager
def small_disk(folder: DataDir) -> Iterator[None]:
    """The data folder, which is a fresh one, gets a disk of its own."""
    config.write(folder.config.with_suffix(".new"), {"network": "devnet", "disk_floor": FLOOR})
    folder.config.with_suffix(".new").replace(folder.config)
    kept = folder.root.with_suffix(".kept")
    folder.root.rename(kept)
    folder.root.mkdir(mode=0o700)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK},mode=700", "tmpfs", str(folder.root)]
    subprocess.run(mount, check=True)
    try:
        shutil.copytree(kept, folder.root, dirs_exist_ok=True)
        shutil.rmtree(kept)
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder.root)], check=True)


@pytest.fixture(scope="module")
def watched(devnet: Machines) -> Watched:
    return Watched(devnet)


@pytest.fixture(scope="module")
def memory(watched: Watched) -> dict[str, int]:
    """Bytes that each node's network process had for itself in the beginning."""
    until_all_well(watched)
    return own_memory(watched.devnet)


@pytest.fixture
def well(watched: Watched, memory: dict[str, int], devnet: Machines) -> Iterator[None]:
    """Everybody is counted before a condition, and again once it is over."""
    until_all_well(watched)
    yield
    devnet.switch.link(FAST)
    devnet.switch.part()
    until_all_well(watched)
    watched.assert_sealed_once()
    grown = {name: size - memory[name] for name, size in own_memory(devnet).items()}
    assert max(grown.values()) < GROWTH, grown


def own_memory(devnet: Devnet) -> dict[str, int]:
    return {name: psutil.Process(devnet.pid(name)).memory_full_info().uss for name in NODES}


def until_all_well(watched: Watched) -> None:
    at = watched.until_all_count(watched.sealed_rounds())
    until_all(watched, "everybody well", lambda one: is_counted(one, at) and not one.not_ready and not one.unreached)


def is_counted(status: NodeStatus, round: int) -> bool:
    return status.last_counted_round is not None and status.last_counted_round >= round


def until_all(watched: Watched, what: str, says: Callable[[NodeStatus], bool]) -> None:
    """Until each node says so."""
    watched.until(what, lambda: [says(one) for one in watched.statuses().values()] == [True] * len(NODES))


def until_said(watched: Watched, name: str, *words: str) -> None:
    """Until a node says that it waits for something with these words."""
    watched.until(
        f"{name} saying {words}",
        lambda: (one := watched.devnet.status(name)) and all(word in str(one.waiting_for) for word in words),
    )


def until_rounds(watched: Watched, count: int, what: str) -> None:
    after = watched.sealed_rounds()
    watched.until(f"{count} rounds: {what}", lambda: watched.sealed_rounds() >= after + count)


def sides(watched: Watched) -> list[list[str]]:
    """The names of the nodes of each replica."""
    found = watched.everybody()
    return [[name for name, one in found.items() if one.replica == replica] for replica in (0, 1)]


@contextlib.contextmanager
def asleep(watched: Watched, name: str) -> Iterator[None]:
    processes = [watched.devnet.pid(name), watched.trainer(name)]
    for pid in processes:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in processes:
            os.kill(pid, signal.SIGCONT)


def rests(seconds: float, is_long: bool) -> None:
    """The time that a condition lasts beyond what it takes to be noticed."""
    if is_long:
        time.sleep(seconds)


@pytest.fixture
def only_long(is_long: bool) -> None:
    if not is_long:
        pytest.skip("takes minutes: --conditions long")


@pytest.mark.usefixtures("well")
def test_on_slow_links_rounds_are_sealed(devnet: Machines, watched: Watched) -> None:
    devnet.switch.link(Link(1e6), *NODES)
    until_rounds(watched, 3, "1 Mbit/s")


@pytest.mark.usefixtures("only_long", "well")
@pytest.mark.parametrize("speed", [100e6, 10e6, 256e3, 64e3])
def test_on_links_of_any_speed_rounds_are_sealed(devnet: Machines, watched: Watched, speed: float) -> None:
    devnet.switch.link(Link(speed), *NODES)
    until_rounds(watched, 3, f"{speed / 1e3:.0f} kbit/s")


@pytest.mark.usefixtures("well")
def test_on_far_and_lossy_links_rounds_are_sealed(devnet: Machines, watched: Watched) -> None:
    devnet.switch.link(FAR, *NODES)
    until_rounds(watched, 3, "200 ms of round trip, 2% lost")


@pytest.mark.usefixtures("only_long", "well")
def test_one_slow_among_fast_says_that_its_link_is_why(devnet: Machines, watched: Watched) -> None:
    name = sides(watched)[1][0]
    devnet.switch.link(Link(64e3), name)
    until_said(watched, name, "the chain")
    assert "too few members" not in str(watched.status(name).waiting_for).partition("then")[0]
    until_rounds(watched, 3, "with the others")


@pytest.mark.usefixtures("well")
def test_in_a_partition_everybody_names_those_beyond_it(devnet: Machines, watched: Watched, is_long: bool) -> None:
    found, groups = watched.everybody(), sides(watched)
    beyond = {
        status.account: next(
            other.account for other in found.values() if other.stage == status.stage and other.replica != status.replica
        )
        for status in found.values()
    }
    devnet.switch.part(*groups)
    until_all(watched, "names of those beyond", lambda one: any(beyond[one.account] in why for why in one.unreached))
    rests(60, is_long)


@pytest.mark.usefixtures("well")
def test_with_the_chain_down_everybody_waits_for_it(devnet: Machines, watched: Watched, is_long: bool) -> None:
    devnet.kill(CHAIN)
    until_all(watched, "everybody waiting", lambda one: str(one.waiting_for).startswith("the chain, which does not"))
    rests(60, is_long)
    devnet.start_chain()


@pytest.mark.usefixtures("well")
def test_who_sleeps_for_a_moment_keeps_its_slot(watched: Watched) -> None:
    name = sides(watched)[1][0]
    evicted = len(watched.of(Evicted))
    with asleep(watched, name):
        time.sleep(TIMING.timeout / 2)
    until_rounds(watched, 2, "after it woke")
    assert len(watched.of(Evicted)) == evicted


@pytest.mark.usefixtures("well")
def test_who_sleeps_for_long_is_evicted_and_comes_back(watched: Watched, is_long: bool) -> None:
    """Of the run's timeouts it is as 20 minutes are of usual ones."""
    name = sides(watched)[1][0]
    account = watched.status(name).account
    evicted = len(watched.of(Evicted, account))
    with asleep(watched, name):
        watched.until("the eviction", lambda: watched.read() and len(watched.of(Evicted, account)) > evicted)
        rests(1200, is_long)


@pytest.mark.usefixtures("well")
def test_a_disk_that_fills_in_a_round_is_named_and_costs_nothing_once_it_is_freed(
    devnet: Machines, watched: Watched, is_long: bool
) -> None:
    watched.until_inside_a_round(SMALL_DISK)
    filler, log = devnet.folder(SMALL_DISK).root / "filler", devnet.log(SMALL_DISK)
    before = log.stat().st_size
    try:
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while file.write(bytes(1 << 16)):
                pass
        until_said(watched, SMALL_DISK, "this machine", "No space left on device")
        rests(30, is_long)
    finally:
        filler.unlink()
    said = log.read_bytes()[before:].decode()
    assert f"{devnet.folder(SMALL_DISK).root}" in said, "the place that is full is named"
    for wrong in ("Traceback", "does not answer", "reorganised", "damaged"):
        assert wrong not in said, said


@pytest.mark.usefixtures("well")
def test_an_address_that_changes_is_registered_and_found(devnet: Machines, watched: Watched) -> None:
    name = sides(watched)[1][0]
    account = watched.status(name).account
    devnet.switch.give(name, OTHER_ADDRESS)
    watched.until(
        "the new address on the ledger",
        lambda: (
            watched.read()
            and any(OTHER_ADDRESS in " ".join(one.multiaddrs) for one in watched.of(AddressesChanged, account))
        ),
    )


@pytest.mark.usefixtures("well")
def test_a_copied_folder_on_another_machine_ends_before_it_signs(devnet: Machines, watched: Watched) -> None:
    name = sides(watched)[1][0]
    status, copy = watched.status(name), DataDir(devnet.root / "nodes" / "copy")
    shutil.copytree(devnet.folder(name).root, copy.root)
    before = signed(copy, status.account)
    settings = devnet.settings
    where = ["--rpc-url", " ".join(settings.rpc_url), "--ledger", settings.ledger, "--listen", "/ip4/0.0.0.0/tcp/0"]
    start = [sys.executable, "-m", *PROGRAM, "start", "--datadir", str(copy.root), "--run", devnet.shape.run, *where]
    with devnet.log("copy").open("wb") as log:
        process = subprocess.Popen(devnet.switch.command(SPARE, start), stdout=log, stderr=log)
    try:
        watched.until("the end of the copy", lambda: process.poll() is not None)
    finally:
        process.kill()
    assert process.returncode == 1 and "another node is at work with this node's keys" in devnet.log("copy").read_text()
    assert signed(copy, status.account) == before
    assert watched.status(name).peers == len(NODES) - 1


def signed(folder: DataDir, account: str) -> Entries:
    found = SignedStatements(folder.signed, account)
    try:
        return found.entries()
    finally:
        found.close()


@pytest.mark.usefixtures("well")
def test_nodes_that_are_killed_at_random_come_back(devnet: Machines, is_long: bool) -> None:
    chance, ends = random.Random(1), time.monotonic() + 600
    for _ in range(2) if not is_long else iter(lambda: time.monotonic() > ends, True):
        kill_some(devnet, chance)


def kill_some(devnet: Machines, chance: random.Random) -> None:
    """Of four 30% is one, and now and then two."""
    names = chance.sample(NODES, 1 + (chance.random() < 0.2))
    for name in names:
        devnet.kill(name)
    time.sleep(chance.uniform(0, 5))
    for name in names:
        devnet.start_node(name)
    time.sleep(chance.uniform(5, 15))


@pytest.mark.usefixtures("well")
def test_all_at_once(devnet: Machines, watched: Watched, is_long: bool) -> None:
    chance = random.Random(2)
    devnet.switch.link(Link(1e6, FAR.far, FAR.loss), *NODES)
    for _ in range(3 if is_long else 1):
        groups = sides(watched)
        devnet.switch.part(*groups)
        devnet.kill(CHAIN)
        with asleep(watched, groups[0][1]):
            time.sleep(5)
            devnet.kill(groups[1][0])
        devnet.start_chain()
        devnet.start_node(groups[1][0])
        devnet.switch.part()
        kill_some(devnet, chance)


def test_in_the_end_everybody_stops_and_the_history_passes_an_audit(devnet: Machines, watched: Watched) -> None:
    until_all_well(watched)
    processes = [psutil.Process(devnet.pid(name)) for name in NODES]
    devnet.may_end |= set(NODES)
    for process in processes:
        process.send_signal(signal.SIGTERM)
    watched.until("the end of all nodes", lambda: not any(map(alive, processes)))
    where = ["--datadir", devnet.root, "--rpc-url", devnet.rpc_url]
    assert json.loads(dlx("audit", *where, "--json").stdout)["verdict"] == PASSED
