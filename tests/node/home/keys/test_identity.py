import hashlib
import json
import os
import stat
from pathlib import Path

import pytest

from dlx.ground import durable
from dlx.node.home.datadir import DataDir, NotPrivate
from dlx.node.home.errors import Failure, NotReady, UsageFailure
from dlx.node.home.keys import encrypted_file, identity
from dlx.node.home.settings import Settings


@pytest.fixture
def devnet(folder: DataDir) -> DataDir:
    identity.create(folder, _never, insecure_devnet=True)
    return folder


def _never() -> str:
    raise AssertionError("no password may be asked for")


def test_a_devnet_folder_opens_by_itself_and_says_that_it_is_insecure(devnet: DataDir) -> None:
    account = identity.load_account(devnet, Settings())
    assert account.address == identity.account_address(devnet)
    assert identity.is_insecure(devnet)
    for path in (devnet.node_key, *devnet.keystore.iterdir()):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_second_creation_changes_nothing(devnet: DataDir) -> None:
    files = {path: path.read_bytes() for path in devnet.root.rglob("*") if path.is_file()}
    assert identity.create(devnet, _never) == identity.Created(node_key=False, account=False)
    assert {path: path.read_bytes() for path in devnet.root.rglob("*") if path.is_file()} == files


def test_the_password_file_locks_and_opens_the_keystore(folder: DataDir, tmp_path: Path) -> None:
    password_file = tmp_path / "password"
    durable.write_bytes(password_file, b"correct horse\nsecond line\n", durable.SECRET)
    created = identity.create(folder, lambda: identity.password_in(password_file))
    assert created == identity.Created(node_key=True, account=True) and not identity.is_insecure(folder)
    (keystore,) = folder.keystore.iterdir()
    assert json.loads(keystore.read_text())["crypto"]["kdfparams"]["n"] == 262_144
    assert folder.node_key.read_bytes()[:12] == b"dlx-sealed\x01\x12", "2**18 is the same"
    account = identity.load_account(folder, Settings(password_file=str(password_file)))
    assert account.secret.hex() not in repr(account)
    with pytest.raises(UsageFailure, match="--password-file"):
        identity.load_account(folder, Settings())
    durable.write_bytes(password_file, b"wrong\n", durable.SECRET)
    with pytest.raises(Failure, match="does not open"):
        identity.load_account(folder, Settings(password_file=str(password_file)))


def test_a_password_that_others_can_read_is_refused(tmp_path: Path) -> None:
    password_file = tmp_path / "password"
    durable.write_bytes(password_file, b"correct horse\n")
    with pytest.raises(NotPrivate, match=r"its mode is 0644: run `chmod 600 .*password`"):
        identity.password_in(password_file)
    with pytest.raises(UsageFailure, match=r"password/nothing cannot be read \(Not a directory\)$"):
        identity.password_in(password_file / "nothing")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_password_is_the_same_in_whatever_an_editor_makes_of_it(tmp_path: Path, encoding: str) -> None:
    password_file = tmp_path / "password"
    durable.write_bytes(password_file, "Grüße horse\r\nsecond line\r\n".encode(encoding), durable.SECRET)
    assert identity.password_in(password_file) == "Grüße horse"
    durable.write_bytes(password_file, "".encode(encoding), durable.SECRET)
    with pytest.raises(UsageFailure, match="is empty"):
        identity.password_in(password_file)


def test_a_password_file_that_is_no_text_says_what_to_do(tmp_path: Path) -> None:
    password_file = tmp_path / "password"
    durable.write_bytes(password_file, "Grüße".encode("cp1252"), durable.SECRET)
    with pytest.raises(UsageFailure, match=r"^the password file .*password: is neither UTF-8, nor .*save it as UTF-8"):
        identity.password_in(password_file)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_an_account_from_elsewhere_is_read_as_an_editor_wrote_it(tmp_path: Path, encoding: str) -> None:
    durable.write_bytes(tmp_path / "account", ("0x" + 32 * "1f" + "\r\n").encode(encoding), durable.SECRET)
    assert identity.read_account(None, identity.account_text(tmp_path / "account"), _never) == 32 * b"\x1f"
    (tmp_path / "account").chmod(0o644)
    with pytest.raises(NotPrivate):
        identity.account_text(tmp_path / "account")


