"""The node's two keys: the libp2p node key and the Ethereum account.

Both lie encrypted under one password in 0600 files, and are never shown.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote

from coincurve import PrivateKey

from dlx.ground import durable, handwritten
from dlx.ground.machine import expand
from dlx.ledger.abi import checksum
from dlx.ledger.keys import account_of, peer_id, peer_id_to_base58
from dlx.node.home import logs
from dlx.node.home.datadir import DataDir, check_private
from dlx.node.home.errors import Failure, NotReady, UsageFailure
from dlx.node.home.keys import encrypted_file
from dlx.node.home.keys.encrypted_file import EncryptedFileError
from dlx.node.home.ledgers import read_contracts
from dlx.node.home.program import line
from dlx.node.home.settings import DEFAULTS, Settings

# Known to everybody: it keeps a demo's keystore in the usual format and protects nothing.
INSECURE_PASSWORD = "insecure-devnet"
MOST_KEY_BYTES = 65_536  # of a file with an account
_SCRYPT_N = 262_144
_LIGHT_SCRYPT_N = 4_096
_MOST_PASSWORD_BYTES = 1 << 20  # of a file that begins with one
_LONGEST_PASSWORD = 4096  # characters: what follows is let be
_INSECURE_MARK = "INSECURE-DEVNET"
_LABEL = "node key of "  # and the peer id
log = logs.get(__name__)


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


class WrongPassword(Failure):
    """It does not open the folder's account."""


@dataclass(frozen=True)
class Created:
    """What `create` made; what it did not make was there before and is untouched."""

    node_key: bool
    account: bool


def create(datadir: DataDir, password: Callable[[], str], *, insecure_devnet: bool = False) -> Created:
    """Make the keys that the folder lacks; an existing key is never replaced.

    `password` is asked only where a key is made: the account's, which locks the node key too. With `insecure_devnet` a
    new account's is the one that everybody knows, and cheap.
    """
    made_node_key, made_account = not datadir.node_key.exists(), not keystores(datadir)
    if not made_node_key and not made_account:
        return Created(False, False)
    if made_account and insecure_devnet:
        _mark_insecure(datadir)
    secret = INSECURE_PASSWORD if is_insecure(datadir) else password()
    if made_account:
        cost = _LIGHT_SCRYPT_N if is_insecure(datadir) else _SCRYPT_N
        _write_keystore(datadir, PrivateKey().secret, secret, cost)
    if made_node_key:
        if not made_account:
            _open_keystore(_keystore(datadir), secret)  # or the two keys would have two passwords
        key = NodeKey(PrivateKey().secret)
        durable.create(datadir.node_key, _encrypted(datadir, key, secret))
    return Created(made_node_key, made_account)


def account_text(file: Path) -> str:
    """What a file with an account from elsewhere says, for `read_account`. Raises NotPrivate where others may read an
    account in plain, Failure, OSError."""
    try:
        text = handwritten.read(file, MOST_KEY_BYTES)
    except ValueError as error:
        raise Failure(str(error)) from None
    if not text.lstrip().startswith("{"):  # a keystore is encrypted
        check_private(file)
    return text


def read_account(file: Path | None, given: str, password: Callable[[], str]) -> bytes:
    """The secret of an account from elsewhere: 64 hex digits, or a V3 keystore that the password opens. `given`: the
    text; `file`: where it lay, None for stdin. Raises Failure."""
    text = given.strip()
    if re.fullmatch(r"(0x)?[0-9a-fA-F]{64}", text):
        secret = bytes.fromhex(text.removeprefix("0x"))
        try:
            PrivateKey(secret)
        except ValueError:
            raise Failure("what was given is no secret of an account") from None
        return secret
    if not text.startswith("{"):
        raise Failure("what was given is neither a V3 keystore nor 64 hex digits")
    return _open_text(text, file or Path("stdin"), password())


