"""Resting: when, and what becomes of the slot meanwhile."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import trio

from dlx.ledger.typed import Plan
from dlx.node.daemon.membership import idle
from dlx.node.daemon.membership import rest as module
from dlx.node.daemon.membership.idle import BUSY_SECONDS, QUIET_SECONDS, Demand
from dlx.node.daemon.membership.rest import Rest
from dlx.node.home.hours import is_within, minutes
from dlx.node.round import actions as a
from dlx.node.round.rules.pace import fewest_steps
from tests.node.command import dlx
from tests.node.round.simulation import Simulation, make_rules
from tests.patience import PATIENCE


def at(hour: int, minute: int = 0) -> Any:
    return lambda: time.struct_time((2026, 1, 1, hour, minute, 0, 3, 1, 0))


@pytest.mark.parametrize(
    ("windows", "inside", "outside"),
    [
        (("22:00-06:00",), (22 * 60, 23 * 60, 0, 359), (360, 12 * 60, 22 * 60 - 1)),
        (("09:30-17:00",), (570, 1019), (569, 1020)),
        (("20:00-24:00",), (1200, 1439), (0, 1199)),
        (("08:00-09:00", "18:00-19:00"), (480, 1080), (0, 700)),
        ((), (0, 1439), ()),
    ],
)
def test_hours_may_span_midnight_and_be_several(
    windows: tuple[str, ...], inside: tuple[int, ...], outside: tuple[int, ...]
) -> None:
    assert all(is_within(windows, minute) for minute in inside)
    assert not any(is_within(windows, minute) for minute in outside)


@pytest.mark.parametrize("text", ["", "22:00", "25:00-06:00", "22:60-06:00", "24:00-06:00", "1:00-24:01", "6:00-6:00"])
def test_hours_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected hours"):
        minutes(text)


def test_a_node_rests_outside_its_hours_and_while_it_is_paused(tmp_path: Path) -> None:
    file = tmp_path / "paused.json"
    assert Rest(file, ("22:00-06:00",), how="leave", local=at(23)).state.value is None
    resting = Rest(file, ("22:00-06:00",), how="leave", local=at(12))
    assert resting.leaves and "outside of 22:00-06:00" in str(resting.state.value)
    working = Rest(file)
    module.pause(file, "keep")
    working.look()
    assert working.state.value is not None and not working.leaves
    assert Rest(file).state.value is not None, "also after a restart"
    assert module.resume(file) and not module.resume(file)
    working.look()
    assert working.state.value is None
    file.write_text("rubbish")
    assert Rest(file, how="leave").leaves, "a damaged file still pauses"


def test_other_programs_have_the_node_rest_and_its_own_work_does_not() -> None:
    used = [0.0, 0.0]
    demand = Demand(lambda: (used[0], used[1]), cores=4, gpus=lambda: 0.0, person=lambda: False)
    now = 0.0

    def pass_(seconds: float, by_others: float, own: float) -> bool:
        nonlocal now
        busy = False
        for _ in range(int(seconds)):
            now += 1
            used[0] += by_others + own
            used[1] += own
            busy = demand.why(now) is not None
        return busy

    assert not pass_(120, 0.1, 3.8), "its own work is no reason"
    assert not pass_(5, 4.0, 0.0), "a moment is none either"
    assert pass_(2 * BUSY_SECONDS, 3.0, 1.0)
    assert pass_(QUIET_SECONDS - 10, 0.0, 4.0), "not back at the first quiet moment"
    assert not pass_(2 * BUSY_SECONDS, 0.0, 4.0)


@pytest.mark.parametrize(("share", "said"), [(0.2, None), (0.6, "other programs need its GPU")])
def test_a_gpu_that_others_take_is_a_reason(share: float, said: str | None) -> None:
    taken = [share]
    demand = Demand(lambda: (0.0, 0.0), cores=4, gpus=lambda: taken[0], person=lambda: False)
    found = [demand.why(10.0 * look) for look in range(12)]
    assert found[1] is None and found[-1] == said, "a moment is none"
    taken[0] = 0.0
    assert demand.why(120.0) == said and demand.why(1000.0) is None


def program(folder: Path, name: str, prints: str, code: int = 0, asked: str = "") -> None:
    """A program of the machine that prints this where its arguments begin with what it is `asked`."""
    folder.mkdir(exist_ok=True)
    refuses = f'case "$*" in "{asked}"*) ;; *) exit 1 ;; esac'
    (folder / name).write_text(f"#!/bin/sh\n{refuses}\ncat <<'END'\n{prints}\nEND\nexit {code}\n")
    (folder / name).chmod(0o755)


def test_nvidia_smi_tells_what_other_programs_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    assert idle.taken_of_gpus() == 0.0, "a machine without"
    other, gone = os.getppid(), 2**22 + 1
    rows = [(0, os.getpid(), "90"), (0, other, "7"), (1, other, "40"), (1, gone, "99"), (2, "-", "-")]
    head = "# gpu         pid   type     sm    mem    enc    dec    command\n# Idx           #    C/G      %      %"
    told = "\n".join(f"    {gpu}  {pid}  C  {busy}  3  -  -  python" for gpu, pid, busy in rows)
    program(tmp_path / "bin", "nvidia-smi", f"{head}\n{told}")
    monkeypatch.setattr(idle, "_our_processes", lambda: {os.getpid()})
    assert idle.taken_of_gpus() == pytest.approx(0.4)
    program(tmp_path / "bin", "nvidia-smi", f"{head}\n{told}", code=9)
    assert idle.taken_of_gpus() == 0.0, "a driver that does not answer"


@pytest.mark.parametrize(
    ("logind", "x11", "here"),
    [
        ("IdleHint=no\nIdleSinceHint=1780000000000000", None, True),
        ("IdleHint=yes\nIdleSinceHint=1780000000000000", None, False),
        ("IdleHint=no\nIdleSinceHint=0", None, False),  # a desktop that never told
        ("IdleHint=yes\nIdleSinceHint=1780000000000000", "4000", True),
        ("IdleHint=no\nIdleSinceHint=1780000000000000", "900000", False),
        (None, None, False),
        (None, "rubbish", False),
    ],
)
def test_somebody_at_the_keyboard_is_seen_where_the_machine_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logind: str | None, x11: str | None, here: bool
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("DISPLAY", ":0")
    program(tmp_path / "bin", "loginctl", logind or "", code=0 if logind else 1, asked="show-seat seat0 ")
    if x11 is not None:
        program(tmp_path / "bin", "xprintidle", x11)
    assert idle.somebody_is_here() == here
    reason = Demand(lambda: (0.0, 0.0), cores=1, gpus=lambda: 0.0).why(1.0)
    assert reason == ("somebody is at the machine" if here else None)


def test_logind_is_asked_for_its_first_seat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The word is logind's, whatever we call a slot."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("DISPLAY", raising=False)
    logind = tmp_path / "loginctl"
    logind.write_text(
        '#!/bin/sh\n[ "$1 $2" = "show-seat seat0" ] && printf "IdleHint=no\\nIdleSinceHint=1780000000000000\\n"\n'
    )
    logind.chmod(0o755)
    assert idle.somebody_is_here()


def test_other_nodes_of_the_machine_are_no_other_programs(tmp_path: Path) -> None:
    command, script = [sys.executable, "-c", "input()"], tmp_path / "dlx-node"
    script.write_text("input()")
    with subprocess.Popen([sys.executable, "-P", script], stdin=subprocess.PIPE, start_new_session=True) as node:
        with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as own:
            with subprocess.Popen(["sh", "-c", "sleep 60 & wait"], start_new_session=True) as child:
                ours = idle._our_processes()
                child.kill()
            assert {os.getpid(), own.pid, node.pid, child.pid} <= ours and os.getppid() not in ours
            own.kill()
        node.kill()


@pytest.mark.parametrize(
    ("line", "ours"),
    [
        ("dlx-node start", True),
        ("/opt/bin/dlx-node", True),
        ("/venv/bin/python3.11 /venv/bin/dlx-node start", True),
        ("/venv/bin/python -P -m dlx.node.web.audits.process", True),
        ("python -m dlx.node.cli.app start", True),
        ("tmux new -d dlx-node start", False),  # in which all else may run, too
        ("sudo dlx-node start", False),
        ("vim dlx.py", False),
        ("python train.py dlx-node", False),
        ("python -m http.server", False),
        ("python -m", False),
        ("python", False),
        ("", False),
    ],
)
def test_a_program_that_names_a_node_is_none(line: str, ours: bool) -> None:
    assert idle._is_ours(line.split()) == ours


async def asked_by(rest: Rest) -> None:
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rest.run, None)
            async for state in rest.state.values():
                if state is not None:
                    nursery.cancel_scope.cancel()


def test_a_node_rests_while_its_machine_is_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(Demand, "why", lambda self, now: "somebody is at the machine")
    rest = Rest(tmp_path / "paused.json", when_idle=True)
    assert rest.state.value is None
    trio.run(asked_by, rest)
    assert str(rest.state.value).startswith("somebody is at the machine; keeps its slot")


def test_a_member_that_leaves_begins_no_round() -> None:
    sim = Simulation(make_rules(rounds=12, stages=1, delay=0), replicas=3, seed=2)
    leaving = sim.members[str(sim.view.member_at(0, 0))].machine
    assert sim.run(lambda: sim.view.open_round == 3 and leaving.training is None, 200)
    leaving.leaves, last = True, leaving.last_trained
    assert sim.run(lambda: sim.view.open_round == 5, 400), "the others go on"
    assert leaving.training is None and leaving.last_trained == last


@pytest.mark.parametrize(("stages", "delay"), [(1, 0), (2, 1)])
def test_a_resting_member_is_counted_in_every_round_with_the_fewest_steps_and_nobody_is_asked(
    stages: int, delay: int
) -> None:
    rules = make_rules(rounds=12, stages=stages, delay=delay, plan=Plan(4, 0, 40))
    sim = Simulation(rules, replicas=2, seed=2)
    sent, transact = [], sim.transact
    sim.transact = lambda member, action: sent.append(action) or transact(member, action)  # type: ignore[method-assign]
    resting = sim.members[str(sim.view.member_at(0, stages - 1))]
    slot = sim.view.slot_of(resting.account)
    assert sim.run(lambda: sim.view.open_round == 3, 200)
    resting.machine.rests = True
    assert sim.run(lambda: sim.view.open_round == 7, 400)
    resting.machine.rests = False
    assert sim.run(lambda: sim.view.finished, 400)
    taken = [
        next((record.inner_steps for record in sim.view.sealed[0, round].records if record.replica == 0), 0)
        for round in range(12)
    ]
    assert all(taken), "counted in every round"
    assert set(taken[5:7]) == {fewest_steps(40)}
    assert max(taken[9:]) > 2 * fewest_steps(40), "and then it works again"
    assert sim.view.slot_of(resting.account) == slot
    assert not any(isinstance(action, a.Send) for action in sent)
    assert all(not member.rejected for member in sim.members.values())


def test_pause_and_resume_are_a_file_in_the_folder(tmp_path: Path) -> None:
    dlx("init", "--datadir", tmp_path, "--insecure-devnet")
    (tmp_path / "stages" / "0").mkdir(parents=True)
    assert "keeps its slot" in dlx("pause", "--datadir", tmp_path).stderr
    files = [tmp_path / "state" / "paused.json", tmp_path / "stages" / "0" / "state" / "paused.json"]
    assert all(Rest(file).state.value for file in files)
    assert "gives its slot back" in dlx("pause", "--leave", "--datadir", tmp_path).stderr
    assert Rest(files[0]).leaves
    assert "working again" in dlx("resume", "--datadir", tmp_path).stderr
    assert "not paused" in dlx("resume", "--datadir", tmp_path).stderr
    assert not any(file.exists() for file in files)
