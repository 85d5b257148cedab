"""From nothing to being counted: `dlx-node devnet`, and the line that it prints, pasted into another terminal."""

import json
import os
import re
import signal
import subprocess
import tomllib
from pathlib import Path

import pytest
import requests

from tests.e2e.test_demo import process
from tests.node.command import dlx
from tests.patience import PATIENCE, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_one_newcomer_is_counted_and_the_devnet_goes_on(tmp_path: Path) -> None:
    root, home = tmp_path / "net", tmp_path / "home"
    home.mkdir()
    said = tmp_path / "devnet.log"
    with process(said, "devnet", "--datadir", root, "--json") as devnet:
        found = json.loads(devnet.stdout.readline())
        assert requests.get(found["page"], timeout=PATIENCE).status_code == 200
        assert str(found["page"]).endswith(f"/runs/{found['run']}")
        plain = {key: value for key, value in os.environ.items() if not key.startswith("DLX_")}
        with (tmp_path / "guest.log").open("w") as log:
            guest = subprocess.Popen(
                ["sh", "-c", found["join"]], stdout=log, stderr=log, env=plain | {"HOME": str(home)},
                start_new_session=True,
            )  # fmt: skip
        try:
            newcomer = r"a newcomer is counted: 0x[0-9a-fA-F]{40}, replica 1, round \d+"

            def counted() -> bool:
                assert guest.poll() is None, (tmp_path / "guest.log").read_text()
                assert devnet.poll() is None, said.read_text()
                return re.search(newcomer, said.read_text()) is not None

            until("the newcomer to be counted", counted, lambda: said.read_text().count("round "))
        finally:
            os.killpg(guest.pid, signal.SIGKILL)
            guest.wait()
        assert "this node is counted: " in said.read_text()
        devnet.send_signal(signal.SIGINT)
        devnet.communicate()
    assert devnet.returncode == 130
    rounds = len(json.loads(dlx("history", "--datadir", root, "--json").stdout)["rounds"])

    with process(said, "devnet", "--datadir", root, "--json") as devnet:
        again = json.loads(devnet.stdout.readline())
        assert (again["run"], again["join"]) == (found["run"], found["join"]), "lines that somebody has stay true"
        # The newcomer is waited for until it is evicted.
        timing = tomllib.loads((root / "run.toml").read_text())["timing"]
        until(
            "a further round",
            lambda: re.search(rf"^round +{rounds + 1} ", said.read_text(), re.MULTILINE),
            seconds=PATIENCE + 3 * timing["round_timeout"],
        )
        devnet.send_signal(signal.SIGINT)
        devnet.communicate()
