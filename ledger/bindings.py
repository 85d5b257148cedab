"""Calls and errors of one contract, through web3's Contract."""

from collections.abc import Mapping
from functools import cache, cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

from eth_abi.exceptions import DecodingError
from eth_utils.abi import abi_to_signature, collapse_if_tuple, function_abi_to_4byte_selector
from web3 import Web3
from web3.contract import Contract
from web3.exceptions import Web3Exception
from web3.providers import BaseProvider

from dlx import contracts
from dlx.ground.untrusted import printable
from dlx.ledger.abi import account_bytes, checksum
from dlx.ledger.errors import LedgerError, Reverted, RpcError
from dlx.ledger.rpc.json_rpc import octets
from dlx.ledger.rpc.rpc_client import RpcClient

# What web3 raises for bytes that are no answer: the bytes are the chain node's word.
_UNDECODABLE = (Web3Exception, DecodingError, OverflowError, TypeError, ValueError)
_BUILT_IN = (
    {"type": "error", "name": "Error", "inputs": [{"name": "reason", "type": "string"}]},
    {"type": "error", "name": "Panic", "inputs": [{"name": "code", "type": "uint256"}]},
)


_ADDRESS = 20  # bytes


class _Function(NamedTuple):
    """How a function is called: its selector, the types of what it takes, and the ABI of what it gives."""

    selector: bytes
    takes: list[str]
    gives: list[dict[str, Any]]


