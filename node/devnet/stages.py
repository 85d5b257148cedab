"""A site in one machine: a node for each stage of a run, all in one replica, as one command.

Each node has a data folder of its own under stages/, with keys of its own that the given folder's password locks; its
settings are the given folder's, with a port of its own. It also gets the site's invitation that the given folder keeps.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import IO, Any

from dlx.ground import durable
from dlx.ground.machine import LOOK_SECONDS, expand, stop_signals
from dlx.node.devnet.server import PROGRAM, end_with_parent
from dlx.node.home import join_line
from dlx.node.home.datadir import DataDir
from dlx.node.home.keys import identity
from dlx.node.home.keys import site as sites
from dlx.node.home.ledgers import ledger_client, reachable_chain
from dlx.node.home.settings import SETTINGS, Settings
from dlx.node.runs import find
from dlx.node.trainer.spawn import SHARED, ForkServer

_PORT = re.compile(r"(/tcp/)(\d+)")


def run(folder: DataDir, settings: Settings, run: str | None, say: Callable[[str], None]) -> int:
    """Runs until all nodes have ended; the exit code. A first Ctrl-C has all of them leave, a second ends them now.

    Raises Failure, UsageFailure.
    """
    folder.create()
    folder.check_secrets()
    with folder.lock(), reachable_chain(settings, folder) as reached:
        if not sites.key_file(folder, settings.site).exists():
            say(f"site {settings.site} gets a new key: {sites.make(folder, settings.site).address}")
        client = ledger_client(reached, folder)
        last = find.resolve_offline(folder.last_run, run)
        chosen = find.resolve_patiently(client, run if last is None else last.hex(), say)
        durable.write_bytes(folder.last_run, chosen.hex().encode())
        with client.events() as index:
            stages = find.view_of(client, index, chosen).config.stages
        with (folder.logs / "trainers.log").open("ab") as log:
            forks = ForkServer(log)
        try:
            folders = [_prepared(folder, settings, stage, chosen) for stage in range(stages)]
            nodes = [_start(own, reached, stage, chosen, str(forks.path)) for stage, own in enumerate(folders)]
            return _together({f"stage {stage}": node for stage, node in enumerate(nodes)})
        finally:
            forks.stop()


def environment(settings: Settings, stage: int) -> dict[str, str]:
    """The settings of the stage's node as its environment: the given ones, with ports of its own."""
    given: dict[str, Any] = asdict(settings) | {
        "listen": tuple(_own_port(address, stage) for address in settings.listen),
        "announce": tuple(_own_port(address, stage) for address in settings.announce),
        "http_port": settings.http_port and settings.http_port + stage,
        "password_file": settings.password_file and str(expand(settings.password_file).absolute()),
        "private_data": settings.private_data and str(expand(settings.private_data).absolute()),
    }
    return {SETTINGS[key].environment: _text(value) for key, value in given.items()}


def _own_port(address: str, stage: int) -> str:
    """The address with as much higher a port; 0, any free one, stays."""
    return _PORT.sub(lambda found: found[1] + str(int(found[2]) and int(found[2]) + stage), address)


def _text(value: Any) -> str:
    return " ".join(value) if isinstance(value, tuple | list) else str(value)


def _prepared(folder: DataDir, settings: Settings, stage: int, run: bytes) -> DataDir:
    """The stage's own folder, with keys, the site's key and its invitation to the run."""
    own = DataDir(folder.root / "stages" / str(stage))
    own.create()
    insecure = identity.is_insecure(folder)
    identity.create(own, lambda: identity.read_password(folder, settings), insecure_devnet=insecure)
    own.sites.mkdir(mode=0o700, exist_ok=True)
    key = sites.key_file(folder, settings.site).read_bytes()
    durable.write_bytes(sites.key_file(own, settings.site), key, durable.SECRET)
    join_line.hand_on(folder.invitations, own.invitations, run)
    return own


def _start(own: DataDir, settings: Settings, stage: int, run: bytes, forks: str) -> subprocess.Popen[bytes]:
    arguments = ["start", "--datadir", str(own.root), "--run", run.hex(), "--stage", str(stage)]
    plain = {key: value for key, value in os.environ.items() if not key.startswith("DLX_")}
    return subprocess.Popen(
        [sys.executable, "-m", *PROGRAM, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**plain, **environment(settings, stage), SHARED: forks},
        start_new_session=True,  # a terminal's Ctrl-C is ours to pass on, once
        preexec_fn=end_with_parent,
    )


def _together(nodes: Mapping[str, subprocess.Popen[bytes]]) -> int:
    """Shows what the nodes say, passes signals on, and waits for all."""
    stopping: list[int] = []

    def pass_on(number: int, _: object) -> None:
        if number != signal.SIGHUP or not stopping:  # a terminal that closes says so more than once
            stopping.append(number)
        for node in nodes.values():
            if node.poll() is None:
                node.send_signal(number if len(stopping) == 1 else signal.SIGKILL)

    for number in stop_signals():
        signal.signal(number, pass_on)
    shown = [threading.Thread(target=_show, args=(name, node.stdout), daemon=True) for name, node in nodes.items()]
    for thread in shown:
        thread.start()
    for thread in shown:
        while thread.is_alive():
            thread.join(LOOK_SECONDS)
    codes: Sequence[int] = [node.wait() for node in nodes.values()]
    return max(abs(code) for code in codes)


def _show(name: str, lines: IO[bytes] | None) -> None:
    assert lines is not None
    for line in lines:
        sys.stderr.write(f"{name} | {line.decode(errors='replace')}")
        sys.stderr.flush()
