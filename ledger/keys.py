"""secp256k1: deterministic low-s signatures, recovery, accounts and libp2p peer ids."""

import base58
from coincurve import PrivateKey, PublicKey
from eth_hash.auto import keccak

from dlx.ledger.abi import checksum

SIGNATURE_SIZE = 65
_HALF_ORDER = 0x7FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF5D576E7357A4501DDFE92F46681B20A0
# Identity multihash of the libp2p key protobuf: code 0, 37 bytes; field 1 = 2 (Secp256k1), field 2 = 33 bytes.
_PEER_ID_PREFIX = bytes.fromhex("002508021221")
PEER_ID_SIZE = len(_PEER_ID_PREFIX) + 33


class SignatureError(ValueError):
    """A signature that nobody may have made: wrong length, wrong v, high s, or no such point."""


def sign(digest: bytes, key: bytes) -> bytes:
    """65 bytes r‖s‖v (v 27 or 28, low s) over a 32-byte digest; equal inputs give equal bytes (RFC 6979)."""
    if len(digest) != 32:
        raise ValueError("a digest has 32 bytes")
    raw = PrivateKey(key).sign_recoverable(digest, hasher=None)
    return raw[:64] + bytes([27 + raw[64]])


def recover(digest: bytes, signature: bytes) -> str:
    """The account that signed a 32-byte digest. Raises SignatureError."""
    if len(digest) != 32 or len(signature) != SIGNATURE_SIZE:
        raise SignatureError(f"digest of {len(digest)} bytes, signature of {len(signature)}: expected 32 and 65")
    if signature[64] not in (27, 28):
        raise SignatureError(f"v is {signature[64]}, not 27 or 28")
    if int.from_bytes(signature[32:64], "big") > _HALF_ORDER:
        raise SignatureError("s is in the upper half")
    compact = bytes(signature[:64]) + bytes([signature[64] - 27])
    try:
        public = PublicKey.from_signature_and_message(compact, bytes(digest), hasher=None)
    except Exception as error:  # coincurve raises bare Exception or ValueError, depending on the step that fails
        raise SignatureError("no public key belongs to this signature") from error
    return _account(public)


def account_of(key: bytes) -> str:
    """The account of a 32-byte private key."""
    return _account(PrivateKey(key).public_key)


def public_point(key: bytes) -> tuple[bytes, bytes]:
    """The coordinates (x, y) of a private key's public key, 32 bytes each, as the registry takes them."""
    raw = PrivateKey(key).public_key.format(compressed=False)
    return raw[1:33], raw[33:]


def peer_id(public_key: bytes) -> bytes:
    """The 39-byte libp2p peer id of a secp256k1 public key (33 bytes compressed or 65 uncompressed)."""
    return _PEER_ID_PREFIX + PublicKey(public_key).format(compressed=True)


def peer_id_to_base58(raw: bytes) -> str:
    """The usual spelling (16Uiu2HA...) of a 39-byte peer id."""
    _check_peer_id(raw)
    return base58.b58encode(raw).decode()


def peer_id_from_base58(text: str) -> bytes:
    """The 39 bytes of a peer id in base58. Raises ValueError unless it names a secp256k1 key."""
    if len(text) > 64:
        raise ValueError("not a peer id: too long")
    raw = base58.b58decode(text)
    _check_peer_id(raw)
    return raw


def _check_peer_id(raw: bytes) -> None:
    if len(raw) != PEER_ID_SIZE or not raw.startswith(_PEER_ID_PREFIX):
        raise ValueError("not the peer id of a secp256k1 key")


def _account(public: PublicKey) -> str:
    return checksum(keccak(public.format(compressed=False)[1:])[12:])
