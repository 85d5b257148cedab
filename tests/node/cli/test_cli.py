"""The command as users run it: exit code, stdout and stderr."""

import io
import json
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dlx.ledger.client import LedgerClient
from dlx.node.cli import app, options
from dlx.node.cli.devnet import demo
from dlx.node.home import config
from dlx.node.home.datadir import DataDir
from dlx.node.home.errors import Failure
from dlx.node.home.ledgers import open_index, open_ledger
from tests.node.command import Terminal, dlx, pasted
from tests.patience import PATIENCE, until

ROOT = Path(__file__).parents[3]
DRAFT = """
name = "tiny"
stages = [[0, 1], [1, 2]]
rounds = 3
min_replicas = 1
max_replicas = 2
confirmations = 0
[model.config]
model_type = "llama"
vocab_size = 256
hidden_size = 16
intermediate_size = 32
num_hidden_layers = 2
num_attention_heads = 2
num_key_value_heads = 2
max_position_embeddings = 32
[data]
source = ["text/*.txt"]
sequence_length = 32
batch_size = 4
micro_batches = 2
"""


class Chain:
    """`dlx-node chain` in a folder."""

    def __init__(self, folder: Path, port: int = 0) -> None:
        options = ["--datadir", str(folder), "--port", str(port), "--json"]
        command = [sys.executable, "-m", "dlx.node.cli.app", "chain", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert self.process.stdout is not None
        self.found: dict[str, Any] = json.loads(self.process.stdout.readline())

    def stop(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(PATIENCE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cli") / "node"


@pytest.fixture(scope="module")
def chain(folder: Path) -> Iterator[Chain]:
    served = Chain(folder)
    yield served
    served.process.kill()
    served.process.wait()


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("draft")
    (home / "text").mkdir()
    for name in "abc":
        (home / "text" / f"{name}.txt").write_text(f"some text of {name}\n" * 500)
    (home / "run.toml").write_text(DRAFT)
    return home / "run.toml"


def test_the_process_ends_with_one_line_and_the_code(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dlx.node.cli.app", "status", "--datadir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1)


def test_help_names_every_verb_and_defaults_and_loads_nothing_heavy() -> None:
    shown = dlx("--help").stdout
    for verb in ("init", "chain", "deploy", "run", "status", "peers", "history"):
        assert f" {verb} " in shown
    shown = dlx("chain", "--help").stdout
    assert "127.0.0.1" in shown and "8545" in shown and "31337" in shown and "DLX_CHAIN_ID" in shown
    script = (
        "import sys, dlx.node.cli.app; print([m for m in ('torch', 'libp2p', 'web3', 'numpy') if m in sys.modules])"
    )
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert loaded.stdout == "[]\n", loaded.stderr


ADDRESS = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed"  # EIP-55's own example
MISTYPED = ADDRESS.replace("5aA", "5aa")


@pytest.mark.parametrize("typed", [ADDRESS, ADDRESS.lower(), "0x" + ADDRESS[2:].upper()])
def test_an_address_is_of_one_case_or_has_its_checksum(tmp_path: Path, typed: str) -> None:
    dlx("init", "--insecure-devnet", "--datadir", tmp_path)
    dlx("config", "set", "ledger", typed, "--datadir", tmp_path)
    assert options.account(typed, "ACCOUNT") == ADDRESS


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "list", "--ledger", MISTYPED],
        ["config", "set", "campaigns", MISTYPED],
        ["run", "invite", MISTYPED],
        ["run", "dismiss", MISTYPED],
        ["run", "dismiss", ADDRESS, "--for", MISTYPED],
        ["run", "create", "--manifest", __file__, "--founder", MISTYPED],
        ["history", f"dlx:5/{MISTYPED}/{'ab' * 32}"],
    ],
)
def test_an_address_with_a_wrong_checksum_is_refused_wherever_it_is_given(arguments: list[str], tmp_path: Path) -> None:
    dlx("init", "--insecure-devnet", "--datadir", tmp_path)
    said = dlx(*arguments, "--datadir", tmp_path, code=2).stderr
    assert said.count("\n") == 1 and "has a wrong checksum" in said and MISTYPED in said


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["history", "--csv", "--json"], 2, "exclude each other"),
        (["history", "--by", "account", "--csv"], 2, "go without --by account"),
        (["history", "--by", "replica"], 2, "'replica' is not one of 'account'"),
        (["nonsense"], 2, "nonsense"),
        (["chain", "--host", "0.0.0.0"], 2, "--insecure-listen"),
        (["init"], 2, "--password-file"),
        (["run", "list"], 2, "--ledger"),
        (["run", "list", "--ledger", "0x12"], 2, "40 hex digits"),
        (["run", "list", "--ledger", "0x" + "11" * 20, "--rpc-url", "http://127.0.0.1:9"], 3, "start `chain` there"),
        (["status"], 3, "no node runs in"),
        (["peers", "--json"], 3, "no node runs in"),
        (["deploy"], 3, "dlx-node init"),
    ],
)
def test_expected_failures_are_one_line_and_an_exit_code(
    tmp_path: Path, arguments: list[str], code: int, said: str
) -> None:
    shown = dlx(*arguments, code=code, DLX_HOME=str(tmp_path)).stderr
    assert said in shown and shown.count("\n") == 1


