"""What deploy/ has is well-formed, and names commands, options and metrics that exist."""

import json
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from dlx.node.cli.app import app
from dlx.node.daemon.api.systemd import notify
from dlx.node.daemon.metrics import Metrics
from dlx.training.recipe.draft import draft_from_toml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "docker" / "compose.yml").read_text())


def check_call(line: str) -> None:
    """That `dlx-node ...` is a command with these options."""
    _, *words = shlex.split(line)
    command: Any = typer.main.get_command(app)
    while getattr(command, "commands", None):
        command = command.commands[words.pop(0)]
    known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    assert {word for word in words if word.startswith("--")} <= known, line


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_units_are_sound_and_start_what_there_is(unit: Path, tmp_path: Path) -> None:
    text = unit.read_text()
    (start,) = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
    check_call(start)
    assert "NoNewPrivileges=yes" in text and "ProtectSystem=strict" in text
    if shutil.which("systemd-analyze") is None:
        return
    # The program and the manual lie elsewhere on this machine.
    copy = tmp_path / unit.name
    copy.write_text(
        re.sub(r"^(Documentation|User)=.*\n", "", text.replace("/usr/local/bin/dlx-node", "/bin/true"), flags=re.M)
    )
    done = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, timeout=60)
    assert unit.name not in done.stderr, done.stderr


def test_the_devnet_calls_what_there_is() -> None:
    services = COMPOSE["services"]
    assert sum(name.startswith("node-") for name in services) == 4
    for name, service in services.items():
        needs = service.get("depends_on", {})
        assert set(needs) <= services.keys(), name
        if service["image"] != "dlx-node":
            assert ":" in service["image"], "a version, not the newest"
            continue
        command = list(map(str, service["command"]))
        if name == "chain":
            check_call(shlex.join(["dlx-node", *command]))
        else:
            assert service["entrypoint"] == ["sh", "/deploy/node.sh"] and command in (["create"], [name[-1]])


def test_a_node_of_the_devnet_is_made_once_and_calls_what_there_is(tmp_path: Path) -> None:
    """The script, with a `dlx-node` that says how it was called."""
    script = (DEPLOY / "docker" / "node.sh").read_text().replace("/home/dlx", str(tmp_path))
    (tmp_path / "chain" / "chain").mkdir(parents=True)
    (tmp_path / "chain" / "chain" / "contracts.json").write_text('{"ledger": "0x12"}')
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "dlx-node").write_text('#!/bin/sh\necho dlx-node "$@"\n')
    (programs / "dlx-node").chmod(0o755)
    path = f"{programs}:{Path(sys.executable).parent}:/usr/bin:/bin"
    for argument, folder, last in (
        ("create", "node-0", "run create"),
        ("0", "node-0", "start"),
        ("3", "node-3", "start"),
    ):
        done = subprocess.run(
            ["sh", "-c", script, "node.sh", argument], env={"PATH": path}, capture_output=True, text=True, timeout=60
        )
        lines = done.stdout.splitlines()
        assert done.returncode == 0 and len(lines) == 2, done.stderr
        for line in lines:
            check_call(line)
            assert f"--datadir {tmp_path}/{folder}" in line
        assert lines[0].startswith("dlx-node init ") and "--ledger 0x12" in lines[0]
        assert lines[1].startswith(f"dlx-node {last} ")


def test_volumes_and_the_images_files_are_there() -> None:
    mounted = [one for service in COMPOSE["services"].values() for one in service.get("volumes", [])]
    for place in {one.split(":")[0] for one in mounted} - COMPOSE["volumes"].keys():
        assert (DEPLOY / "docker" / place).exists(), place
    lines = (DEPLOY / "docker" / "Dockerfile").read_text().splitlines()
    words = {line.split()[0] for line in lines if line and line[0] not in "# \t"}
    assert words <= {"FROM", "RUN", "WORKDIR", "COPY", "ARG", "ENV", "USER", "STOPSIGNAL", "ENTRYPOINT", "CMD"}
    assert [line for line in lines if line.startswith("USER")] == ["USER 1000"], "not root"
    assert all("@" in line or ":" in line for line in lines if line.startswith("FROM"))


HADOLINT = shutil.which("hadolint") or shutil.which("hadolint", path=Path(sys.executable).parent)


@pytest.mark.skipif(HADOLINT is None, reason="missing: hadolint")
def test_the_image_is_made_as_hadolint_has_it() -> None:
    """Debian's packages are its release's: a version that is named is soon gone from the mirrors."""
    command = [str(HADOLINT), "--no-color", "--ignore", "DL3008", str(DEPLOY / "docker" / "Dockerfile")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_devnets_run_is_a_run(tmp_path: Path) -> None:
    text = (DEPLOY / "docker" / "run.toml").read_text().replace("/text/", f"{ROOT}/docs/")
    (tmp_path / "run.toml").write_text(text)
    assert draft_from_toml(tmp_path / "run.toml").min_replicas == 2


def test_dashboard_and_alerts_ask_for_metrics_that_nodes_have() -> None:
    metrics = Metrics("0x" + "11" * 32)
    metrics.of_stage(0)
    metrics.count_bytes(lambda: {"payload": (0, 0)}, dict)
    described = {name for family in metrics.registry.collect() for name in (family.name, f"{family.name}_total")}
    dashboard = json.loads((DEPLOY / "docker" / "grafana" / "dlx-node.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    rules = yaml.safe_load((DEPLOY / "docker" / "alerts.yml").read_text())
    asked += [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    assert asked and {name for expr in asked for name in re.findall(r"dlx_\w+", expr)} <= described
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


@pytest.mark.skipif(shutil.which("promtool") is None, reason="missing: promtool")
def test_alerts_fire_at_what_they_say_and_at_nothing_else() -> None:
    for command in (["check", "config", "--syntax-only", "prometheus.yml"], ["test", "rules", "alerts.test.yml"]):
        done = subprocess.run(
            ["promtool", *command], cwd=DEPLOY / "docker", capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_issue_forms_are_readable() -> None:
    forms = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
    for form in forms:
        found = yaml.safe_load(form.read_text())
        if form.name != "config.yml":
            assert found["name"] and found["description"]
            assert all(one["type"] == "markdown" or one["id"] for one in found["body"])
    assert {form.stem for form in forms} == {"bug", "config", "figure", "idea"}


@pytest.mark.parametrize("abstract", [False, True])
def test_the_service_manager_hears_of_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, abstract: bool) -> None:
    name = f"@dlx-{tmp_path.name}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + name[1:] if abstract else name)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        notify("READY=1")
        assert manager.recv(100) == b"READY=1"
    notify("STOPPING=1")  # nobody hears: no failure
    monkeypatch.delenv("NOTIFY_SOCKET")
    notify("READY=1")
