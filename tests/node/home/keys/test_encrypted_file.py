"""What is encrypted at rest: only the password opens it, and only as it was written."""

import pytest
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
from hypothesis import given, settings
from hypothesis import strategies as st

from dlx.node.home.keys import encrypted_file
from dlx.node.home.keys.encrypted_file import LIGHT, EncryptedFileError, decrypt, encrypt, label

CHEAP = 10


@settings(max_examples=30)
@given(st.binary(max_size=300), st.text(max_size=20), st.text(max_size=60))
def test_the_password_decrypts_what_it_encrypted(plain: bytes, password: str, name: str) -> None:
    made = encrypt(plain, password, name, CHEAP)
    assert decrypt(made, password) == plain and label(made) == name
    with pytest.raises(EncryptedFileError, match="the password does not open it"):
        decrypt(made, password + "x")


def test_every_flipped_byte_is_refused() -> None:
    made = encrypt(b"a secret", "password", "label", CHEAP)
    for at in range(len(made)):
        for flip in (0x01, 0x80):
            damaged = bytearray(made)
            damaged[at] ^= flip
            with pytest.raises(EncryptedFileError):
                decrypt(bytes(damaged), "password")
    for end in range(len(made)):
        with pytest.raises(EncryptedFileError):
            decrypt(made[:end], "password")
    with pytest.raises(EncryptedFileError):
        decrypt(made + b"\0", "password")


def test_the_same_secret_is_never_encrypted_to_the_same_bytes() -> None:
    assert encrypt(b"a secret", "password", "label", CHEAP) != encrypt(b"a secret", "password", "label", CHEAP)


def test_the_layout_is_the_one_that_is_documented() -> None:
    """Another implementation can open the file from what the module says."""
    made = encrypt(b"a secret", "password", "whose", LIGHT)
    assert b"a secret" not in made and b"password" not in made
    assert made[:12] == b"dlx-sealed\x01\x0c" and made[40:46] == b"\x05whose"
    key = Scrypt(made[12:28], 32, 2**12, 8, 1).derive(b"password")
    assert ChaCha20Poly1305(key).decrypt(made[28:40], made[46:], made[:46]) == b"a secret"


@pytest.mark.parametrize("cost", [0, 9, 19, 30, 255])
def test_a_hostile_file_cannot_ask_for_gigabytes(cost: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made = bytearray(encrypt(b"a secret", "password", "label", CHEAP))
    made[11] = cost
    monkeypatch.setattr(encrypted_file, "Scrypt", lambda *_: pytest.fail("no key may be derived"))
    with pytest.raises(EncryptedFileError, match="damaged"):
        decrypt(bytes(made), "password")


def test_another_format_says_so() -> None:
    made = bytearray(encrypt(b"a secret", "password", "label", CHEAP))
    made[10] = 2
    with pytest.raises(EncryptedFileError, match="has format 2, this release reads 1"):
        decrypt(bytes(made), "password")
    with pytest.raises(EncryptedFileError, match="no encrypted file"):
        label(b"plain")