LEDGER = ["--ledger", "0x" + "11" * 20, "--rpc-url", "http://127.0.0.1:9"]  # where nobody answers


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["start", "--stage", "last"], "--stage last"),
        (["start", "--stage", "-1"], "--stage -1"),
        (["start", "--stage", "64"], "--stage 64"),
        (["start", "--run", "0x12", *LEDGER], "'0x12' is no run id"),
        (["run", "show", "zzzzzz", *LEDGER], "'zzzzzz' is no run id"),
        (["audit", "z" * 64, *LEDGER], "is no run id"),
        (["history", "a" * 65, *LEDGER], "is no run id"),
        (["audit", "--blobs", "nowhere", *LEDGER], "--blobs nowhere"),
        (["pull", "--out", "model", "--blobs", "nowhere", *LEDGER], "--blobs nowhere"),
        (["history", "--plot", "nowhere/loss.png", *LEDGER], "nowhere"),
        (["run", "plan", "--manifest", "nowhere.toml"], "nowhere.toml"),
        (["run", "plan", "--manifest", "broken.toml"], "speed"),
        (["init", "--log-format", "xml"], "log_format"),
        (["init", "--listen", "here"], "listen"),
        (["rank", "--rendezvous", "10.0.0.1"], "rendezvous: expected HOST:PORT"),
        (["rank", "--rendezvous", "10.0.0.1:1", "--machine", "2"], "--machine 2: expected 1 to 1"),
        (["rank", "--rendezvous", "10.0.0.1:1", "--devices", "cuda:999"], "device cuda:999: this machine has"),
        (["status", "--network", "a b"], "network"),
        (["peers", "--datadir", "/nonexistent/x"], "no folder /nonexistent/x"),
        (["audit", "--datadir", "/nonexistent/x"], "no folder /nonexistent/x"),
        (["start", "--datadir", "/nonexistent/x"], "no folder /nonexistent/x"),
        (["init", "--datadir", "/nonexistent/x", "--insecure-devnet"], "no folder /nonexistent to make x in"),
        (["chain", "--datadir", "/nonexistent/x"], "no folder /nonexistent to make x in"),
        (["demo", "--datadir", "/nonexistent/x"], "no folder /nonexistent to make x in"),
        (["demo", "--resume", "--datadir", "."], "no demo to resume"),
        (["status", "--datadir", "other"], "is not the folder of a node"),
        (["run", "list", "--datadir", "broken.toml"], "is not the folder of a node"),
        (["init", "--datadir", "broken.toml", "--insecure-devnet"], "is not a folder"),
    ],
)
def test_a_wrong_argument_or_setting_is_one_line_and_exits_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.toml").write_text(DRAFT.replace('name = "tiny"', 'name = "tiny"\nspeed = 1'))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "holiday.jpg").touch()
    before = sorted(tmp_path.rglob("*"))
    done = dlx(*arguments, code=2, HOME=str(tmp_path))
    assert said in done.stderr and done.stderr.count("\n") == 1, done.stderr
    assert done.stdout == "" and sorted(tmp_path.rglob("*")) == before, "nothing is made"
    assert not Path("/nonexistent").exists()


