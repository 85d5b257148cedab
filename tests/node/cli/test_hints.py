"""Lines that commands print for a shell, pasted as they stand; only words in capitals are filled in."""

import json
from pathlib import Path

import pytest

from dlx.ground import durable
from dlx.node.home.datadir import DataDir
from dlx.node.home.keys import encrypted_file, identity
from dlx.node.home.program import line, program
from tests.node.command import dlx, pasted

LEDGER = "0x" + "11" * 20
NOWHERE = "http://127.0.0.1:9"  # where nobody answers


@pytest.fixture(autouse=True)
def light(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "_SCRYPT_N", identity._LIGHT_SCRYPT_N)
    monkeypatch.setattr(encrypted_file, "STRONG", encrypted_file.LIGHT)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where a folder is to be, of a name that a shell would cut in two."""
    return tmp_path / "my node"


@pytest.fixture
def word(tmp_path: Path) -> Path:
    durable.write_bytes(tmp_path / "a word", b"word\n", durable.SECRET)
    return tmp_path / "a word"


def test_the_lines_lead_from_no_folder_to_a_node_that_could_start(place: Path, word: Path) -> None:
    made = dlx(*pasted(dlx("start", "--datadir", place, code=2).stderr, FILE=word))
    assert DataDir(place).node_key.exists() and identity.keystores(DataDir(place))
    dlx(*pasted(made.stdout, ADDRESS=LEDGER))
    start = ["start", "--datadir", str(place)]
    assert pasted(dlx("init", "--datadir", place).stdout) == start
    assert pasted(dlx("status", "--datadir", place, code=3).stderr) == start
    dlx(*start, "--help")


@pytest.mark.parametrize("missing", ["key", "account"])
def test_a_folder_without_a_key_says_how_it_gets_one(place: Path, word: Path, missing: str) -> None:
    dlx("init", "--datadir", place, "--password-file", word)
    folder = DataDir(place)
    (account,) = identity.keystores(folder)
    (folder.node_key if missing == "key" else account).unlink()
    said = dlx("start", "--datadir", place, "--ledger", LEDGER, "--rpc-url", NOWHERE, code=3).stderr
    dlx(*pasted(said, FILE=word))
    assert folder.node_key.exists() and identity.keystores(folder)


def test_the_folder_of_a_devnet_gets_its_keys_by_the_line_as_it_stands(place: Path) -> None:
    folder = DataDir(place)
    folder.chain.mkdir(parents=True)
    found = {"rpc_url": NOWHERE, "chain_id": 31337, "ledger": LEDGER, "campaigns": LEDGER}
    for chain_id, option in ((5, "--password-file"), (31337, "--insecure-devnet")):
        folder.contracts.write_text(json.dumps(found | {"chain_id": chain_id}))
        line = pasted(dlx("start", "--datadir", place, code=3).stderr)
        assert line[:2] == ["init", option]
    dlx(*line)
    assert identity.keystores(folder)


def test_what_lacks_a_ledger_a_key_of_a_site_or_a_right_name_says_what_helps(place: Path) -> None:
    dlx("init", "--datadir", place, "--insecure-devnet")
    dlx(*pasted(dlx("run", "list", "--datadir", place, code=2).stderr, ADDRESS=LEDGER))
    dlx("config", "set", "rpc_url", NOWHERE, "--datadir", place)
    dlx("run", "list", "--datadir", place, code=3)  # it only does not answer
    said = dlx("start", "--site", "lyon", "--datadir", place, code=1).stderr
    assert "lyon" in dlx(*pasted(said)).stdout
    said = dlx("config", "set", "nonsense", "1", "--datadir", place, code=2).stderr
    assert NOWHERE in dlx(*pasted(said)).stdout


def test_a_pause_says_what_ends_it(place: Path) -> None:
    dlx("init", "--datadir", place, "--insecure-devnet")
    for options in ([], ["--leave"]):
        said = dlx("pause", "--datadir", place, *options).stderr
        assert DataDir(place).paused.exists() and "working again" in dlx(*pasted(said)).stderr


def test_the_mends_of_doctor_are_lines_too(place: Path, word: Path) -> None:
    dlx("init", "--datadir", place, "--password-file", word)
    dlx("config", "unset", "password_file", "--datadir", place)

    def mends(*options: object) -> list[list[str]]:
        shown = dlx("doctor", "--datadir", place, *options, code=1).stdout
        return [pasted(one, FILE=word, ADDRESS=LEDGER) for one in shown.splitlines() if f"mend: {program()}" in one]

    found = mends("--threads", 1000)
    assert [one[2] for one in found] == ["threads", "password_file", "ledger"]
    for one in found:
        dlx(*one)
    dlx("config", "set", "rpc_url", NOWHERE, "--datadir", place)
    assert mends() == [], "the chain node is silent, which no command of this folder mends"


def test_a_folder_that_is_no_version_is_pulled_beside_it(place: Path, tmp_path: Path) -> None:
    dlx("init", "--datadir", place, "--insecure-devnet")
    wrong = tmp_path / "a model"
    wrong.mkdir()
    ledger = ["--rpc-url", NOWHERE, "--ledger", LEDGER]
    again = pasted(dlx("verify", wrong, "--datadir", place, *ledger, code=1).stdout)
    assert again == ["pull", "--out", f"{wrong}-again", "--datadir", str(place), *ledger]
    assert "no answer from the chain node" in dlx(*again, code=3).stderr


def test_a_folder_is_named_where_a_command_would_look_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DLX_HOME", "DLX_NETWORK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    usual, other = tmp_path / ".dlx" / "devnet", tmp_path / ".dlx" / "main"
    assert line("start", folder=usual) == f"{program()} start"
    assert line("start", folder=other) == f"{program()} start --datadir {other}"
    monkeypatch.setenv("DLX_NETWORK", "main")  # which another shell may lack
    assert line("start", folder=other) == f"{program()} start --datadir {other}"
    assert line("start", folder=usual) == f"{program()} start --datadir {usual}"
    monkeypatch.setenv("HOME", "")
    assert line("start", folder=usual) == f"{program()} start --datadir {usual}"
