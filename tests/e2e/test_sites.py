"""Two sites and a stranger join a run at the same time, as real processes: each site ends up in one replica."""

import shutil
import signal
from pathlib import Path

import pytest

from dlx.ledger.events import Left, SitePlaced
from dlx.node.devnet.devnet import PROGRAM, Devnet
from dlx.node.home.datadir import DataDir
from dlx.node.home.keys import identity
from dlx.node.home.keys import site as sites
from tests.e2e.devnets import Timing, Watched, create
from tests.patience import PATIENCE

pytestmark = pytest.mark.slow

TIMING = Timing(grace=3, proposal=1, timeout=60, eviction=60)


def start(devnet: Devnet, name: str, *arguments: str) -> DataDir:
    """`dlx-node start` in the folder `name`, with keys of its own."""
    folder, settings = devnet.folder(name), devnet.settings
    folder.create()
    identity.create(folder, lambda: "", insecure_devnet=True)
    options = ["--datadir", str(folder.root), "--run", devnet.shape.run, "--ledger", settings.ledger]
    options += ["--rpc-url", " ".join(settings.rpc_url), "--listen", "/ip4/127.0.0.1/tcp/0", *arguments]
    devnet._spawn(name, [*PROGRAM, "start", *options])
    return folder


def test_each_site_ends_up_in_one_replica(tmp_path: Path) -> None:
    """One site is one command on one machine, the other two machines that got its key; a stranger comes between."""
    devnet = create(tmp_path / "devnet", 100_000, steps=5, timing=TIMING)
    try:
        lyon = start(devnet, "lyon", "--site", "lyon", "--all-stages")
        kyiv = devnet.folder("kyiv-0")
        kyiv.create()
        address = sites.make(kyiv, "kyiv").address
        start(devnet, "kyiv-0", "--site", "kyiv")
        devnet.start_node("node-0")  # it made the run, and belongs to neither
        stranger = identity.account_address(devnet.folder("node-0"))
        second = devnet.folder("kyiv-1")
        second.create()
        shutil.copytree(kyiv.sites, second.sites)
        start(devnet, "kyiv-1", "--site", "kyiv")
        machines = {identity.account_address(one) for one in (kyiv, second)}

        watched = Watched(devnet)

        def placed() -> bool | None:
            return len(watched.read().members()) == 5 or None

        watched.until("everybody's slot", placed)
        view = watched.view
        slots = [view.slot_of(account) for account in machines]
        (replica,) = {slot[0] for slot in slots if slot is not None}
        assert view.site_at(replica) == address
        own = [DataDir(lyon.root / "stages" / str(stage)) for stage in range(2)]
        places = [view.slot_of(identity.account_address(one)) for one in own]
        assert [slot is not None and slot[1] for slot in places] == [0, 1], "each asked for its own stage"
        assert len({slot[0] for slot in places if slot is not None}) == 1
        assert view.slot_of(stranger) not in (None, *slots, *places)
        assert len(watched.of(SitePlaced)) == 2

        watched.until_all_count()  # of both sites: the stranger is alone in its replica

        leaving = devnet._processes.pop("lyon")
        leaving.send_signal(signal.SIGINT)
        watched.until("both nodes of one command left", lambda: len(watched.read() and watched.of(Left)) == 2 or None)
        assert leaving.wait(PATIENCE) == 0
        assert "stage 0 | " in devnet.log("lyon").read_text() and "stage 1 | " in devnet.log("lyon").read_text()
    finally:
        devnet.stop()
