"""Logs, settings, keys and help, as users of other nodes know them."""

import json
import stat
import subprocess
import sys
import threading
import tomllib
from pathlib import Path

import pytest

from dlx.ground import durable
from dlx.node.home.datadir import DataDir
from dlx.node.home.keys import encrypted_file, identity
from dlx.node.home.settings import Settings
from tests.node.command import dlx
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[3]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "node"
    dlx("init", "--datadir", made, "--insecure-devnet", "--http-port", "9")
    return made


@pytest.fixture(autouse=True)
def light(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "_SCRYPT_N", identity._LIGHT_SCRYPT_N)
    monkeypatch.setattr(encrypted_file, "STRONG", encrypted_file.LIGHT)


# ---- settings


def test_settings_are_shown_with_where_each_comes_from(folder: Path) -> None:
    environ = {"DLX_RPC_URL": "https://me:word@rpc.example/KEY", "DLX_LOG_FORMAT": "json"}
    found = json.loads(dlx("config", "show", "--datadir", folder, "--json", **environ).stdout)
    assert found["http_port"] == {"value": 9, "from": str(folder / "config.toml")}
    assert found["log_format"] == {"value": "json", "from": "environment"}
    assert found["chain_id"] == {"value": 31337, "from": "default"}
    shown = dlx("config", "show", "--datadir", folder, **environ).stdout
    assert "rpc.example" in shown and "/KEY" not in shown and ":word" not in shown
    assert dlx("config", "show", "http_port", "--datadir", folder).stdout.splitlines()[1].split()[:2] == [
        "http_port",
        "9",
    ]
    dlx("config", "show", "nonsense", "--datadir", folder, code=2)


def test_a_setting_is_changed_in_its_place_and_back_and_comments_stay(folder: Path) -> None:
    file = folder / "config.toml"
    before = file.read_text()
    dlx("config", "set", "chain_id", "5", "--datadir", folder)
    dlx("config", "set", "listen", "/ip4/127.0.0.1/tcp/1", "/ip4/127.0.0.1/tcp/2", "--datadir", folder)
    dlx("config", "set", "disk_quota", "20GB", "--datadir", folder)
    found = tomllib.loads(file.read_text())
    assert found == {
        "http_port": 9, "chain_id": 5, "listen": ["/ip4/127.0.0.1/tcp/1", "/ip4/127.0.0.1/tcp/2"],
        "disk_quota": 20_000_000_000,
    }  # fmt: skip
    assert len(file.read_text().splitlines()) == len(before.splitlines())
    dlx("config", "set", "chain_id", "6", "--datadir", folder)
    for key in ("chain_id", "listen", "disk_quota"):
        dlx("config", "unset", key, "--datadir", folder)
    assert file.read_text() == before


def test_a_file_that_is_named_from_here_is_found_from_elsewhere(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for typed in ("word", "~/word"):
        dlx("config", "set", "password_file", typed, "--datadir", folder, HOME=str(tmp_path))
        assert tomllib.loads((folder / "config.toml").read_text())["password_file"] == str(tmp_path / "word")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("chain_id", "many"),
        ("nonsense", "1"),
        ("schedule", "always"),
        ("when_idle", "maybe"),
        ("listen", "/nonsense"),
        ("listen", "/ip4/999.0.0.1/tcp/1"),
        ("listen", "/ip4/127.0.0.1/udp/1/quic-v1"),
        ("announce", "/ip4/203.0.113.7/tcp/70000"),
        ("announce", "/ip6/203.0.113.7/tcp/1"),
        ("bootstrap", "/ip4/203.0.113.7/tcp/1"),
    ],
)
def test_a_setting_that_cannot_be_changes_nothing(folder: Path, key: str, value: str) -> None:
    before = (folder / "config.toml").read_bytes()
    assert key in dlx("config", "set", key, value, "--datadir", folder, code=2).stderr
    assert (folder / "config.toml").read_bytes() == before


