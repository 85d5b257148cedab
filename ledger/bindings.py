"""Calls, answers and errors of one contract, encoded by its ABI."""

from collections.abc import Sequence
from dataclasses import astuple, is_dataclass
from typing import Any

import eth_abi
from eth_hash.auto import keccak
from eth_utils.abi import collapse_if_tuple

import contracts
from ledger.abi import checksum
from ledger.errors import Reverted


class Interface:
    """The functions and errors of one of our contracts."""

    def __init__(self, name: str) -> None:
        self.artifact = contracts.load(name)
        entries = self.artifact["abi"]
        self._functions = {e["name"]: e for e in entries if e["type"] == "function"}
        self._constructor: dict[str, Any] = next((e for e in entries if e["type"] == "constructor"), {"inputs": []})
        self._errors = {_selector(e): e for e in entries if e["type"] == "error"}

    def call_data(self, function: str, *args: Any) -> bytes:
        """The calldata of a call; a dataclass stands for a struct."""
        entry = self._functions[function]
        return _selector(entry) + _encode(entry["inputs"], args)

    def creation_data(self, *args: Any) -> bytes:
        """The data of a transaction that creates the contract."""
        return _unhex(self.artifact["bytecode"]) + _encode(self._constructor["inputs"], args)

    def answer(self, function: str, data: bytes) -> tuple[Any, ...]:
        """What a call returned; accounts checksummed."""
        kinds = _kinds(self._functions[function]["outputs"])
        return tuple(_readable(k, v) for k, v in zip(kinds, eth_abi.decode(kinds, data), strict=True))

    def error(self, data: bytes) -> Reverted:
        """The custom error (or Error, Panic) in the data of a revert."""
        entry = self._errors.get(data[:4], _BUILT_IN.get(data[:4]))
        if entry is None:
            return Reverted("unknown error", (data[:68],)) if data else Reverted("no reason given")
        kinds = _kinds(entry["inputs"])
        try:
            values = eth_abi.decode(kinds, data[4:])
        except Exception:  # eth_abi's errors share no base class; the data is the chain node's word
            return Reverted(entry["name"], (data[4:68],))
        return Reverted(entry["name"], tuple(_readable(k, v) for k, v in zip(kinds, values, strict=True)))

    def same_code(self, onchain: bytes) -> bool:
        """Whether this is the contract's runtime code, whatever its immutables."""
        return same_code(self.artifact, onchain)


def same_code(artifact: dict[str, Any], onchain: bytes) -> bool:
    """Whether code on the chain is the artifact's, the places of immutables left aside."""
    expected, actual = bytearray(_unhex(artifact["deployedBytecode"])), bytearray(onchain)
    if len(expected) != len(actual):
        return False
    for place in artifact["immutableReferences"]:
        start, end = place["start"], place["start"] + place["length"]
        expected[start:end] = actual[start:end] = bytes(place["length"])
    return expected == actual


def _encode(inputs: Sequence[dict[str, Any]], args: Sequence[Any]) -> bytes:
    return eth_abi.encode(_kinds(inputs), [astuple(arg) if is_dataclass(arg) else arg for arg in args])  # type: ignore


def _kinds(entries: Sequence[dict[str, Any]]) -> list[str]:
    return [collapse_if_tuple(entry) for entry in entries]  # type: ignore[arg-type]


def _selector(entry: dict[str, Any]) -> bytes:
    return keccak(f"{entry['name']}({','.join(_kinds(entry['inputs']))})".encode())[:4]


def _readable(kind: str, value: Any) -> Any:
    return checksum(bytes.fromhex(value[2:])) if kind == "address" else value


def _unhex(text: str) -> bytes:
    return bytes.fromhex(text.removeprefix("0x"))


_BUILT_IN = {
    _selector(entry): entry
    for entry in (
        {"name": "Error", "inputs": [{"type": "string"}]},
        {"name": "Panic", "inputs": [{"type": "uint256"}]},
    )
}
