"""Level 3 in real processes: what is drawn is replayed by members and outsiders, and who lies loses its slot."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dlx.ledger.events import Convicted
from dlx.node.devnet.devnet import Devnet
from dlx.node.devnet.server import PROGRAM
from dlx.node.home.keys import identity
from tests.e2e.devnets import STAGES, Timing, ToughDevnet, Watched, create
from tests.node.command import dlx
from tests.patience import patient

pytestmark = pytest.mark.slow

TIMING = Timing(grace=6, proposal=1, timeout=20, eviction=60)


def checking(
    root: Path,
    rounds: int,
    replicas: int,
    timing: Timing = TIMING,
    stages: int = STAGES,
    ahead: float = 0.0,
    evaluation: str = "",
    arithmetic: str = "device",
) -> ToughDevnet:
    """Everything is drawn, and the members may take as long for checking as for training."""
    more = f"\n[audit]\nshare = 1\nwindow = 200\n{evaluation}"
    devnet = create(root, rounds, 5, timing, replicas, more, stages, ahead, arithmetic)
    for name in devnet.names:
        config = devnet.folder(name).config
        config.write_text(config.read_text().replace("# audit_share = 0.1", "audit_share = 1.0"))
    return devnet


def audit(devnet: Devnet, *arguments: object, code: int = 0) -> dict[str, Any]:
    where = ["--datadir", devnet.root, devnet.shape.run, "--rpc-url", *devnet.settings.rpc_url]
    return json.loads(dlx("audit", *where, "--level", 3, "--json", *arguments, code=code).stdout)


def test_everything_drawn_is_found_honest_by_members_and_from_outside(tmp_path: Path) -> None:
    evaluation = "[evaluation]\nevery = 1\nsamples = 4\nreplicas = 2\n"
    devnet = checking(tmp_path / "devnet", rounds=2, replicas=2, ahead=0.5, evaluation=evaluation)
    try:
        devnet.start()
        watched = Watched(devnet)

        def checked() -> bool:
            found = [status.checks for status in watched.everybody().values()]
            assert not any(one.false or one.withheld for one in found if one is not None)
            return all(
                one is not None and (one.drawn, one.honest, one.served, one.undecided_bytes) == (8, 8, 2, 0)
                for one in found
            )

        watched.until("every node to know an honest verdict on each of 8 contributions", checked)

        def evaluated() -> bool:
            return sum(map(len, watched.read().evaluations.values())) == 4

        watched.until("the held-out losses of two versions, by two replicas each", evaluated)
        found = ("history", "--datadir", devnet.root, devnet.shape.run, "--rpc-url", *devnet.settings.rpc_url)
        for row in json.loads(dlx(*found, "--json").stdout)["rounds"]:
            said = row["held_out_said"].values()
            assert len(said) == 2 and row["held_out"] == min(said) and not row["held_out_missing"], row
            assert max(said) - min(said) < 1e-4 * min(said), "two replicas, one version"
        # What is drawn is looked at by whoever wants to, as it comes; this run is over by now.
        stranger = tmp_path / "stranger"
        dlx("init", "--datadir", stranger, "--insecure-devnet", "--json")
        where = ["--ledger", devnet.settings.ledger, "--datadir", stranger]
        lines = dlx("watch", devnet.shape.run, "--rpc-url", *devnet.settings.rpc_url, *where, "--json").stdout
        *seen, last = [json.loads(line) for line in lines.splitlines()]
        assert (last["sum"]["drawn"], last["sum"]["honest"], last["sum"]["exit_code"]) == (8, 8, 0)
        assert len({(one["round"], one["replica"], one["stage"]) for one in seen}) == 8
        assert {(one["finding"], one["verdict"]) for one in seen} == {("honest", "PASS")}
        report = audit(devnet, *where)
        training = "4 of 4 segments replayed, all honest"
        assert report["verdict"]["training"] == training and report["established"], report
        assert report["verdict"]["ledger"] == report["verdict"]["outer_steps"] == "PASS", report
        rows = {row["check"]: row for row in report["table"] if row["level"] == 3}
        assert rows["training"]["PASS"] == 8 and rows["members' verdicts"]["PASS"] >= 8, "a founder looks at more"
        assert audit(devnet, "--require-segments", 4, *where)["established"]
        assert not audit(devnet, "--require-segments", 5, *where, code=5)["established"]
        assert rows["held-out loss"]["PASS"] == 4
        alone = audit(devnet, "--rounds", 1, "--replica", 0, *where)["training"]
        assert (alone["replayed"], alone["honest"]) == (1, 1)
        nothing = audit(devnet, "--rounds", 7, *where, code=4)
        assert nothing["verdict"]["training"] == "0 of 4 segments replayed, none drawn"
    finally:
        devnet.stop()


def test_an_exact_run_is_repeated_bit_for_bit_by_members_and_by_another_kind_of_machine(tmp_path: Path) -> None:
    devnet = checking(tmp_path / "devnet", rounds=2, replicas=2, arithmetic="exact")
    try:
        devnet.start()
        watched = Watched(devnet)

        def checked() -> bool:
            found = [status.checks for status in watched.everybody().values()]
            assert not any(one.false or one.withheld for one in found if one is not None)
            return all(one is not None and (one.drawn, one.honest) == (8, 8) for one in found)

        watched.until("every node to know an honest verdict on each of 8 contributions", checked)
        where = ["--rpc-url", *devnet.settings.rpc_url, "--ledger", devnet.settings.ledger]
        command = [
            sys.executable,
            "-m",
            *PROGRAM,
            "audit",
            devnet.shape.run,
            "--datadir",
            str(devnet.root),
            *where,
            "--level",
            "3",
            "--json",
        ]
        other_machine = os.environ | {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"}
        said = subprocess.run(command, env=other_machine, stdout=subprocess.PIPE, timeout=patient(120), check=True)
        report = json.loads(said.stdout)
        assert report["verdict"]["training"] == "4 of 4 segments repeated, all bit for bit", report
        checks = {row["check"] for row in report["table"] if row["level"] == 3}
        assert "training" in checks and "direction" not in checks, "nothing honest deviates"
    finally:
        devnet.stop()


def test_a_liar_is_found_and_loses_its_slot_and_the_run_goes_on(tmp_path: Path) -> None:
    devnet = checking(tmp_path / "devnet", rounds=1000, replicas=3, stages=1)
    try:
        liar, *honest = devnet.names
        devnet.may_end.add(liar)
        devnet.start_node(liar, ("tests.attacks.liar", "poison"))
        for name in honest:
            devnet.start_node(name)
        watched = Watched(devnet)

        guilty = identity.account_address(devnet.folder(liar))
        watched.until("a conviction", lambda: watched.read() and watched.of(Convicted))
        (found,) = watched.of(Convicted)
        assert found.account == guilty and watched.view.slot_of(guilty) is None
        sealed = watched.sealed_rounds()
        watched.until("more rounds", lambda: watched.sealed_rounds() > sealed + 2)
        assert len(watched.of(Convicted)) == 1, "nobody else"

        def told() -> bool:
            checks = [watched.status(name).checks for name in honest]
            return all(one is not None and one.false for one in checks)

        watched.until("every honest node to know of a false contribution", told)
        report = audit(devnet, "--rounds", found.round, "--ledger", devnet.settings.ledger, code=1)
        assert report["training"]["false"] == 1 and report["failed"], report
        assert guilty in str([check for check in report["checks"] if check["verdict"] == "FAIL"])
    finally:
        devnet.stop()
