"""What each node of a site in one machine is told."""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys

from dlx.ledger.abi import ZERO_ACCOUNT
from dlx.ledger.typed import Invitation
from dlx.node.devnet.stages import _prepared, environment
from dlx.node.home import config, join_line
from dlx.node.home.datadir import DataDir
from dlx.node.home.join_line import JoinLine, Listed, SignedInvitation
from dlx.node.home.keys import identity
from dlx.node.home.keys import site as sites
from dlx.node.home.settings import Settings
from tests.patience import PATIENCE
from tests.signals import to_another_thread

_TOGETHER = """
import subprocess, sys
from dlx.node.devnet.stages import _together
node = ["sh", "-c", "trap 'echo leaving; exit 7' TERM; echo ready; while true; do sleep 0.1; done"]
sys.exit(_together({"stage 0": subprocess.Popen(node, stdout=subprocess.PIPE)}))
"""


def test_a_node_of_each_stage_has_the_given_settings_and_ports_of_its_own(tmp_path) -> None:
    given = Settings(
        ledger="0x" + "11" * 20,
        listen=("/ip4/0.0.0.0/tcp/4650", "/ip6/::/tcp/0"),
        announce=("/dns4/site.example/tcp/4650",),
        site="lyon",
        http_port=8000,
        compile=True,
        threads=3,
        disk_quota=10**9,
        daily_budget=0.0,
    )
    found = config.load(DataDir(tmp_path), {}, environment(given, 2))
    expected = dataclasses.replace(
        given,
        listen=("/ip4/0.0.0.0/tcp/4652", "/ip6/::/tcp/0"),
        announce=("/dns4/site.example/tcp/4652",),
        http_port=8002,
    )
    assert found == expected
    assert config.load(DataDir(tmp_path), {}, environment(Settings(), 0)) == Settings()


def test_a_sites_invitation_reaches_the_nodes_of_its_stages(tmp_path) -> None:
    """The newest at each start; what a stage has for its own account stays, and that of another account stays away."""
    folder, settings, run, ledger = DataDir(tmp_path / "lyon"), Settings(site="lyon"), b"\x01" * 32, f"0x{1:040x}"
    folder.create()
    identity.create(folder, lambda: "", insecure_devnet=True)
    line = JoinLine(31337, ledger, run, ("http://127.0.0.1:1",), ())
    guests = {"account": identity.account_address(folder), "site": sites.make(folder, "lyon").address}

    def joins(guest: str, issued: int = 1) -> SignedInvitation:
        places = {"account": ZERO_ACCOUNT, "site": ZERO_ACCOUNT, guest: guests[guest]}
        made = SignedInvitation(Invitation(ledger, run, issued=issued, expiry=9, **places), bytes(65))
        join_line.keep(folder.invitations, dataclasses.replace(line, invited=made))
        return made

    def kept() -> SignedInvitation | Listed | None:
        return join_line.invitation(_prepared(folder, settings, 0, run).invitations, run)

    assert kept() is None
    joins("account")
    assert kept() is None
    for issued in (2, 3):
        assert joins("site", issued) == kept()
    stage = DataDir(folder.root / "stages" / "0").invitations
    (stage / run.hex()).write_text("dlx1-damaged")
    newest = kept()
    assert newest is not None
    joins("site", issued=1)
    assert kept() == newest, "an older one never takes the place of a newer one"
    listed = Listed((b"\x07" * 32,))
    join_line.keep(stage, line, listed)
    assert kept() == listed


def test_a_signal_that_another_thread_hears_is_passed_on_too() -> None:
    command = [sys.executable, "-c", _TOGETHER]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as site:
        assert site.stderr is not None
        try:
            assert site.stderr.readline() == "stage 0 | ready\n"
            to_another_thread(site.pid, signal.SIGTERM)
            assert site.stderr.readline() == "stage 0 | leaving\n" and site.wait(PATIENCE) == 7
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(site.pid, signal.SIGKILL)
