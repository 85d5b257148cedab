"""`dlx-node keys`: an account moves to another machine and cannot contradict itself there; sites get their keys."""

import json
import shutil
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from dlx.ground import durable
from dlx.ledger.typed import Contribution
from dlx.node.home.datadir import DataDir
from dlx.node.home.keys import encrypted_file, identity
from dlx.node.home.keys.slashing_protection import Contradiction, SlashingProtection
from dlx.node.home.settings import Settings
from tests.node.command import dlx
from tests.node.made_statements import DOMAIN, contribution, seal


@contextmanager
def protection_of(folder: Path) -> Iterator[SlashingProtection]:
    account = identity.load_account(DataDir(folder), Settings())
    with closing(SlashingProtection(DataDir(folder).signed, account.secret, DOMAIN)) as protection:
        yield protection


def ours(folder: Path, round: int, payload: int = 1) -> Contribution:
    return replace(contribution(round, payload=payload), account=identity.account_address(DataDir(folder)))


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A folder whose account has contributed to rounds 0 to 2 and sealed two of them."""
    folder = tmp_path / "old"
    dlx("init", "--datadir", folder, "--insecure-devnet")
    with protection_of(folder) as protection:
        for round in range(3):
            protection.sign_contribution(ours(folder, round))
        for round in range(2):
            protection.sign_seal(seal(round))
    return folder


@pytest.fixture
def new(old: Path, tmp_path: Path) -> Path:
    """The account's keystore in a new folder."""
    folder = tmp_path / "new"
    DataDir(folder).create()
    shutil.copytree(old / "keystore", folder / "keystore", dirs_exist_ok=True)
    dlx("init", "--datadir", folder)
    return folder


def export(folder: Path, file: Path) -> dict:
    done = dlx("keys", "export-signed", "--out", file, "--datadir", folder, "--json")
    assert f"do not start {folder} again" in done.stderr
    return json.loads(done.stdout)


def test_a_moved_account_cannot_contradict_itself(old: Path, new: Path, tmp_path: Path) -> None:
    file = tmp_path / "signed.bundle"
    account = identity.account_address(DataDir(old))
    assert export(old, file) == {"account": account, "contributions": 3, "seals": 2, "file": str(file)}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    made = json.loads(dlx("keys", "import-signed", file, "--datadir", new, "--json").stdout)
    assert made == {"account": account, "contributions": 3, "seals": 2, "new": 5}
    assert json.loads(dlx("keys", "import-signed", file, "--datadir", new, "--json").stdout)["new"] == 0
    with protection_of(new) as protection:
        assert set(protection.contributions(contribution().run, 0)) == {0, 1, 2}
        assert protection.sign_contribution(ours(new, 1)).contribution == ours(old, 1)
        with pytest.raises(Contradiction):
            protection.sign_contribution(ours(new, 1, payload=2))
        with pytest.raises(Contradiction):
            protection.sign_seal(seal(1, next=77))


def test_what_contradicts_this_folder_changes_nothing(old: Path, new: Path, tmp_path: Path) -> None:
    export(old, tmp_path / "signed.bundle")
    with protection_of(new) as protection:
        protection.sign_contribution(ours(new, 2, payload=2))
        before = protection.entries()
    said = dlx("keys", "import-signed", tmp_path / "signed.bundle", "--datadir", new, code=1).stderr
    assert "another contribution in round 2 of stage 0" in said and "nothing was imported" in said
    with protection_of(new) as protection:
        assert protection.entries() == before


def test_bundles_of_others_and_damaged_ones_are_refused(old: Path, tmp_path: Path) -> None:
    file, stranger = tmp_path / "signed.bundle", tmp_path / "stranger"
    export(old, file)
    dlx("init", "--datadir", stranger, "--insecure-devnet")
    address = identity.account_address(DataDir(stranger))
    assert f"not what {address} signed" in dlx("keys", "import-signed", file, "--datadir", stranger, code=1).stderr
    file.write_bytes(file.read_bytes()[:-1])
    assert "is damaged" in dlx("keys", "import-signed", file, "--datadir", old, code=1).stderr
    (tmp_path / "text").write_text("hello")
    assert "no encrypted file" in dlx("keys", "import-signed", tmp_path / "text", "--datadir", old, code=1).stderr
    assert "no file that" in dlx("keys", "import-signed", tmp_path, "--datadir", old, code=2).stderr
    assert not DataDir(stranger).signed.exists()


def test_neither_runs_beside_a_running_node(old: Path, tmp_path: Path) -> None:
    export(old, tmp_path / "signed.bundle")
    with DataDir(old).lock():
        for arguments in (
            ("export-signed", "--out", tmp_path / "again"),
            ("import-signed", tmp_path / "signed.bundle"),
        ):
            assert "another dlx-node" in dlx("keys", *arguments, "--datadir", old, code=1).stderr
    assert not (tmp_path / "again").exists()


def test_an_export_never_overwrites_a_file(old: Path, tmp_path: Path) -> None:
    file = tmp_path / "kept"
    file.write_text("mine")
    assert "name a new file" in dlx("keys", "export-signed", "--out", file, "--datadir", old, code=2).stderr
    assert file.read_text() == "mine"
    gone = tmp_path / "nowhere" / "file"
    assert "name a new file" in dlx("keys", "export-signed", "--out", gone, "--datadir", old, code=2).stderr


def test_the_accounts_password_locks_the_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "_SCRYPT_N", 4096)
    monkeypatch.setattr(encrypted_file, "STRONG", encrypted_file.LIGHT)
    folder, right, wrong = tmp_path / "node", tmp_path / "right", tmp_path / "wrong"
    durable.write_bytes(right, b"correct\n", durable.SECRET)
    durable.write_bytes(wrong, b"other\n", durable.SECRET)
    dlx("init", "--datadir", folder, "--password-file", right)
    export_to = ("keys", "export-signed", "--datadir", folder, "--out", tmp_path / "bundle")
    assert "does not open" in dlx(*export_to, "--password-file", wrong, code=1).stderr
    dlx(*export_to)
    import_from = ("keys", "import-signed", tmp_path / "bundle", "--datadir", folder)
    assert "does not open" in dlx(*import_from, "--password-file", wrong, code=1).stderr
    dlx(*import_from)


def test_a_site_gets_one_key_which_its_machines_need(tmp_path: Path) -> None:
    folder = tmp_path / "node"
    dlx("init", "--datadir", folder, "--insecure-devnet")
    missing = dlx("start", "--datadir", folder, "--site", "lyon", "--ledger", "0x" + "11" * 20, code=1).stderr
    assert "lyon.key is missing: copy it from a machine of the site, or make the first with" in missing
    made = json.loads(dlx("keys", "make-site", "lyon", "--datadir", folder, "--json").stdout)
    path = Path(made["file"])
    assert path == folder / "sites" / "lyon.key" and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert made["address"].startswith("0x") and path.read_text().strip() not in json.dumps(made)
    assert "is there already" in dlx("keys", "make-site", "lyon", "--datadir", folder, code=1).stderr


@pytest.mark.parametrize("arguments", [("--all-stages",), ("--all-stages", "--site", "lyon", "--stage", "1")])
def test_all_stages_are_a_sites_and_each_nodes_own(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    folder = tmp_path / "node"
    dlx("init", "--datadir", folder, "--insecure-devnet")
    said = dlx("start", "--datadir", folder, *arguments, code=2).stderr
    assert "--all-stages: name the site by --site, and leave out --stage" in said