def test_a_setting_over_several_lines_is_left_to_its_owner(folder: Path) -> None:
    text = 'bootstrap = [\n  "/ip4/10.0.0.1/tcp/1/p2p/16Uiu2",\n]\n'
    (folder / "config.toml").write_text(text)
    assert (
        "by hand"
        in dlx("config", "set", "bootstrap", "/ip4/10.0.0.2/tcp/1/p2p/16Uiu2", "--datadir", folder, code=2).stderr
    )
    assert (folder / "config.toml").read_text() == text


def test_a_secret_url_comes_from_stdin(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    monkeypatch.setattr(sys, "stdin", io.StringIO("\ufeffhttps://rpc.example/KEY\n"))
    dlx("config", "set", "rpc_url", "-", "--datadir", folder)
    assert tomllib.loads((folder / "config.toml").read_text())["rpc_url"] == ["https://rpc.example/KEY"]


# ---- logs


def test_the_newest_lines_of_a_level_are_shown_across_rotated_files(folder: Path) -> None:
    log = folder / "logs" / "node.log"
    stamp = "2026-01-01T00:00:00.000Z"
    log.with_name("node.log.1").write_text(f"{stamp} INFO    one\n{stamp} WARNING two\nTraceback\n  of two\n")
    log.write_text(f'{stamp} INFO    three\n{{"time": "{stamp}", "level": "error", "message": "four"}}\n')
    assert dlx("logs", "-n", "2", "--datadir", folder).stdout.splitlines()[0].endswith("three")
    shown = dlx("logs", "--level", "warning", "--datadir", folder).stdout
    assert [line.split()[-1] for line in shown.splitlines()[:3]] == ["two", "Traceback", "two"]
    assert "one" not in shown and "three" not in shown and "four" in shown
    assert dlx("logs", "-n", "0", "--datadir", folder).stdout == ""


def test_a_folder_where_no_node_ran_has_no_log(folder: Path) -> None:
    assert "no node has run" in dlx("logs", "--datadir", folder, code=3).stderr


def test_a_log_is_followed_over_its_rotation(folder: Path) -> None:
    log = folder / "logs" / "node.log"
    log.write_text("2026-01-01T00:00:00.000Z INFO    first\n")
    command = [sys.executable, "-m", "dlx.node.cli.app", "logs", "-f", "--datadir", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    watch = threading.Timer(PATIENCE, process.kill)
    watch.start()
    try:
        assert process.stdout is not None
        assert process.stdout.readline().endswith("first\n")
        with log.open("a") as file:
            file.write("2026-01-01T00:00:01.000Z INFO    second\n")
        assert process.stdout.readline().endswith("second\n")
        log.rename(log.with_name("node.log.1"))
        log.write_text("2026-01-01T00:00:02.000Z INFO    third\n")
        assert process.stdout.readline().endswith("third\n")
    finally:
        watch.cancel()
        process.kill()
        process.wait()
        process.stdout.close()


# ---- keys


def test_keys_are_listed_without_a_password(folder: Path) -> None:
    dlx("keys", "make-site", "lyon", "--datadir", folder)
    rows = json.loads(dlx("keys", "list", "--datadir", folder, "--json").stdout)["keys"]
    assert [row["kind"].split()[0] for row in rows] == ["node", "account", "site"]
    assert rows[1]["name"] == identity.account_address(DataDir(folder)) and "INSECURE" in rows[1]["kind"]
    assert "lyon" in dlx("keys", "list", "--datadir", folder).stdout


@pytest.mark.parametrize("plain", [False, True])
def test_an_account_moves_by_export_and_import(folder: Path, tmp_path: Path, plain: bool) -> None:
    out, new, word = tmp_path / "key", tmp_path / "new", tmp_path / "word"
    durable.write_bytes(word, b"a word of its own\n", durable.SECRET)
    dlx("keys", "export", "--out", out, *(["--plain"] if plain else []), "--datadir", folder)
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    dlx("keys", "export", "--out", out, "--datadir", folder, code=2)  # never overwritten
    old = tmp_path / "old"
    durable.write_bytes(old, b"insecure-devnet\n", durable.SECRET)
    given = ["keys", "import", out, "--unlock", old, "--datadir", new, "--password-file", word, "--json"]
    if plain:
        out.chmod(0o644)
        assert "chmod 600" in dlx(*given, code=1).stderr
        out.chmod(0o600)
    made = json.loads(dlx(*given).stdout)
    account = identity.load_account(DataDir(new), Settings(password_file=str(word)))
    assert made["account"] == account.address == identity.account_address(DataDir(folder))
    assert "is there already" in dlx(*given, code=1).stderr
    dlx("init", "--datadir", new, "--password-file", word)
    assert identity.load_node_key(DataDir(new), Settings(password_file=str(word))).peer_id


@pytest.mark.parametrize("text", ["", "nonsense", "{}", "0x" + "0" * 64, "0x" + "f" * 63])
def test_what_is_no_key_is_refused(tmp_path: Path, text: str) -> None:
    file, word = tmp_path / "key", tmp_path / "word"
    file.write_text(text)
    file.chmod(0o600)
    durable.write_bytes(word, b"word\n", durable.SECRET)
    dlx("keys", "import", file, "--datadir", tmp_path / "new", "--password-file", word, code=1)
    assert not (tmp_path / "new").exists()


# ---- help


def test_h_is_help_everywhere_and_completion_can_be_installed() -> None:
    for path in ((), ("start",), ("run",), ("run", "create"), ("keys", "import")):
        assert "Usage:" in dlx(*path, "-h").stdout
    assert "--install-completion" in dlx("-h").stdout


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("start --datadir {node}", "starts in"),
        ("audit --level 3 --datadir {node}", "auditing the run"),
        ("serve {node} --datadir {node}", "opening {node}"),
        ("run plan --manifest docs/107b.toml --datadir {node}", "planning docs/107b.toml"),
    ],
)
def test_the_first_line_comes_before_what_takes_long(tmp_path: Path, typed: str, said: str) -> None:
    """Processor time, not wall time: the machine may be busy."""
    dlx("init", "--datadir", tmp_path, "--insecure-devnet")
    script = (
        "import io, sys, time, dlx.node.cli.app as app\n"
        "class First(io.StringIO):\n"
        "    def write(self, line):\n"
        "        sys.stderr, heavy = sys.__stderr__, [m for m in ('torch', 'libp2p', 'web3') if m in sys.modules]\n"
        "        print(line.strip(), time.process_time(), heavy)\n"
        "        sys.exit()\n"
        "sys.stderr = First()\n"
        "app.main(sys.argv[1:])"
    )
    words = [sys.executable, "-c", script, *typed.format(node=tmp_path).split()]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE)
    line, seconds, *heavy = done.stdout.rsplit(maxsplit=2)
    assert said.format(node=tmp_path) in line and heavy == ["[]"], done.stderr
    assert float(seconds) < 2.5, "about one on an idle machine"


# ---- citations

CITED = "dlx:5/0x" + "11" * 20 + "/" + "ab" * 32


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["history", CITED, "--rpc-url", "http://127.0.0.1:9"], 3, "start `chain` there"),
        (["history", CITED, "--chain-id", "6"], 2, "is of chain_id 5, --chain-id says 6"),
        (["history", CITED, "--ledger", "0x" + "22" * 20], 2, "is of ledger 0x1111"),
        (["pull", CITED + "@3", "--round", "4", "--out", "x"], 2, "is version 3, --round says 4"),
        (["pull", CITED + "@3", "--watch", "--out", "x"], 2, "exclude each other"),
        (["run", "show", "dlx:5/0x11/ab"], 2, "is no citation"),
    ],
)
def test_a_citation_stands_for_chain_ledger_run_and_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in dlx(*arguments, code=code, HOME=str(tmp_path)).stderr
