"""What an account has signed, as one encrypted file that moves with the account to another machine.

Decrypted (see node.home.keys.encrypted_file) it is a msgpack map: `format` and `version`; `account` (EIP-55 text);
`contributions`, a list of 961-byte signed statements; `seals`, a list of [the bytes of a seal, 65-byte signature].
"""

from typing import Any, Literal

import msgpack
import msgspec
from msgspec import Struct

from dlx.ledger.bonds import SignedSeal
from dlx.ledger.typed import Seal, SignedContribution, TypedError
from dlx.node.home.errors import Failure
from dlx.node.home.keys import encrypted_file
from dlx.node.home.keys.slashing_protection import Entries

VERSION = 2
MAX_BYTES = 1 << 30
_FORMAT = "dlx-node signed statements"


class _Bundle(Struct, frozen=True, forbid_unknown_fields=True):
    format: Literal["dlx-node signed statements"]
    version: int
    account: str
    contributions: list[bytes]
    seals: list[tuple[bytes, bytes]]


def pack(account: str, entries: Entries, password: str, cost: int) -> bytes:
    """The bundle's bytes; `cost` as encrypted_file.encrypt takes it."""
    plain = msgpack.packb(
        {
            "format": _FORMAT,
            "version": VERSION,
            "account": account,
            "contributions": [signed.encode() for signed in entries.contributions],
            "seals": [[signed.seal.encode(), signed.signature] for signed in entries.seals],
        }
    )
    return encrypted_file.encrypt(plain, password, f"{_FORMAT} of {account}", cost)


def unpack(data: bytes, account: str, password: str) -> Entries:
    """What `account` had signed. Raises Failure for another account's bundle, and for bytes that are none."""
    label = encrypted_file.label(data)
    if label != f"{_FORMAT} of {account}":
        raise Failure(f"it holds {label!r}, not what {account} signed")
    try:
        bundle = _bundle(msgpack.unpackb(encrypted_file.decrypt(data, password)))
        contributions = tuple(SignedContribution.decode(one) for one in bundle.contributions)
        seals = tuple(SignedSeal(Seal.decode(seal), signature) for seal, signature in bundle.seals)
    except (ValueError, msgpack.UnpackException, msgspec.ValidationError, TypedError) as error:
        raise Failure(f"it is no bundle of signed statements ({error})") from None
    if any(signed.contribution.account != account for signed in contributions):
        raise Failure(f"it holds a contribution that is not {account}'s")
    return Entries(contributions, seals)


def _bundle(value: Any) -> _Bundle:
    version = value.get("version") if isinstance(value, dict) else None
    if version != VERSION:
        raise Failure(f"it has format {version}, this release reads {VERSION}")
    return msgspec.convert(value, _Bundle)
