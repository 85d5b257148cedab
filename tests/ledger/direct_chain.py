"""The contracts on an EVM in this process: every transaction is a block of its own, at the time that the test says."""

from collections.abc import Iterator
from typing import Any

import eth_abi
from eth_hash.auto import keccak
from eth_keys.datatypes import PrivateKey

from dlx import contracts
from dlx.ledger.abi import checksum
from dlx.ledger.bindings import Interface
from dlx.ledger.chain import evm
from dlx.ledger.errors import Reverted
from dlx.ledger.events import Event, RawLog, decode_log
from dlx.ledger.keys import account_of, public_point, sign
from dlx.ledger.typed import Domain, registration_digest

CHAIN_ID = 31337
_GAS = 12_000_000


class DirectChain:
    """`now` is the time of the next block; transactions are signed with the given keys, which all have funds."""

    def __init__(self, keys: list[bytes], now: int = 1_000_000) -> None:
        self.now = now
        self._nodes: dict[bytes, bytes] = {}
        self._evm = evm.Evm(CHAIN_ID, self._nodes.__getitem__, lambda number: iter(()))
        self._nonces: dict[bytes, int] = {}
        names = "NodeRegistry", "Membership", "TrainingLedger", "Campaigns"
        self._abi = {name: Interface(name) for name in names}
        self._outputs: dict[str, list[str]] = {}
        self._errors: dict[bytes, str] = {}
        for entry in contracts.load("TrainingLedger")["abi"]:
            kinds = [_kind(one) for one in entry.get("inputs", ())]
            if entry["type"] == "function":
                self._outputs[entry["name"]] = [_kind(one) for one in entry["outputs"]]
            elif entry["type"] == "error":
                self._errors[keccak(f"{entry['name']}({','.join(kinds)})".encode())[:4]] = entry["name"]
        genesis = self._evm.genesis(bytes.fromhex(account_of(keys[0])[2:]), now - 1)
        self._nodes |= genesis.nodes
        self._header = genesis.header
        for key in keys[1:]:
            self._mine(keys[0], bytes.fromhex(account_of(key)[2:]), b"", value=10**24)
        self.registry = self._create(keys[0], self._abi["NodeRegistry"].creation_data())
        library = self._create(keys[0], self._abi["Membership"].creation_data())
        nobody = "0x" + "0" * 40
        data = self._abi["TrainingLedger"].creation_data(
            self.registry, nobody, nobody, libraries={"Membership": library}
        )
        self.ledger = self._create(keys[0], data)
        self.campaigns = self._create(keys[0], self._abi["Campaigns"].creation_data(self.ledger, self.ledger))
        self.domain = Domain(CHAIN_ID, self.ledger)
        for key in keys:
            node_key = keccak(b"node" + key)
            digest = registration_digest(CHAIN_ID, self.registry, account_of(key), 0)
            signature = sign(digest, node_key)
            data = self._abi["NodeRegistry"].call_data("register", *public_point(node_key), signature, [])
            assert self._mine(key, bytes.fromhex(self.registry[2:]), data).status == 1

    def write(self, key: bytes, function: str, *args: Any) -> list[Event]:
        """The events of a call of the ledger. Raises Reverted, with the error's name only."""
        data = self._abi["TrainingLedger"].call_data(function, *args)
        outcome = self._call(bytes.fromhex(account_of(key)[2:]), data)
        if outcome.error is not None:
            raise Reverted(self._refusal(outcome))
        executed = self._mine(key, bytes.fromhex(self.ledger[2:]), data)
        assert executed.status == 1
        self.gas_used = executed.gas_used
        return list(self._decoded(executed))

    def fund(self, key: bytes, function: str, *args: Any, value: int) -> int:
        """The gas of a call of the campaigns."""
        data = self._abi["Campaigns"].call_data(function, *args)
        executed = self._mine(key, bytes.fromhex(self.campaigns[2:]), data, value)
        assert executed.status == 1
        return executed.gas_used

    def read(self, function: str, *args: Any) -> tuple[Any, ...]:
        """What a view of the ledger answers at `now`."""
        outcome = self._call(bytes(20), self._abi["TrainingLedger"].call_data(function, *args))
        if outcome.error is not None:
            raise Reverted(self._refusal(outcome))
        values = eth_abi.decode(self._outputs[function], outcome.output)
        return tuple(checksum(bytes.fromhex(v[2:])) if isinstance(v, str) else v for v in values)

    def _refusal(self, outcome: evm.Outcome) -> str:
        return self._errors.get(outcome.output[:4], outcome.error or "?")

    def _call(self, sender: bytes, data: bytes) -> evm.Outcome:
        header = self._evm.next_header(self._header, self.now)
        return self._evm.call(header, evm.Call(sender, bytes.fromhex(self.ledger[2:]), data, 0, _GAS))

    def _create(self, key: bytes, data: bytes) -> str:
        nonce = self._nonces.get(key, -1) + 1
        assert self._mine(key, b"", data).status == 1
        return checksum(evm.created_address(bytes.fromhex(account_of(key)[2:]), nonce))

    def _mine(self, key: bytes, to: bytes, data: bytes, value: int = 0) -> evm.Executed:
        nonce = self._nonces[key] = self._nonces.get(key, -1) + 1
        unsigned = evm._Builder.new_unsigned_dynamic_fee_transaction(
            chain_id=CHAIN_ID, nonce=nonce, max_priority_fee_per_gas=1, max_fee_per_gas=100, gas=_GAS, to=to,
            value=value, data=data, access_list=(),
        )  # fmt: skip
        transaction = evm.decode(unsigned.as_signed_transaction(PrivateKey(key), CHAIN_ID).encode())
        block = self._evm.build(self._header, self.now, [transaction], 60)
        self._nodes |= block.nodes
        self._header = block.header
        return block.executed[0]

    def _decoded(self, executed: evm.Executed) -> Iterator[Event]:
        for index, log in enumerate(executed.logs):
            block, tx = self._header.block_number, executed.transaction.hash
            raw = RawLog(checksum(log.address), log.topics, log.data, block, self._header.hash, index, tx)
            event = decode_log(raw, self.now)
            assert event is not None
            yield event


def _kind(one: dict[str, Any]) -> str:
    inner = ",".join(_kind(part) for part in one.get("components", ()))
    return one["type"].replace("tuple", f"({inner})")