def test_version_alone_prints_and_exits_0() -> None:
    assert dlx("--version").stdout.startswith("dlx-node 0.")


def test_help_shows_every_default_and_no_type_beside_flags() -> None:
    import typer.main

    from dlx.node.cli.app import app

    def commands(group: Any, path: list[str]) -> Iterator[tuple[list[str], Any]]:
        for name, command in group.commands.items():
            yield [*path, name], command
            if hasattr(command, "commands"):
                yield from commands(command, [*path, name])

    for path, command in commands(typer.main.get_command(app), []):
        assert "<bool>" not in dlx(*path, "--help", COLUMNS="200").stdout
        for option in command.params:
            silent = not option.required and option.default is None and option.show_default is True
            assert getattr(option, "is_flag", False) or not silent, (
                f"{' '.join(path)} {option.name} does not say its default"
            )


def test_an_unknown_configuration_key_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("rpcurl = 'http://x'\n")
    assert "'rpcurl'" in dlx("status", "--datadir", tmp_path, code=2).stderr


def test_init_is_idempotent_and_never_overwrites(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    listen = "/ip4/127.0.0.1/tcp/4001"
    first = dlx("init", "--datadir", folder, "--insecure-devnet", "--listen", listen, "--json")
    assert "INSECURE" in first.stderr
    made = json.loads(first.stdout)
    assert made["created"] == ["node key", "account", "config.toml"] and made["insecure"]
    assert tomllib.loads((folder / "config.toml").read_text()) == {"listen": [listen]}
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    again = dlx("init", "--datadir", folder, "--listen", "/ip4/127.0.0.1/tcp/9", "--json")
    assert "unchanged" in again.stderr
    kept = json.loads(again.stdout)
    assert (kept["account"], kept["peer_id"], kept["created"]) == (made["account"], made["peer_id"], [])
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == files
    (folder / "node.key").chmod(0o644)
    assert "chmod 600" in dlx("init", "--datadir", folder, code=1).stderr


def test_a_folder_has_one_run_after_asking_for_it_twice(folder: Path, chain: Chain, draft: Path) -> None:
    dlx("init", "--datadir", folder, "--insecure-devnet")
    empty = dlx("run", "show", "--datadir", folder, code=1).stderr
    created = json.loads(dlx(*pasted(empty, FILE=draft), "--public-data", "--json").stdout)
    assert not created["existed"] and len(created["genesis"]) == 2
    for name in (created["manifest"], created["data_manifest"], *created["genesis"]):
        assert (folder / "blobs" / name).is_file()
    again = json.loads(dlx("run", "create", "--manifest", draft, "--datadir", folder, "--public-data", "--json").stdout)
    assert again == {**created, "existed": True}
    (listed,) = json.loads(dlx("run", "list", "--datadir", folder, "--json").stdout)["runs"]
    assert (listed["run"], listed["name"], listed["state"]) == (created["run"], "tiny", "waiting for members")
    for given in (created["run"], created["run"][2:].upper(), created["run"][2:8]):
        shown = json.loads(dlx("run", "show", given, "--datadir", folder, "--json").stdout)
        assert shown["summary"] == listed and shown["genesis"] == created["genesis"]
        assert shown["founders"] == created["founders"] == [created["creator"]]
        assert shown["founders_hold"] == [1.0, 1.0], "nobody has worked yet"
    dismiss = ("run", "dismiss", created["creator"], "--run", created["run"], "--datadir", folder)
    assert "holds no slot" in dlx(*dismiss, code=1).stderr
    assert (
        "expected an address of 0x and 40 hex digits"
        in dlx("run", "dismiss", "0x12", "--datadir", folder, code=2).stderr
    )
    member = _member(chain, 1)
    member.join_run(bytes.fromhex(created["run"][2:]), 1)
    freed = ("run", "dismiss", member.account, "--run", created["run"], "--datadir", folder, "--for")
    assert "it has one" in dlx(*freed, member.account, code=1).stderr
    said = json.loads(dlx(*freed, created["creator"], "--json").stdout)
    assert (said["account"], said["replica"], said["stage"]) == (member.account, 0, 1)
    assert said["for"] == created["creator"]
    blob, of_node = folder / "blobs" / created["manifest"], folder / "nodes" / "node-0" / "blobs"
    of_node.mkdir(parents=True)
    blob.rename(of_node / blob.name)  # the name is the ledger's, wherever the manifest lies
    assert json.loads(dlx("run", "list", "--datadir", folder, "--json").stdout)["runs"] == [listed]
    (of_node / blob.name).rename(blob)
    settings = config.load(DataDir(folder), {}, {})
    with open_ledger(settings, DataDir(folder)) as client, open_index(client) as kept:
        with open_index(client) as second:  # two commands at a time
            assert second.trouble is None and second.runs() == kept.runs() != []
    for given, code in (("0x12", 2), ("zzzzzz", 2), ("f" * 64, 1)):
        dlx("run", "show", given, "--datadir", folder, code=code)
    elsewhere = {"HOME": str(folder.parent)}  # without a folder of its own
    there = ["--ledger", chain.found["ledger"], "--rpc-url", chain.found["rpc_url"]]
    for at, environ in (["--datadir", folder], {}), (there, elsewhere):
        shown = dlx(*pasted(dlx("history", "f" * 64, *at, code=1, **environ).stderr), "--json", **environ)
        assert [one["run"] for one in json.loads(shown.stdout)["runs"]] == [created["run"]]


def test_text_becomes_public_only_where_somebody_says_so(
    folder: Path, chain: Chain, draft: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dlx("init", "--datadir", folder, "--insecure-devnet")
    command = ("run", "create", "--manifest", draft, "--datadir", folder)
    before = sorted((folder / "blobs").glob("*"))

    def refused(stdin: io.StringIO, code: int, said: str) -> None:
        monkeypatch.setattr(sys, "stdin", stdin)
        done = dlx(*command, code=code)
        assert said in done.stderr and "hoever asks a node of the run gets its text" in done.stderr
        assert str(draft.parent / "text") in done.stderr, "it says which text"
        assert code == 2 or (".txt" in done.stderr and "0.0% are copies of another" in done.stderr)
        assert sorted((folder / "blobs").glob("*")) == before, "nothing was frozen"

    refused(io.StringIO("y\n"), 2, "say by --public-data that it may be public, there is nobody to ask")
    refused(Terminal("n\n"), 1, "nothing was published")
    refused(Terminal("\n"), 1, "nothing was published")
    refused(Terminal(""), 130, "Publish it?")
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    assert "data manifest" in dlx(*command).stdout


def test_a_stage_that_the_run_does_not_have_is_refused_at_once(folder: Path, chain: Chain, draft: Path) -> None:
    dlx("init", "--datadir", folder, "--insecure-devnet")
    run = json.loads(dlx("run", "create", "--manifest", draft, "--datadir", folder, "--public-data", "--json").stdout)[
        "run"
    ]
    start = ["start", "--datadir", str(folder), "--run", run, "--stage", "2"]
    done = subprocess.run(  # a process of its own: it sets up logging
        [sys.executable, "-m", "dlx.node.cli.app", *start], capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[-1] == "dlx-node: --stage 2: the run has stages 0 to 1"


@pytest.mark.parametrize(
    ("line", "wrong", "said"),
    [
        ("rounds = 3", "rounds = 0", "rounds: expected"),
        ('name = "tiny"', 'name = "tiny"\nspeed = 1', "speed: unknown key"),
        ('["text/*.txt"]', '["nowhere/*.txt"]', "data.source"),
        ("stages = [[0, 1], [1, 2]]", "stages = [[0, 1]]", "stages"),
    ],
)
def test_a_bad_manifest_names_the_key_and_the_reason(
    folder: Path, chain: Chain, draft: Path, tmp_path: Path, line: str, wrong: str, said: str
) -> None:
    dlx("init", "--datadir", folder, "--insecure-devnet")
    (tmp_path / "text").symlink_to(draft.parent / "text")
    (tmp_path / "run.toml").write_text(DRAFT.replace(line, wrong))
    done = dlx("run", "create", "--manifest", tmp_path / "run.toml", "--datadir", folder, code=2)
    assert said in done.stderr and len(done.stderr.splitlines()) == 1


def test_deploying_again_gives_a_second_ledger_and_checks_the_chain_id(folder: Path, chain: Chain) -> None:
    dlx("init", "--datadir", folder, "--insecure-devnet")
    found = json.loads(dlx("deploy", "--datadir", folder, "--json").stdout)
    assert found["ledger"] != chain.found["ledger"]
    assert "is on chain 31337, not 5" in dlx("deploy", "--datadir", folder, "--chain-id", 5, code=2).stderr
    for command in ("run", "list"), ("audit", "22" * 32):
        wrong = dlx(*command, "--datadir", folder, "--ledger", "0x" + "11" * 20, code=3).stderr
        assert "no code at 0x1111" in wrong.splitlines()[-1]
    wrong = dlx("run", "list", "--datadir", folder, "--ledger", found["registry"], code=2).stderr
    assert "is not this version's TrainingLedger" in wrong


def test_history_of_a_run_read_from_the_chain_and_again_after_the_chain_has_stopped(
    folder: Path, chain: Chain, tmp_path: Path
) -> None:
    run = _sealed_run(chain, rounds=2)
    given = [run, "--datadir", folder]
    found = json.loads(dlx("history", *given, "--json").stdout)
    assert "2 of 50 rounds sealed" in dlx("history", *given).stdout
    assert [row["round"] for row in found["rounds"]] == [0, 1] and all(row["sealed"] for row in found["rounds"])
    assert [len(row["stages"]) for row in found["rounds"]] == [2, 2]
    shown = dlx("history", "--by", "account", *given).stdout
    assert "2 rounds sealed" in shown and shown.count(" 50.0% ") == 2 and "no node's verdicts are here" in shown
    board = json.loads(dlx("history", "--by", "account", *given, "--json").stdout)
    every = json.loads(dlx("history", "--by", "account", "--datadir", folder, "--json").stdout)
    assert every["accounts"] == board["accounts"] and board["runs"][0] in every["runs"]
    assert [(row["rounds"], row["drawn"], row["convictions"]) for row in board["accounts"]] == [(2, None, 0)] * 2
    assert chain.stop() == 0
    # The folder's own chain now starts by itself, though another one took its port and has the same chain id.
    other = Chain(tmp_path / "other", port=int(chain.found["rpc_url"].rpartition(":")[2]))
    picture = tmp_path / "loss.png"
    assert json.loads(dlx("history", *given, "--json", "--plot", picture).stdout) == found
    assert other.stop() == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    # An endpoint that was asked for by name is never replaced by the folder's own.
    dlx("history", *given, "--rpc-url", "http://127.0.0.1:9", code=3)


def _sealed_run(chain: Chain, rounds: int) -> str:
    """A run of two stages and one replica with so many sealed rounds; its id."""
    from tests.ledger.ledger_run import Run, config

    members = [_member(chain, index) for index in (1, 2)]
    run = Run(members, config(min_replicas=1))
    for stage, client in enumerate(members):
        client.join_run(run.id, stage)
    for _ in range(rounds):
        for stage, client in enumerate(members):
            until("a seal", partial(_seal, run, stage, client.account))
    return "0x" + run.id.hex()


def _member(chain: Chain, index: int) -> LedgerClient:
    """A registered account that can pay."""
    from dlx.ledger.deployment import fund
    from dlx.ledger.keys import account_of

    key = bytes([index]) * 32
    fund(chain.found["rpc_url"], account_of(key))
    client = LedgerClient(chain.found["rpc_url"], chain.found["ledger"], key)
    client.register(bytes([10 + index]) * 32, [])
    return client


def _seal(run: Any, stage: int, account: str) -> bool:
    """Sends the next seal of the stage; whether it is time for it: a round lasts a second of the chain's time."""
    from dlx.ledger.errors import Reverted

    run.poll()
    try:
        run.send(stage, [account], [account])
    except Reverted as error:
        if error.name != "TooEarlyToSeal":
            raise
        return False
    return True


def test_what_is_no_address_of_a_node_is_no_node(tmp_path: Path) -> None:
    dlx("init", "--datadir", tmp_path, "--insecure-devnet")
    DataDir(tmp_path).http_address.write_text('{"url": 5}')
    with DataDir(tmp_path).lock():
        assert "no node runs in" in dlx("status", "--datadir", tmp_path, code=3).stderr


def test_a_demo_says_that_its_disk_is_too_full_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo.shutil, "disk_usage", lambda place: SimpleNamespace(free=900_000_000))
    with pytest.raises(Failure, match=r"has 900\.0 MB free: the nodes leave 1\.1 GB of it free .* on another disk"):
        demo.check_room(tmp_path / "new")


def test_an_interruption_before_anything_listens_ends_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(arguments: object) -> None:
        raise BaseExceptionGroup("task group", [KeyboardInterrupt()])

    monkeypatch.setattr(app, "app", interrupted)
    with pytest.raises(SystemExit) as raised:
        app.main([])
    assert raised.value.code == 130 and not capsys.readouterr().err


STEERING = "\x1b[2J\x9b31m\u202e"  # clears a terminal, colours it, turns what follows around


def test_what_strangers_say_steers_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(arguments: object) -> None:
        raise Failure(f"a peer says: {STEERING}\nand more")

    monkeypatch.setattr(app, "app", fails)
    with pytest.raises(SystemExit):
        app.main([])
    options.note(STEERING)
    options.say(f"first\n{STEERING}")
    options.print_fields([("name", STEERING), ("other", options.amber(STEERING))])
    options.print_table(["NAME"], [[STEERING]])
    options.print_json({"name": STEERING})
    out, err = capsys.readouterr()
    assert all(line.isprintable() for line in [*out.splitlines(), *err.splitlines()])
    assert err.splitlines()[0] == "dlx-node: a peer says: \ufffd[2J\ufffd31m\ufffd and more"
    assert json.loads(out.splitlines()[-1]) == {"name": STEERING}


def test_data_that_ends_too_soon_is_no_answer_that_was_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(*_: object) -> None:
        raise EOFError("marshal data too short")

    monkeypatch.setattr("dlx.node.cli.options.folder", ended)
    said = dlx("status", code=1).stderr
    assert "Aborted" not in said and "data ended too soon in" in said and "test_cli.py, line" in said
    assert "marshal data too short" in said and len(said.splitlines()) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("arguments", [["--version"], ["start", "--help"]])
def test_a_full_output_is_named(arguments: list[str]) -> None:
    command = [sys.executable, "-m", "dlx.node.cli.app", *arguments]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert (done.returncode, done.stderr) == (1, "dlx-node: standard output: No space left on device\n")


def test_a_closed_output_is_no_error() -> None:
    command = [sys.executable, "-m", "dlx.node.cli.app", "--version"]
    for closed in (">&-", ">&- 2>&-", "<&- >&- 2>&-"):
        shell = ["sh", "-c", f'exec "$@" {closed}', "sh", *command]
        done = subprocess.run(shell, stderr=subprocess.PIPE, text=True, cwd=ROOT)
        assert (done.returncode, done.stderr) == (0, ""), closed


SAYS_MUCH = """
import sys
from dlx.node.cli import app
def says(arguments):
    sys.stdout.write("x" * 100_000)
    sys.exit(0)
app.app = says
app.main([])
"""


def test_a_long_text_that_nobody_reads_or_that_does_not_fit() -> None:
    reads, writes = os.pipe()
    os.close(reads)
    with open(writes, "wb") as unread:
        done = subprocess.run([sys.executable, "-c", SAYS_MUCH], stdout=unread, stderr=subprocess.PIPE, cwd=ROOT)
    assert (done.returncode, done.stderr) == (1, b"")
    if Path("/dev/full").exists():
        with open("/dev/full", "wb") as full:
            done = subprocess.run([sys.executable, "-c", SAYS_MUCH], stdout=full, stderr=subprocess.PIPE, cwd=ROOT)
        assert (done.returncode, done.stderr) == (1, b"dlx-node: standard output: No space left on device\n")


def test_an_error_of_a_line_leaves_nothing_on_the_output() -> None:
    """Whether the output itself failed is not found out by writing to it: under --json an empty line is no JSON."""
    fails = SAYS_MUCH.replace('sys.stdout.write("x" * 100_000)', 'raise ConnectionResetError(104, "reset")')
    done = subprocess.run([sys.executable, "-c", fails], capture_output=True, cwd=ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (1, b"", b"dlx-node: reset\n")


def test_who_reads_no_further_is_told_nothing() -> None:
    reads, writes = os.pipe()
    os.close(reads)
    command = [sys.executable, "-m", "dlx.node.cli.app", "start", "--help"]
    done = subprocess.run(command, stdout=writes, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    os.close(writes)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_user_without_a_home_names_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As in a container with a user's number that is in no list."""

    def nobody(path: str) -> str:
        return path

    monkeypatch.setattr("os.path.expanduser", nobody)
    said = dlx("status", code=2).stderr
    assert "no home folder" in said and "--datadir" in said and "DLX_HOME" in said and len(said.splitlines()) == 1
    said = dlx("init", "--datadir", tmp_path / "node", "--insecure-devnet").stdout
    assert "peer id" in said and f"config set ledger ADDRESS --datadir {tmp_path / 'node'}" in said
    assert "no node runs" in dlx("status", code=3, DLX_HOME=str(tmp_path / "node")).stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "list", "--chain-id", "5"], "is on chain 31337, not 5"),
        (["history", "--chain-id", "5"], "is on chain 31337, not 5"),
        (["doctor", "--chain-id", "5"], "is on chain 31337, not 5"),
        (["chain", "--chain-id", "5"], "is on chain 31337, not 5"),
        (["keys", "import-signed", "nowhere"], "nowhere is no file that export-signed wrote"),
        (["keys", "export", "--out", "/nonexistent/x"], "/nonexistent/x cannot be made"),
        (["keys", "export-signed", "--out", "/nonexistent/x"], "/nonexistent/x cannot be made"),
    ],
)
def test_a_wrong_argument_in_a_folder_with_a_chain_exits_2(
    folder: Path, chain: Chain, arguments: list[str], said: str
) -> None:
    dlx("init", "--datadir", folder, "--insecure-devnet")
    assert said in dlx(*arguments, "--datadir", folder, code=2).stderr


@pytest.mark.parametrize("arguments", [["config", "show"], ["keys", "--help"]])
def test_no_color_means_neither_colour_nor_bold(tmp_path: Path, arguments: list[str]) -> None:
    dlx("init", "--datadir", tmp_path, "--insecure-devnet")
    command = [sys.executable, "-m", "dlx.node.cli.app", *arguments]

    def shown(**environ: str) -> str:
        given = {**os.environ, "FORCE_COLOR": "1", "TERM": "xterm", "DLX_HOME": str(tmp_path), **environ}
        return subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=given, check=True).stdout

    assert "\x1b[1" in shown(NO_COLOR="") and "\x1b" not in shown(NO_COLOR="1")