def adopt(datadir: DataDir, secret: bytes, password: str) -> str:
    """Make an account from elsewhere the folder's, locked by this password: its address. Raises Failure where there is
    one."""
    if found := keystores(datadir):
        raise Failure(f"{found[0]} is there already: a folder has one account, so name another --datadir")
    _write_keystore(datadir, secret, password, _SCRYPT_N)
    return account_of(secret)


def exported(datadir: DataDir, settings: Settings, plain: bool) -> bytes:
    """The account for another program: its V3 keystore, or where `plain` its secret in hex. Raises Failure."""
    secret = load_account(datadir, settings).secret
    return b"0x" + secret.hex().encode() + b"\n" if plain else _keystore(datadir).read_bytes()


def load_node_key(datadir: DataDir, settings: Settings) -> NodeKey:
    """The folder's node key. Raises Failure when it is readable by others, damaged or absent, or the password is wrong.

    A key that an earlier version wrote in plain is encrypted in place: call it once `load_account` has shown that the
    password is the account's.
    """
    data = _node_key_file(datadir)
    password = read_password(datadir, settings)
    if not encrypted_file.is_encrypted(data):
        key = _plain_node_key(datadir, data)
        durable.write_bytes(datadir.node_key, _encrypted(datadir, key, password), durable.SECRET)
        log.info(
            "the node key lay here in plain: it is encrypted now, with the account's password", file=datadir.node_key
        )
        return key
    try:
        key = NodeKey(encrypted_file.decrypt(data, password))
        if encrypted_file.label(data) != _LABEL + key.peer_id:
            raise ValueError("it is another peer's")
    except (EncryptedFileError, ValueError) as error:
        raise Failure(f"{datadir.node_key}: {error}") from None
    return key


def node_peer_id(datadir: DataDir) -> str:
    """The peer id as the node key's file states it; needs no password."""
    data = _node_key_file(datadir)
    if not encrypted_file.is_encrypted(data):
        return _plain_node_key(datadir, data).peer_id
    try:
        return encrypted_file.label(data).removeprefix(_LABEL)
    except EncryptedFileError as error:
        raise Failure(f"{datadir.node_key}: {error}") from None


def load_account(datadir: DataDir, settings: Settings) -> Account:
    """The folder's account, opened with the configured password. Raises Failure with the file and the reason."""
    path = _keystore(datadir)
    check_private(path)
    secret = _open_keystore(path, read_password(datadir, settings))
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
    """The password of the folder's keys: what everybody knows where init made it so, else the password file's."""
    if is_insecure(datadir):
        return INSECURE_PASSWORD
    if settings.password_file:
        return password_in(Path(settings.password_file))
    raise UsageFailure(
        "the folder's keys need a password: name a file that holds it by --password-file or DLX_PASSWORD_FILE"
    )


