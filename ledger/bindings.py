"""Calls and errors of one contract, through web3's Contract."""

from typing import Any

from eth_abi.exceptions import DecodingError
from eth_utils.abi import collapse_if_tuple, function_abi_to_4byte_selector
from web3 import Web3
from web3.exceptions import Web3Exception
from web3.providers import BaseProvider

from dlx import contracts
from dlx.ground.untrusted import printable
from dlx.ledger.errors import LedgerError, Reverted, RpcError
from dlx.ledger.rpc.rpc_client import RpcClient

# What web3 raises for bytes that are no answer: the bytes are the chain node's word.
_UNDECODABLE = (Web3Exception, DecodingError, OverflowError, TypeError, ValueError)
_BUILT_IN = (
    {"type": "error", "name": "Error", "inputs": [{"name": "reason", "type": "string"}]},
    {"type": "error", "name": "Panic", "inputs": [{"name": "code", "type": "uint256"}]},
)


class Interface:
    """One of our contracts; without `rpc` it encodes only."""

    def __init__(self, name: str, rpc: RpcClient | None = None) -> None:
        web3 = rpc.web3 if rpc else Web3(BaseProvider(), middleware=(), ens=None)  # type: ignore[arg-type]
        self.artifact = contracts.load(name)
        abi = self.artifact["abi"]
        self._contract = web3.eth.contract(abi=abi, bytecode=self.artifact["bytecode"])
        # web3's own `encode_abi` looks through all functions at each call: 70 times as slow.
        self._codec = web3.codec
        self._calls = {
            entry["name"]: (function_abi_to_4byte_selector(entry), list(map(collapse_if_tuple, entry["inputs"])))
            for entry in abi
            if entry["type"] == "function"
        }
        # web3 decodes no custom errors; but their data is that of a call of a function with the error's name.
        errors = [{**entry, "type": "function"} for entry in (*abi, *_BUILT_IN) if entry["type"] == "error"]
        self._errors = web3.eth.contract(abi=errors)

    def call_data(self, function: str, *args: Any) -> bytes:
        """The calldata of a call; a tuple stands for a struct."""
        selector, kinds = self._calls[function]
        return selector + self._codec.encode(kinds, args)

    def creation_data(self, *args: Any) -> bytes:
        """The data of a transaction that creates the contract."""
        return _unhex(self._contract.constructor(*args).data_in_transaction)

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

    def same_code(self, onchain: bytes) -> bool:
        """Whether this is the contract's runtime code, whatever its immutables."""
        expected, actual = bytearray(_unhex(self.artifact["deployedBytecode"])), bytearray(onchain)
        if len(expected) != len(actual):
            return False
        for place in self.artifact["immutableReferences"]:
            start, end = place["start"], place["start"] + place["length"]
            expected[start:end] = actual[start:end] = bytes(place["length"])
        return expected == actual

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
            function, arguments = self._errors.decode_function_input(revert)
        except _UNDECODABLE:
            return Reverted("unknown error", (revert[:68],))
        return Reverted(function.name, tuple(arguments.values()))


def _unhex(text: str) -> bytes:
    return bytes.fromhex(text.removeprefix("0x"))