class Interface:
    """One of our contracts; without `rpc` it encodes only."""

    def __init__(self, name: str, rpc: RpcClient | None = None) -> None:
        self._web3 = rpc.web3 if rpc else _web3_of_nobody()
        self.artifact = contracts.load(name)
        self._codec = self._web3.codec

    @cached_property
    def _contract(self) -> type[Contract]:
        """web3's own, made where it is first called: it takes milliseconds, and most only compare code."""
        return self._web3.eth.contract(abi=self.artifact["abi"], bytecode=self.artifact["bytecode"])

    @cached_property
    def _functions(self) -> dict[str, _Function]:
        """By name. web3's own `encode_abi` looks through all functions at each call: 70 times as slow."""
        return {
            entry["name"]: _Function(
                function_abi_to_4byte_selector(entry), [*map(collapse_if_tuple, entry["inputs"])], entry["outputs"]
            )
            for entry in self.artifact["abi"]
            if entry["type"] == "function"
        }

    def call_data(self, function: str, *args: Any) -> bytes:
        """The calldata of a call; a tuple stands for a struct."""
        called = self._functions[function]
        return called.selector + self._codec.encode(called.takes, args)

    @property
    def libraries(self) -> tuple[str, ...]:
        """The names of the libraries that it links."""
        return tuple(self.artifact["links"])

    @property
    def takes(self) -> tuple[str, ...]:
        """What its constructor takes: the names, in Solidity written with a `_` behind them."""
        made = (one["inputs"] for one in self.artifact["abi"] if one["type"] == "constructor")
        return tuple(one["name"].rstrip("_") for one in next(made, []))

    def views(self) -> frozenset[str]:
        """The names of its functions that take nothing and change nothing."""
        reads = (one for one in self.artifact["abi"] if one.get("stateMutability") in ("view", "pure"))
        return frozenset(one["name"] for one in reads if one["type"] == "function" and not one["inputs"])

    def creation_data(self, *args: Any, libraries: Mapping[str, str] = MappingProxyType({})) -> bytes:
        """The data of a transaction that creates the contract; `libraries`: where those are that it links, by name."""
        data = bytearray(_unhex(self._contract.constructor(*args).data_in_transaction))
        for library, places in self.artifact["links"].items():
            for start in places:
                data[start : start + _ADDRESS] = account_bytes(libraries[library])
        return bytes(data)

    def call(self, to: str, function: str, *args: Any, block: int | str = "latest", **by: Any) -> tuple[Any, ...]:
        """What a call of the contract at `to` returns, accounts checksummed; `by` may give its `from` and `gas`.

        Raises Reverted where the contract refuses, LedgerError for an answer that is none.
        """
        bound = self._contract.functions[function](*args)
        try:
            answer = bound.call({"to": to, **by}, block)  # type: ignore[arg-type]
        except RpcError as error:
            raise self.refusal(error) from None
        except _UNDECODABLE as error:
            reason = printable(str(error), 200)
            raise LedgerError(f"{function}: the contract at {to} gave another answer than expected: {reason}") from None
        return (answer,) if len(bound.abi["outputs"]) == 1 else tuple(answer)

    def answer(self, function: str, result: Any) -> tuple[Any, ...]:
        """What a view's answer says, as JSON-RPC has it and accounts in lower case: for answers that were asked for
        together. Raises LedgerError for one that is none."""
        try:
            return tuple(self._codec.decode([*map(collapse_if_tuple, self._functions[function].gives)], octets(result)))
        except (*_UNDECODABLE, AttributeError) as error:
            reason = printable(str(error), 200)
            raise LedgerError(f"{function}: a contract gave another answer than expected: {reason}") from None

    def named_answer(self, function: str, result: Any) -> dict[str, Any]:
        """Likewise, by the names of the view's outputs: of the fields, where it gives one struct; one that has no name
        has the function's. Raises LedgerError."""
        outputs, values = self._functions[function].gives, self.answer(function, result)
        if len(outputs) == 1 and "components" in outputs[0]:
            outputs, (values,) = outputs[0]["components"], values
        return {output["name"] or function: value for output, value in zip(outputs, values, strict=True)}

    def same_code(self, onchain: bytes) -> bool:
        """Whether this is the contract's runtime code, whatever its immutables, wherever its libraries are."""
        expected, actual = bytearray(_unhex(self.artifact["deployedBytecode"])), bytearray(onchain)
        if len(expected) != len(actual):
            return False
        for place in self.artifact["immutableReferences"]:
            start, end = place["start"], place["start"] + place["length"]
            expected[start:end] = actual[start:end] = bytes(place["length"])
        for first, *others in self.artifact["deployedLinks"].values():  # one library is in one place
            for start in (first, *others):
                expected[start : start + _ADDRESS] = actual[first : first + _ADDRESS]
        return expected == actual

    def linked(self, onchain: bytes) -> dict[str, str]:
        """Where the libraries are that the contract's runtime code names."""
        places = self.artifact["deployedLinks"].items()
        return {library: checksum(onchain[first : first + _ADDRESS]) for library, (first, *_) in places}

    def immutables(self, onchain: bytes) -> set[bytes]:
        """The words that the creation put into the contract's runtime code."""
        places = self.artifact["immutableReferences"]
        return {onchain[place["start"] : place["start"] + place["length"]] for place in places}

    def refusal(self, error: RpcError) -> LedgerError:
        """What an error answer to a call means."""
        revert = error.revert
        if revert is None:
            return error
        if not revert:
            return Reverted("no reason given")
        try:
            function, arguments = _refusals().decode_function_input(revert)
        except _UNDECODABLE:
            return Reverted("unknown error", (revert[:68],))
        return Reverted(function.name, tuple(arguments.values()))


@cache
def _refusals() -> type[Contract]:
    """The errors of all contracts: one passes on what another refused.

    web3 decodes no custom errors; but their data is that of a call of a function with the error's name.
    """
    artifacts = (contracts.load(name)["abi"] for name in contracts.names())
    entries = [entry for abi in (*artifacts, _BUILT_IN) for entry in abi if entry["type"] == "error"]
    errors = {abi_to_signature(entry): {**entry, "type": "function"} for entry in entries}
    return _web3_of_nobody().eth.contract(abi=[*errors.values()])


@cache
def _web3_of_nobody() -> Web3:
    """web3 without a chain node, which encodes and decodes."""
    return Web3(BaseProvider(), middleware=(), ens=None)  # type: ignore[arg-type]


def _unhex(text: str) -> bytes:
    return bytes.fromhex(text.removeprefix("0x"))
