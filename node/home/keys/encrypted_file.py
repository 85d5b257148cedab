"""Secrets in a file: encrypted under a password, and refused unless every byte is as it was written.

`dlx-sealed` ‖ version (1 byte) ‖ log2 of scrypt's N (1) ‖ salt (16) ‖ nonce (12) ‖ length of the label (1) ‖ label
‖ ciphertext ‖ tag (16). The function scrypt (r = 8, p = 1) makes the key for ChaCha20-Poly1305, which authenticates all
before the ciphertext too. The label is UTF-8 that may be read without the password: what this is, and whose.
"""

import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from dlx.node.home.errors import Failure

VERSION = 1
STRONG, LIGHT = 18, 12  # log2 of N: 256 MiB and most of a second; 4 MiB, for a password that everybody knows
_MAGIC = b"dlx-sealed"
_COSTS = range(10, STRONG + 1)  # what a hostile file can make us spend is bounded
_SALT, _NONCE, _TAG = 16, 12, 16
_COST = len(_MAGIC) + 1  # where log2 of N stands
_FIXED = _COST + 1 + _SALT + _NONCE + 1  # up to the label


class EncryptedFileError(Failure):
    """Not an encrypted file, damaged, or locked by another password."""


def is_encrypted(data: bytes) -> bool:
    """Whether the bytes claim to be an encrypted file."""
    return data.startswith(_MAGIC)


def encrypt(plain: bytes, password: str, label: str, cost: int = STRONG) -> bytes:
    """`plain` as the bytes of an encrypted file; another salt and nonce each time. `label` has at most 255 bytes."""
    salt, nonce, public = os.urandom(_SALT), os.urandom(_NONCE), label.encode()
    header = b"".join((_MAGIC, bytes((VERSION, cost)), salt, nonce, bytes((len(public),)), public))
    return header + _cipher(password, salt, cost).encrypt(nonce, plain, header)


def decrypt(data: bytes, password: str) -> bytes:
    """The plain bytes. Raises EncryptedFileError."""
    header = _header(data)
    cost, salt, nonce = header[_COST], header[_COST + 1 :][:_SALT], header[_COST + 1 + _SALT :][:_NONCE]
    try:
        return _cipher(password, salt, cost).decrypt(nonce, data[len(header) :], header)
    except InvalidTag:
        raise EncryptedFileError("the password does not open it (check --password-file), or it is damaged") from None


def label(data: bytes) -> str:
    """What the file says it is; true only once `decrypt` has opened it. Raises EncryptedFileError."""
    try:
        return _header(data)[_FIXED:].decode()
    except UnicodeDecodeError:
        raise EncryptedFileError("it is damaged: restore it from a backup") from None


def _header(data: bytes) -> bytes:
    if not is_encrypted(data):
        raise EncryptedFileError("it is no encrypted file of dlx-node")
    if len(data) < _FIXED:
        raise EncryptedFileError("it is damaged: restore it from a backup")
    if data[_COST - 1] != VERSION:
        raise EncryptedFileError(f"it has format {data[_COST - 1]}, this release reads {VERSION}: use another release")
    end = _FIXED + data[_FIXED - 1]
    if len(data) < end + _TAG or data[_COST] not in _COSTS:
        raise EncryptedFileError("it is damaged: restore it from a backup")
    return data[:end]


def _cipher(password: str, salt: bytes, cost: int) -> ChaCha20Poly1305:
    return ChaCha20Poly1305(Scrypt(salt, 32, 2**cost, 8, 1).derive(password.encode()))
