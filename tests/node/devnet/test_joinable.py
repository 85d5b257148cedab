"""A devnet that others join, without one."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from dlx.node.cli.devnet import devnet as command
from dlx.node.devnet import devnet as devnets
from dlx.node.devnet.devnet import Devnet, DevnetShape, draft
from dlx.node.devnet.joinable import JoinableDevnet
from dlx.node.home.datadir import DataDir
from dlx.node.home.errors import Failure, UsageFailure
from dlx.node.home.join_line import decode
from dlx.node.home.program import program
from dlx.node.home.settings import DEFAULTS
from dlx.node.round.challenges.turns import unpaid
from dlx.training.recipe.draft import draft_from_toml
from tests.node.command import dlx

RUN = "0x" + "ab" * 32


def devnet(root: Path, host: str = "127.0.0.1") -> JoinableDevnet:
    (root / "chain").mkdir(parents=True)
    found = {"rpc_url": f"http://{host}:8545", "chain_id": 31337, "block": 2}
    found |= {name: f"0x{number}" + "1" * 39 for number, name in enumerate(("ledger", "registry", "campaigns"))}
    (root / "chain" / "contracts.json").write_text(json.dumps(found))
    return JoinableDevnet(root, DevnetShape(RUN, 10, 1, 1), rpc_url=f"http://{host}:8545", host=host)


@pytest.mark.parametrize("host", ["127.0.0.1", "192.168.1.7"])
def test_the_line_to_paste_is_two_commands_that_there_are(tmp_path: Path, host: str) -> None:
    joins, starts = (shlex.split(one) for one in devnet(tmp_path / "net", host).join_command().split(" && "))
    assert joins[1] == "join" and starts[1] == "start" and joins[0] == starts[0]
    line = decode(joins[2])
    assert (line.run.hex(), line.rpc_url, line.invited) == ("ab" * 32, (f"http://{host}:8545",), None)
    assert joins[3:] == ["--datadir", "~/.dlx/guest-ababab", "--insecure-devnet"]
    assert ("/ip4/127.0.0.1/tcp/0" in starts) == (host == "127.0.0.1"), "other machines reach it, too"


def test_one_newcomer_completes_a_replica(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.py").write_text("x = 1\n" * 2000)
    (tmp_path / "run.toml").write_text(draft(2000, 1, 1, "devnet"))
    found = draft_from_toml(tmp_path / "run.toml")
    assert (found.name, len(found.stages), found.min_replicas, found.data.licence) == ("devnet", 1, 1, "PSF-2.0")
    assert unpaid(found.audit.share, DEFAULTS.audit_share) is None, "a newcomer's own settings pay for the checks"
    assert found.max_replicas > 4 and found.inner.warmup * found.rounds == pytest.approx(1), (
        "it learns from the start on"
    )


def test_a_devnets_own_folder_names_its_nodes(tmp_path: Path) -> None:
    node = tmp_path / "nodes" / "node-0"
    DataDir(tmp_path).create()
    node.parent.mkdir()
    dlx("init", "--datadir", node, "--insecure-devnet")
    said = dlx("status", "--datadir", tmp_path, code=3).stderr
    assert f"its nodes are node-0, as --datadir {node}" in said
    assert f"start --datadir {node}`" in dlx("status", "--datadir", node, code=3).stderr
    assert (
        f"init --password-file FILE --datadir {tmp_path / 'no'}`"
        in dlx("status", "--datadir", tmp_path / "no", code=2).stderr
    )


@pytest.mark.parametrize("host", ["0.0.0.0", "example.org", "::1", ""])
def test_an_address_that_nobody_dials_is_refused(host: str) -> None:
    with pytest.raises(UsageFailure, match="IPv4 address at which others reach"):
        command._check_host(host)


def test_what_is_no_devnet_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    said = dlx("devnet", "--datadir", tmp_path, code=2).stderr
    assert "holds no devnet" in said and said.count("\n") == 1 and [one.name for one in tmp_path.iterdir()] == ["mine"]
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "devnet.json").write_text(f'{{"run": "{RUN}", "rounds": 3, "replicas": 2, "stages": 2}}')
    said = dlx("devnet", "--datadir", tmp_path / "demo", code=2).stderr
    assert f"holds a demo: `{program()} demo --resume --datadir {tmp_path / 'demo'}` goes on with it, or" in said


def test_a_devnet_that_was_not_finished_is_named_and_ctrl_c_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends(error: BaseException) -> Callable[[JoinableDevnet], None]:
        def start(devnet: JoinableDevnet) -> None:
            raise error

        return start

    monkeypatch.setattr(devnets, "measured_round", lambda path, replicas, threads: 10.0)  # a slow machine
    for error in (Failure("no chain"), KeyboardInterrupt()):
        monkeypatch.setattr(JoinableDevnet, "start_chain", ends(error))
        with pytest.raises(type(error)):
            JoinableDevnet.begin(tmp_path / type(error).__name__, "127.0.0.1", lambda line: None)
    assert [path.name for path in tmp_path.iterdir()] == ["Failure"]
    assert draft_from_toml(tmp_path / "Failure" / "run.toml").timing.round_timeout == 125, "as was measured"
    for verb in (["devnet"], ["demo"], ["demo", "--resume"]):
        folder = tmp_path / "Failure"
        said = dlx(*verb, "--datadir", folder, code=2).stderr
        assert said == (
            f"dlx-node: {folder} holds a devnet that was not finished: remove it, or name a new --datadir\n"
        )


def test_a_demo_does_not_go_on_with_a_devnet(tmp_path: Path) -> None:
    shape = DevnetShape(RUN, 2000, 1, 1, kind="devnet")
    (tmp_path / "devnet.json").write_text(json.dumps(shape.__dict__))
    for more in (("--resume",), ()):
        said = dlx("demo", *more, "--datadir", tmp_path, code=2).stderr
        assert f"holds a devnet: `{program()} devnet --datadir {tmp_path}` goes on with it, or" in said
    assert JoinableDevnet.open(tmp_path).again == f"{program()} devnet --datadir {tmp_path}"
    assert Devnet(tmp_path, shape).again == f"{program()} demo --resume --datadir {tmp_path}"
