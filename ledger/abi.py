"""Strict ABI encoding of flat structs, driven by the annotations of the dataclass.

A field is declared with one of the types below; its Solidity type is the annotation's metadata, its Solidity name the
camelCase of the Python name. Only what our contracts need: static words, and `bytes` as a last field (see typed.Seal).
"""

from collections.abc import Iterator
from dataclasses import fields
from functools import cache, lru_cache
from typing import Annotated, Any, TypeVar, get_type_hints

from eth_hash.auto import keccak
from eth_utils.address import to_checksum_address

Bytes32 = Annotated[bytes, "bytes32"]
Address = Annotated[str, "address"]
U8 = Annotated[int, "uint8"]
U16 = Annotated[int, "uint16"]
U32 = Annotated[int, "uint32"]
U64 = Annotated[int, "uint64"]
U128 = Annotated[int, "uint128"]
U256 = Annotated[int, "uint256"]
Bool = Annotated[bool, "bool"]

WORD = 32
ZERO32 = bytes(WORD)
ZERO_ACCOUNT = "0x" + 40 * "0"

T = TypeVar("T")


class TypedError(ValueError):
    """Bytes or fields that no valid struct has."""


def encode_words(value: Any) -> bytes:
    """abi.encode of the static fields of a struct: one 32-byte word each. Raises TypedError out of range."""
    return b"".join(_to_word(kind, getattr(value, name), name) for name, kind in static_fields(value.__class__))


def decode_words(cls: type[T], data: bytes, **dynamic: Any) -> T:
    """The struct whose static fields are exactly `data`; `dynamic` gives the other fields. Raises TypedError."""
    names = static_fields(cls)  # type: ignore[arg-type]
    if len(data) != WORD * len(names):
        raise TypedError(f"{cls.__name__}: expected {WORD * len(names)} bytes, got {len(data)}")
    words = (data[i : i + WORD] for i in range(0, len(data), WORD))
    static = {name: _from_word(kind, word, name) for (name, kind), word in zip(names, words, strict=True)}
    return cls(**static, **dynamic)


@cache
def type_hash(cls: Any) -> bytes:
    """keccak of the EIP-712 type string of the struct."""
    members = ",".join(f"{kind} {_camel(name)}" for name, kind in _schema(cls))
    return keccak(f"{cls.__name__}({members})".encode())


@cache
def static_fields(cls: Any) -> tuple[tuple[str, str], ...]:
    """(name, Solidity type) of the fields that take one word each."""
    return tuple((name, kind) for name, kind in _schema(cls) if kind in _STATIC)


def word(value: int) -> bytes:
    """A non-negative integer as one word."""
    return value.to_bytes(WORD, "big")


def checksum(account: bytes) -> str:
    """20 bytes as an EIP-55 account."""
    return _checksum(bytes(account))


def account_bytes(account: str) -> bytes:
    """The 20 bytes of an EIP-55 account. Raises TypedError for any other spelling."""
    try:
        raw = bytes.fromhex(account[2:])
    except (ValueError, TypeError):
        raw = b""
    if len(raw) != 20 or _checksum(raw) != account:
        raise TypedError(f"not a checksummed account: {account!r}")
    return raw


def ascending(accounts: Iterator[str] | list[str] | tuple[str, ...] | set[str]) -> tuple[str, ...]:
    """Accounts in numeric order: the only order the ledger knows."""
    return tuple(sorted(accounts, key=lambda account: int(account, 16)))


_STATIC = {"bytes32": 256, "address": 160, "bool": 1} | {f"uint{bits}": bits for bits in (8, 16, 32, 64, 128, 256)}


@lru_cache(maxsize=4096)
def _checksum(raw: bytes) -> str:
    if len(raw) != 20:
        raise TypedError(f"an account has 20 bytes, got {len(raw)}")
    return str(to_checksum_address(raw))


@cache
def _schema(cls: Any) -> tuple[tuple[str, str], ...]:
    hints = get_type_hints(cls, include_extras=True)
    return tuple((field.name, hints[field.name].__metadata__[0]) for field in fields(cls))


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _to_word(kind: str, value: Any, name: str) -> bytes:
    if kind == "bytes32":
        if not isinstance(value, bytes) or len(value) != WORD:
            raise TypedError(f"{name}: expected 32 bytes")
        return value
    if kind == "address":
        return bytes(12) + account_bytes(value)
    if isinstance(value, bool) != (kind == "bool") or not isinstance(value, int) or not 0 <= value < 1 << _STATIC[kind]:
        raise TypedError(f"{name}: {value!r} is not a {kind}")
    return word(value)


def _from_word(kind: str, data: bytes, name: str) -> Any:
    if kind == "bytes32":
        return bytes(data)
    value = int.from_bytes(data, "big")
    if value >> _STATIC[kind]:
        raise TypedError(f"{name}: {value} is not a {kind}")
    if kind == "address":
        return checksum(data[12:])
    return bool(value) if kind == "bool" else value
