"""What deploy/ has is well-formed, and names commands, options and metrics that exist."""

import json
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from dlx.node.cli.app import app
from dlx.node.daemon.api.systemd import notify
from dlx.node.daemon.metrics import Metrics
from dlx.node.home.settings import DEFAULTS
from dlx.training.recipe.draft import draft_from_toml
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "docker" / "compose.yml").read_text())
NODE: dict[str, Any] = yaml.safe_load((DEPLOY / "docker" / "node.yml").read_text())
CUDA: dict[str, Any] = yaml.safe_load((DEPLOY / "docker" / "cuda.yml").read_text())
INSTALLED = "/opt/dlx/bin/dlx-node"


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
    assert start.split()[0] == INSTALLED
    assert f"sudo {Path(INSTALLED).parent}/pip install" in (ROOT / "docs" / "operator.md").read_text(), "where it says"
    assert "NoNewPrivileges=yes" in text and "ProtectSystem=strict" in text
    if shutil.which("systemd-analyze") is None:
        return
    # The program and the manual lie elsewhere on this machine.
    copy = tmp_path / unit.name
    copy.write_text(re.sub(r"^(Documentation|User)=.*\n", "", text.replace(INSTALLED, "/bin/true"), flags=re.M))
    done = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, timeout=PATIENCE)
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
            ["sh", "-c", script, "node.sh", argument],
            env={"PATH": path},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        lines = done.stdout.splitlines()
        assert done.returncode == 0 and len(lines) == 2, done.stderr
        for line in lines:
            check_call(line)
            assert f"--datadir {tmp_path}/{folder}" in line
        assert lines[0].startswith("dlx-node init ") and "--ledger 0x12" in lines[0]
        assert lines[1].startswith(f"dlx-node {last} ")


def test_my_node_keeps_its_keys_and_is_reached() -> None:
    node = NODE["services"]["node"]
    assert set(NODE["services"]) == set(CUDA["services"]) == {"node"}
    command = [str(one) for one in node["command"]]
    check_call(shlex.join(["dlx-node", *command]))
    port = node["ports"][0].split(":")[1]
    assert "--listen" not in command and f"/ip4/0.0.0.0/tcp/{port}" in DEFAULTS.listen
    assert node["environment"]["DLX_PASSWORD_FILE"] == f"/run/secrets/{node['secrets'][0]}"
    assert set(node["secrets"]) == NODE["secrets"].keys() and node["volumes"][0].split(":") == ["node", "/home/dlx"]
    assert "DLX_HOME=/home/dlx/node" in (DEPLOY / "docker" / "Dockerfile").read_text()
    (argument,) = CUDA["services"]["node"]["build"]["args"]
    assert f"ARG {argument}=" in (DEPLOY / "docker" / "Dockerfile").read_text()
    said = (DEPLOY / "docker" / "node.yml").read_text()
    for line in re.findall(r"docker compose -f \S+ (?:run --rm node|exec node dlx-node) (.*)", said):
        check_call(f"dlx-node {line}")


@pytest.mark.parametrize("answer", ["healthy", "", None])
def test_the_health_check_asks_the_node_and_starts_no_program(answer: str | None) -> None:
    """By a socket that answers as the node's endpoint does, that answers nothing, and by none."""
    test = NODE["services"]["node"]["healthcheck"]["test"]
    port = NODE["services"]["node"]["command"][-1]
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if answer is not None:
            listener.listen()
        own = str(listener.getsockname()[1])
        command = [one.replace("$$", "$").replace(f"/{port}", f"/{own}") for one in test[1:]]
        with subprocess.Popen(
            command, env={"PATH": ""}, executable=shutil.which("bash"), stderr=subprocess.PIPE
        ) as asked:
            if answer is not None:
                connection, _ = listener.accept()
                with connection:
                    lines = iter(connection.makefile("rb").readline, b"\r\n")
                    assert list(lines) == [b"GET /healthz HTTP/1.0\r\n", b"Host: localhost\r\n"]
                    connection.sendall(b'HTTP/1.1 200 \r\n\r\n{"healthy":true}' if answer else b"HTTP/1.1 500 \r\n\r\n")
            assert (asked.wait(PATIENCE) == 0) == bool(answer)


def test_the_chain_is_healthy_once_its_contracts_are_there(tmp_path: Path) -> None:
    test = COMPOSE["services"]["chain"]["healthcheck"]["test"]
    file = tmp_path / "contracts.json"
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = str(listener.getsockname()[1])
        script = test[-1].replace("/home/dlx/chain/chain/contracts.json", str(file)).replace("/8545", f"/{port}")
        asked = ["bash", "-c", script]
        assert subprocess.run(asked, timeout=PATIENCE).returncode != 0
        file.write_text("{}")
        assert subprocess.run(asked, timeout=PATIENCE).returncode == 0
    assert subprocess.run(asked, timeout=PATIENCE, capture_output=True).returncode != 0


def test_a_commit_builds_no_layer_of_what_others_wrote() -> None:
    """The image installs all that pyproject.toml asks for before it has anything else of the repository."""
    script = DEPLOY / "docker" / "needs.py"
    done = subprocess.run([sys.executable, script, "train"], cwd=ROOT, capture_output=True, text=True, check=True)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["top"], *extras["web"], *extras["train"]]
    assert set(done.stdout.splitlines()) == {one for one in wanted if not one.startswith("dlx-node[")}
    text = (DEPLOY / "docker" / "Dockerfile").read_text()
    before, _, after = text.partition("COPY . .")
    assert "--requirement needs.txt" in before and "pip install" not in after.partition("FROM")[0]
    assert re.findall(r"^COPY (?!--from)(.*)$", before, re.M) == [
        "requirements/constraints.txt pyproject.toml deploy/docker/needs.py ./"
    ]
    assert "COPY --from=needs /opt/dlx" in after and "--no-deps --no-index /wheels" in after


def test_volumes_and_the_images_files_are_there() -> None:
    mounted = [one for service in COMPOSE["services"].values() for one in service.get("volumes", [])]
    for place in {one.split(":")[0] for one in mounted} - COMPOSE["volumes"].keys():
        assert (DEPLOY / "docker" / place).exists(), place
    lines = (DEPLOY / "docker" / "Dockerfile").read_text().splitlines()
    words = {line.split()[0] for line in lines if line and line[0] not in "# \t"}
    assert words <= {"FROM", "RUN", "WORKDIR", "COPY", "ARG", "ENV", "USER", "STOPSIGNAL", "ENTRYPOINT", "CMD"}
    assert [line for line in lines if line.startswith("USER")] == ["USER 1000"], "not root"
    stages = {line.split()[-1] for line in lines if line.startswith("FROM") and " AS " in line}
    assert all(":" in line or line.split()[1] in stages for line in lines if line.startswith("FROM"))
    hidden = (ROOT / ".dockerignore").read_text().split()
    assert {"deploy/docker/password", "deploy/docker/node.env"} <= {*hidden}, "no secret in an image"


HADOLINT = shutil.which("hadolint") or shutil.which("hadolint", path=Path(sys.executable).parent)


@pytest.mark.skipif(HADOLINT is None, reason="missing: hadolint")
def test_the_image_is_made_as_hadolint_has_it() -> None:
    """Debian's packages are its release's: a version that is named is soon gone from the mirrors."""
    command = [str(HADOLINT), "--no-color", "--ignore", "DL3008", str(DEPLOY / "docker" / "Dockerfile")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
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
            ["promtool", *command], cwd=DEPLOY / "docker", capture_output=True, text=True, timeout=PATIENCE, check=False
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