@pytest.fixture
def light(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of a password of one's own at a devnet's cost: the real one is seconds for each key."""
    monkeypatch.setattr(identity, "_SCRYPT_N", 4096)
    monkeypatch.setattr(encrypted_file, "STRONG", encrypted_file.LIGHT)


def _password(folder: DataDir, text: str) -> Settings:
    path = folder.root.parent / f"password-{text}"
    durable.write_bytes(path, text.encode(), durable.SECRET)
    return Settings(password_file=str(path))


def test_the_accounts_password_locks_the_node_key_too(folder: DataDir, light: None) -> None:
    right, wrong = _password(folder, "correct"), _password(folder, "wrong")
    identity.create(folder, lambda: "correct")
    key = identity.load_node_key(folder, right)
    written = folder.node_key.read_bytes()
    assert key.secret not in written and key.secret.hex().encode() not in written
    assert identity.node_peer_id(folder) == key.peer_id, "without a password"
    with pytest.raises(Failure, match=r"node\.key: the password does not open it.*--password-file"):
        identity.load_node_key(folder, wrong)
    with pytest.raises(UsageFailure, match="--password-file"):
        identity.load_node_key(folder, Settings())
    folder.node_key.unlink()
    with pytest.raises(Failure, match="the password does not open"):  # a new one never gets a password of its own
        identity.create(folder, lambda: "wrong")
    assert not folder.node_key.exists()
    assert identity.create(folder, lambda: "correct") == identity.Created(node_key=True, account=False)
    assert identity.load_node_key(folder, right).peer_id != key.peer_id


def test_a_plain_node_key_of_an_earlier_version_is_encrypted_in_place(
    folder: DataDir, light: None, caplog: pytest.LogCaptureFixture
) -> None:
    settings = _password(folder, "correct")
    identity.create(folder, lambda: "correct")
    secret = hashlib.sha256(b"an earlier key").digest()
    folder.node_key.write_text(secret.hex() + "\n")
    peer_id = identity.NodeKey(secret).peer_id
    assert identity.node_peer_id(folder) == peer_id
    with pytest.raises(UsageFailure):
        identity.load_node_key(folder, Settings())
    assert folder.node_key.read_text() == secret.hex() + "\n", "nothing changes where it cannot be encrypted"
    with caplog.at_level("INFO", "dlx"):
        assert identity.load_node_key(folder, settings).secret == secret
    assert [record.message for record in caplog.records if "encrypted" in record.message]
    assert secret.hex() not in caplog.text
    assert secret.hex().encode() not in folder.node_key.read_bytes()
    assert stat.S_IMODE(folder.node_key.stat().st_mode) == 0o600
    assert identity.load_node_key(folder, settings).secret == secret and identity.node_peer_id(folder) == peer_id


def test_every_flipped_byte_of_the_node_key_is_refused(devnet: DataDir) -> None:
    written = devnet.node_key.read_bytes()
    for at in range(len(written)):
        devnet.node_key.write_bytes(written[:at] + bytes((written[at] ^ 1,)) + written[at + 1 :])
        with pytest.raises(Failure, match=r"node\.key"):
            identity.load_node_key(devnet, Settings())
    devnet.node_key.write_bytes(written)
    identity.load_node_key(devnet, Settings())


def test_the_peer_id_is_the_one_that_libp2p_derives(devnet: DataDir) -> None:
    from libp2p.crypto.secp256k1 import create_new_key_pair
    from libp2p.peer.id import ID

    key = identity.load_node_key(devnet, Settings())
    assert key.peer_id == ID.from_pubkey(create_new_key_pair(key.secret).public_key).to_string()
    assert key.secret.hex() not in repr(key)


def test_keys_that_others_can_read_are_refused(devnet: DataDir) -> None:
    os.chmod(devnet.node_key, 0o644)
    with pytest.raises(Failure, match="chmod 600"):
        identity.load_node_key(devnet, Settings())
    keystore = next(path for path in devnet.keystore.iterdir() if path.name.startswith("UTC"))
    os.chmod(keystore, 0o640)
    with pytest.raises(Failure, match="chmod 600"):
        identity.load_account(devnet, Settings())


def test_missing_and_damaged_keys_say_what_to_do(folder: DataDir) -> None:
    with pytest.raises(NotReady, match="dlx-node init"):
        identity.load_node_key(folder, Settings())
    with pytest.raises(NotReady, match="dlx-node init"):
        identity.load_account(folder, Settings())
    identity.create(folder, _never, insecure_devnet=True)
    for text in ("", "zz" * 32, "00" * 32, "ff" * 32, "ab" * 31, "dlx-sealed"):
        folder.node_key.write_text(text)
        for read in (identity.node_peer_id, lambda folder: identity.load_node_key(folder, Settings())):
            with pytest.raises(Failure, match=r"node\.key.*damaged"):
                read(folder)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"address": 5}', '{"address": "00", "version": 3}', "\x00"])
def test_a_keystore_that_is_none_is_named(devnet: DataDir, text: str) -> None:
    (keystore,) = (path for path in devnet.keystore.iterdir() if path.name.startswith("UTC"))
    keystore.write_text(text)
    for read in (identity.account_address, lambda folder: identity.load_account(folder, Settings())):
        with pytest.raises(Failure, match=str(keystore)):
            read(devnet)


def test_a_keystore_that_names_another_account_is_refused(devnet: DataDir) -> None:
    (keystore,) = (path for path in devnet.keystore.iterdir() if path.name.startswith("UTC"))
    content = json.loads(keystore.read_text())
    keystore.write_text(json.dumps({**content, "address": hashlib.sha256(b"other").hexdigest()[:40]}))
    with pytest.raises(Failure, match="not a readable V3 keystore"):
        identity.load_account(devnet, Settings())


def test_two_accounts_in_a_folder_are_refused(devnet: DataDir) -> None:
    (devnet.keystore / "second").write_text("{}")
    with pytest.raises(Failure, match="holds 2 accounts"):
        identity.account_address(devnet)
