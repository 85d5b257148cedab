"""The node's two keys: the libp2p node key and the Ethereum account. Secrets live in 0600 files and are never shown."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from coincurve import PrivateKey

from dlx.ground import durable
from dlx.ledger.abi import checksum
from dlx.ledger.keys import account_of, peer_id, peer_id_to_base58
from dlx.node.home.config import Settings
from dlx.node.home.datadir import DataDir, check_private
from dlx.node.home.errors import Failure, NotReady, UsageFailure

# Known to everybody: it keeps a demo's keystore in the usual format and protects nothing.
INSECURE_PASSWORD = "insecure-devnet"
_SCRYPT_N = 262_144
_LIGHT_SCRYPT_N = 4_096
_INSECURE_MARK = "INSECURE-DEVNET"


@dataclass(frozen=True)
class NodeKey:
    """libp2p's identity; 32-byte secp256k1 secret."""

    secret: bytes = field(repr=False)

    @property
    def peer_id(self) -> str:
        return peer_id_to_base58(peer_id(PrivateKey(self.secret).public_key.format()))


@dataclass(frozen=True)
class Account:
    """The Ethereum key that registers, signs contributions and seals, and pays gas."""

    address: str  # EIP-55
    secret: bytes = field(repr=False)


@dataclass(frozen=True)
class Created:
    """What `create` made; what it did not make was there before and is untouched."""

    node_key: bool
    account: bool


def create(datadir: DataDir, password: Callable[[], str], *, insecure_devnet: bool = False) -> Created:
    """Make the keys that the folder lacks; an existing key is never replaced.

    `password` is asked only for a new keystore. With `insecure_devnet` it is the one that everybody knows, and cheap.
    """
    made_node_key, made_account = not datadir.node_key.exists(), not _keystores(datadir)
    if made_account and insecure_devnet:
        _mark_insecure(datadir)
        _write_keystore(datadir, INSECURE_PASSWORD, _LIGHT_SCRYPT_N)
    elif made_account:
        _write_keystore(datadir, password(), _SCRYPT_N)
    if made_node_key:
        durable.create(datadir.node_key, PrivateKey().secret.hex().encode() + b"\n")
    return Created(made_node_key, made_account)


def load_node_key(datadir: DataDir) -> NodeKey:
    """The folder's node key. Raises Failure when it is readable by others, damaged or absent."""
    if not datadir.node_key.exists():
        raise NotReady(f"{datadir.root} holds no node key: run `dlx-node init --datadir {datadir.root}`")
    check_private(datadir.node_key)
    try:
        secret = bytes.fromhex(datadir.node_key.read_text().strip())
        if len(secret) != 32:
            raise ValueError("a key has 32 bytes")
        PrivateKey(secret)
    except ValueError:
        raise Failure(
            f"{datadir.node_key} is damaged: expected a secp256k1 key as 64 hex digits; restore it from a backup"
        ) from None
    return NodeKey(secret)


def load_account(datadir: DataDir, settings: Settings) -> Account:
    """The folder's account, opened with the configured password. Raises Failure with the file and the reason."""
    from eth_account import Account as EthAccount  # over a second, so only where a key is opened

    path = _keystore(datadir)
    check_private(path)
    password = read_password(datadir, settings)
    try:
        secret = bytes(EthAccount.decrypt(path.read_text(), password))
    except (ValueError, KeyError, TypeError, AttributeError, NotImplementedError) as error:
        if "MAC mismatch" in str(error):
            raise Failure(f"the password does not open {path}: check --password-file") from None
        raise _damaged(path) from None
    if account_of(secret) != account_address(datadir):
        raise _damaged(path)
    return Account(account_of(secret), secret)


def account_address(datadir: DataDir) -> str:
    """The account's address as the keystore states it; needs no password."""
    path = _keystore(datadir)
    try:
        return checksum(bytes.fromhex(json.loads(path.read_text())["address"].removeprefix("0x")))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise _damaged(path) from None


def read_password(datadir: DataDir, settings: Settings) -> str:
    """The password of the folder's keystore: what everybody knows where init made it so, else the password file's."""
    if is_insecure(datadir):
        return INSECURE_PASSWORD
    if settings.password_file:
        return password_in(Path(settings.password_file))
    raise UsageFailure(
        "the account's keystore needs a password: name a file that holds it by --password-file or DLX_PASSWORD_FILE"
    )


def password_in(path: Path) -> str:
    """The first line of a password file."""
    path = path.expanduser()
    try:
        with path.open() as file:
            password = file.readline(4096).rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageFailure(f"the password file {path} cannot be read ({error})") from None
    if not password:
        raise UsageFailure(f"the password file {path} is empty: its first line is the password")
    return password


def is_insecure(datadir: DataDir) -> bool:
    """Whether the account was made with --insecure-devnet, so that anybody who gets the keystore owns it."""
    return (datadir.keystore / _INSECURE_MARK).exists()


def _mark_insecure(datadir: DataDir) -> None:
    if not is_insecure(datadir):
        text = (
            f"The keystore beside this file opens with the password {INSECURE_PASSWORD!r}, which everybody knows.\n"
            "Made by `dlx-node init --insecure-devnet`: for a devnet only, never for an account that owns anything.\n"
        )
        durable.create(datadir.keystore / _INSECURE_MARK, text.encode())


def _write_keystore(datadir: DataDir, password: str, scrypt_n: int) -> None:
    from eth_account import Account as EthAccount

    secret = PrivateKey().secret
    keystore = EthAccount.encrypt(secret, password, kdf="scrypt", iterations=scrypt_n)
    stamp = time.strftime("%Y-%m-%dT%H-%M-%SZ", time.gmtime())
    name = f"UTC--{stamp}--{account_of(secret)[2:].lower()}"  # the name that geth gives
    durable.create(datadir.keystore / name, json.dumps(keystore).encode() + b"\n")


def _keystores(datadir: DataDir) -> list[Path]:
    if not datadir.keystore.is_dir():
        return []
    return sorted(
        path for path in datadir.keystore.iterdir() if path.name != _INSECURE_MARK and not path.name.startswith(".")
    )


def _keystore(datadir: DataDir) -> Path:
    found = _keystores(datadir)
    if not found:
        raise NotReady(f"{datadir.keystore} holds no account: run `dlx-node init --datadir {datadir.root}`")
    if len(found) > 1:
        raise Failure(f"{datadir.keystore} holds {len(found)} accounts: keep one, move the others away")
    return found[0]


def _damaged(path: Path) -> Failure:
    return Failure(f"{path} is not a readable V3 keystore: restore it from a backup")