def password_in(path: Path) -> str:
    """The first line of a password file, of which a byte order mark is no part. Raises NotPrivate where others may read
    it, UsageFailure."""
    path = expand(path)
    if path.is_dir():  # whose mode is no matter
        raise UsageFailure(f"the password file {path} is a folder")
    try:
        check_private(path)
        lines = re.split("[\r\n]", handwritten.read(path, _MOST_PASSWORD_BYTES), maxsplit=1)
    except FileNotFoundError:
        make = f"(umask 077; cat > {quote(str(path))})"
        raise UsageFailure(
            f"the password file {path} is not there: run `{make}`, and type a password, Enter and Ctrl-D"
        ) from None
    except OSError as error:
        raise UsageFailure(f"the password file {path} cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise UsageFailure(f"the password file {error}; its first line is the password") from None
    if not lines[0]:
        raise UsageFailure(f"the password file {path} is empty: its first line is the password")
    return lines[0][:_LONGEST_PASSWORD]


def keystores(datadir: DataDir) -> list[Path]:
    """The files of the folder's accounts: one, or none yet."""
    if not datadir.keystore.is_dir():
        return []
    return sorted(
        path for path in datadir.keystore.iterdir() if path.name != _INSECURE_MARK and not path.name.startswith(".")
    )


def is_insecure(datadir: DataDir) -> bool:
    """Whether the account was made with --insecure-devnet, so that anybody who gets the keystore owns it."""
    return (datadir.keystore / _INSECURE_MARK).exists()


def encryption_cost(datadir: DataDir) -> int:
    """What sealing under the folder's password is worth."""
    return encrypted_file.LIGHT if is_insecure(datadir) else encrypted_file.STRONG


def _mark_insecure(datadir: DataDir) -> None:
    if not is_insecure(datadir):
        text = (
            f"The keystore beside this file opens with the password {INSECURE_PASSWORD!r}, which everybody knows.\n"
            "Made by `dlx-node init --insecure-devnet`: for a devnet only, never for an account that owns anything.\n"
        )
        durable.create(datadir.keystore / _INSECURE_MARK, text.encode())


def _write_keystore(datadir: DataDir, secret: bytes, password: str, scrypt_n: int) -> None:
    from eth_account import Account as EthAccount

    keystore = EthAccount.encrypt(secret, password, kdf="scrypt", iterations=scrypt_n)
    stamp = time.strftime("%Y-%m-%dT%H-%M-%SZ", time.gmtime())
    name = f"UTC--{stamp}--{account_of(secret)[2:].lower()}"  # the name that geth gives
    durable.create(datadir.keystore / name, json.dumps(keystore).encode() + b"\n")


def _open_keystore(path: Path, password: str) -> bytes:
    return _open_text(path.read_text(), path, password)


def _open_text(text: str, path: Path, password: str) -> bytes:
    from eth_account import Account as EthAccount  # over a second, so only where a key is opened

    try:
        return bytes(EthAccount.decrypt(text, password))
    except (ValueError, KeyError, TypeError, AttributeError, NotImplementedError) as error:
        if "MAC mismatch" in str(error):
            raise WrongPassword(f"the password does not open {path}: check --password-file") from None
        raise _damaged(path) from None


def _node_key_file(datadir: DataDir) -> bytes:
    if not datadir.node_key.exists():
        raise NotReady(f"{datadir.root} holds no node key: run `{making(datadir)}`")
    check_private(datadir.node_key)
    return datadir.node_key.read_bytes()


def _plain_node_key(datadir: DataDir, data: bytes) -> NodeKey:
    try:
        key = NodeKey(bytes.fromhex(data.decode().strip()))
        PrivateKey(key.secret)
        if len(key.secret) != 32:
            raise ValueError("a key has 32 bytes")
    except ValueError:
        raise Failure(f"{datadir.node_key} is damaged: restore it from a backup") from None
    return key


def _encrypted(datadir: DataDir, key: NodeKey, password: str) -> bytes:
    return encrypted_file.encrypt(key.secret, password, _LABEL + key.peer_id, encryption_cost(datadir))


def _keystore(datadir: DataDir) -> Path:
    found = keystores(datadir)
    if not found:
        raise NotReady(f"{datadir.keystore} holds no account: run `{making(datadir)}`")
    if len(found) > 1:
        raise Failure(f"{datadir.keystore} holds {len(found)} accounts: keep one, move the others away")
    return found[0]


def making(datadir: DataDir, insecure_devnet: bool = False) -> str:
    """The command that makes the keys that the folder lacks. `insecure_devnet`: by the password that everybody knows,
    as in a folder with a devnet's chain."""
    if is_insecure(datadir):
        word = []
    elif insecure_devnet or _has_devnet(datadir):
        word = ["--insecure-devnet"]
    else:
        word = ["--password-file", "FILE"]
    return line("init", *word, folder=datadir.root)


def _has_devnet(datadir: DataDir) -> bool:
    own = read_contracts(datadir)
    return own is not None and of_devnet(own["chain_id"], "")


def of_devnet(chain_id: int, password_file: str) -> bool:
    """Whether new keys for the chain may open with the password that everybody knows, as no other was named."""
    return chain_id == DEFAULTS.chain_id and not password_file


def _damaged(path: Path) -> Failure:
    return Failure(f"{path} is not a readable V3 keystore: restore it from a backup")
