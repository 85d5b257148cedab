"""The ledger's client: what a node reads from the contracts and sends to them. Synchronous; call it from threads."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from dlx.ledger.abi import ZERO32, ZERO_ACCOUNT
from dlx.ledger.bindings import Interface
from dlx.ledger.bonds import Bond, Evidence
from dlx.ledger.errors import Contradiction, LedgerError, LedgerUnavailable, Reverted, RpcError, WrongLedger
from dlx.ledger.events import Joined, RawLog, decode_log, parse_log
from dlx.ledger.index.crosscheck import read_all
from dlx.ledger.index.event_index import Contracts, EventIndex, Head
from dlx.ledger.index.feed import EventFeed, RunFeed
from dlx.ledger.index.rebuild import NodesReplay
from dlx.ledger.keys import account_of, public_point, sign
from dlx.ledger.outer_proofs import Call
from dlx.ledger.parts import Part, parts_of
from dlx.ledger.rpc.failover import Failover
from dlx.ledger.rpc.recorded import Kept
from dlx.ledger.rpc.rpc_client import TIMEOUT, RpcClient
from dlx.ledger.transactions.fees import Limits
from dlx.ledger.transactions.sender import CONFIRMED, Sender, WouldRevert
from dlx.ledger.typed import (
    ANY_STAGE,
    Domain,
    Invitation,
    RunConfig,
    Seal,
    SignedVerdict,
    conviction_entries,
    encode_records,
    registration_digest,
    run_id,
    split_entries,
)
from dlx.ledger.view.node_registry import NodeTable
from dlx.ledger.view.runs import config_problem, founders_problem

# What gas is estimated within: a chain node may say anything, and some cannot estimate. Each is well above the worst
# case measured under Prague rules, where calldata costs most (EIP-7623).
_GAS = {
    "register": 700_000,
    "setAddresses": 500_000,
    "deregister": 120_000,
    "joinRun": 800_000,
    "enlist": 150_000,
    "moveDown": 800_000,
    "leaveRun": 250_000,
    "accuse": 150_000,
    "answer": 100_000,
    "evict": 250_000,
    "dismiss": 500_000,
    "reclaim": 500_000,
    "deal": 5_000_000,
    "publishCheckpoint": 200_000,
    "evaluate": 100_000,
    "admit": 150_000,
    "admitListed": 150_000,
    "revoke": 100_000,
    "setSteward": 100_000,
    "setList": 150_000,
    "deposit": 100_000,
    "withdraw": 100_000,
    "twoStatements": 400_000,
    "twoSeals": 300_000,
    "falseVersion": 250_000,
}
_GAS_CREATE, _GAS_PER_STAGE, _GAS_PER_FOUNDER = 450_000, 60_000, 30_000
_GAS_SEAL, _GAS_PER_ENTRY = 300_000, 25_000
_GAS_CONVICT, _GAS_PER_VERDICT = 200_000, 20_000
_GAS_SITE, _GAS_PER_MACHINE = 100_000, 250_000
_GAS_PROOF, _GAS_PER_PROOF_BYTE = 500_000, 60
_KEEPS_SLOT = ("answer",)  # may use the last tenth of the day's budget
_TEND_EVERY = 15.0  # seconds between looks at what was sent and is not confirmed


_Update = TypeVar("_Update", covariant=True)


class _Feed(Protocol[_Update]):
    def poll(self, rpc: RpcClient, wait: float = 0.0) -> _Update: ...


@dataclass(frozen=True)
class Receipt:
    """A mined transaction of ours."""

    tx: bytes
    block: int
    block_hash: bytes
    gas_used: int
    logs: tuple[RawLog, ...]


class LedgerClient:
    """One ledger on one chain, and (with a key) one account's writes to it.

    `folder` keeps the index of events for all who name it; without one it is in memory.

    Making one asks the chain nothing. The first call that needs the chain checks its id (`chain_id`, where one is
    given, else whatever the node says) and that our contracts are there. Until that has succeeded every call may raise
    LedgerUnavailable or WrongLedger. `ledger`, `account` and, with a `chain_id`, `domain` need no chain.

    An answer has to be whole after `rpc_timeout` seconds: see RpcClient. `asks_again`: who has it repeats what finds
    the chain node silent, as a node does. Then connecting and polls give up soon, else they wait as all other reads.
    Writes wait for their receipt up to `timeout` seconds and raise Reverted where the contract refuses,
    LedgerUnavailable where the chain node is silent. They raise Unconfirmed where no block takes the transaction in
    time (it is kept, and goes out later), LedgerError otherwise.
    """

    def __init__(
        self,
        rpc_url: str | Sequence[str] | Failover,
        ledger: str,
        key: bytes | None = None,
        outbox: Path | None = None,
        timeout: float = 60.0,
        chain_id: int | None = None,
        folder: Path | None = None,
        limits: Limits | None = None,
        rpc_timeout: float = TIMEOUT,
        asks_again: bool = True,
    ) -> None:
        self.rpc = RpcClient(rpc_url, rpc_timeout, chain_id=chain_id)
        self._polling = self.rpc.impatient() if asks_again else self.rpc
        self.ledger = ledger
        self._chain_id, self._key, self._outbox, self._timeout = chain_id, key, outbox, timeout
        self._folder = folder
        self._limits, self._confirmed, self._tended = limits, CONFIRMED, time.monotonic()
        self._account = None if key is None else account_of(key)
        self._ledger_abi = Interface("TrainingLedger", self.rpc)
        self._registry_abi = Interface("NodeRegistry", self.rpc)
        self._connecting = threading.Lock()
        self._connected: tuple[Domain, dict[str, str], Sender | None] | None = None
        self._contracts: Contracts | None = None

    def recording(self, kept: Kept) -> "LedgerClient":
        """One that reads the same ledger anew, and whose chain nodes' answers go to `kept` (see `rpc.recorded`)."""
        return LedgerClient(self.rpc.recording(kept), self.ledger, chain_id=self._chain_id)

    def connect(self) -> None:
        """Checks that the chain is the expected one and has the contracts; other calls do so when first needed.

        Raises WrongLedger, and LedgerUnavailable where the chain node is silent or there is no code at all: a chain
        node that still syncs has none yet.
        """
        with self._connecting:
            if self._connected is None:
                self._connected = self._check_chain()

    @property
    def domain(self) -> Domain:
        """What seals and contributions are signed for."""
        return self._state[0] if self._chain_id is None else Domain(self._chain_id, self.ledger)

    @property
    def chain_id(self) -> int:
        return self.domain.chain_id

    @property
    def registry(self) -> str:
        """The NodeRegistry that the ledger trusts."""
        return self._state[1]["NodeRegistry"]

    @property
    def account(self) -> str:
        """The account that writes. Raises LedgerError where there is no key."""
        if self._account is None:
            raise LedgerError("no account key: this client only reads")
        return self._account

    def confirm(self, blocks: int) -> None:
        """Keeps what was sent until so many blocks are above it, if that is more than usual: then no reorg takes it."""
        self._confirmed = max(CONFIRMED, blocks)

    # Reads.

    def head(self) -> Head:
        header = self.rpc.head()
        return Head(header.number, header.hash, header.time)

    def block_hash(self, number: int) -> bytes | None:
        """None where the chain node has no such block."""
        header = self._polling.header(number)
        return None if header is None else header.hash

    def block_hashes(self, numbers: Sequence[int]) -> dict[int, bytes]:
        """Of those blocks that the chain node has."""
        found = zip(numbers, self._polling.headers(numbers), strict=True)
        return {number: header.hash for number, header in found if header is not None}

    def balance(self, account: str) -> int:
        """Wei."""
        return self.rpc.number("eth_getBalance", account, "latest")

    def code(self, address: str) -> bytes:
        """The runtime code at an address."""
        return self.rpc.data("eth_getCode", address, "latest")

    def read(self, function: str, *args: Any) -> tuple[Any, ...]:
        """The answer of one of the ledger's views."""
        return self._ledger_abi.call(self.ledger, function, *args)

    def read_registry(self, function: str, *args: Any) -> tuple[Any, ...]:
        """The answer of one of the registry's views."""
        return self._registry_abi.call(self.registry, function, *args)

    def contracts(self) -> Contracts:
        """Where the contracts are, and since which block: as they say themselves, which takes no old state. The first
        answer stays.

        Raises LedgerUnavailable where the chain node has not got so far, Contradiction where it has another such block.
        """
        if self._contracts is None:
            self._contracts = self._find_contracts()
        return self._contracts

    def open_index(self, folder: Path | None = None) -> EventIndex:
        """The index of the ledger's events as it is, for one thread. In another folder: one that takes nothing of what
        chain nodes said before. Close it."""
        name = f"events-{self.chain_id}-{self.ledger.lower()}.sqlite"
        contracts = self.contracts() if folder is None else self._find_contracts()
        place = folder or self._folder
        return EventIndex(None if place is None else place / name, self.chain_id, contracts)

    @contextmanager
    def events(self, progress: Callable[[int, int], None] | None = None) -> Iterator[EventIndex]:
        """The index with every event up to now, as many as the contracts count. `progress` gets (block, last block)
        while it is read.

        Raises LedgerUnavailable also where the chain node answers with an error of its own, EventsLeftOut where no URL
        gives all.
        """
        with closing(self.open_index()) as index:
            try:
                read_all(index, self.rpc, progress)
            except RpcError as error:
                raise self._failing(error) from None
            yield index

    def runs(self) -> tuple[bytes, ...]:
        """The id of every run, oldest first."""
        with self.events() as index:
            return tuple(index.runs())

    def nodes(self) -> NodeTable:
        """Every registered node."""
        with self.events() as index:
            replay = NodesReplay(index)
            replay.advance()
            return replay.nodes

    def feed(self, run: bytes | None = None, confirmations: int = 0) -> EventFeed:
        """A new feed of the registry's and one run's (or all runs') events. Asks the chain nothing until polled."""
        return EventFeed(self.open_index, run, confirmations)

    def follow(self, run: bytes, confirmations: int = 0, keep: int | None = None) -> RunFeed:
        """A new feed of one run's view and the nodes. Asks the chain nothing until polled."""
        return RunFeed(self.open_index, run, confirmations, keep)

    @property
    def tells(self) -> bool:
        """Whether a poll waits for news where it is told to: see `RpcClient.newer`."""
        return self.rpc.tells

    def poll(self, feed: _Feed[_Update], wait: float = 0.0) -> _Update:
        """What happened since the feed's last poll, where the chain node tells of blocks as soon as there is one, for
        up to `wait` seconds.

        Raises LedgerUnavailable also where the chain node answers with an error of its own: the next poll goes on.
        """
        try:
            update = feed.poll(self._polling, wait)
        except RpcError as error:
            raise self._failing(error) from None
        if self._key is not None and time.monotonic() > self._tended + _TEND_EVERY:
            with suppress(LedgerError):
                self._sender.tend(patience=0.0)  # a reorg may have taken back what we sent
            self._tended = time.monotonic()
        return update

    # Writes.

    def register(self, node_key: bytes, multiaddrs: Sequence[str]) -> Receipt:
        """Binds the node key's peer id to the account and publishes its addresses (replacing both)."""
        (nonce,) = self.read_registry("nonces", self.account)
        signature = sign(registration_digest(self.chain_id, self.registry, self.account, nonce), node_key)
        return self._registry_write("register", *public_point(node_key), signature, list(multiaddrs))

    def set_addresses(self, multiaddrs: Sequence[str]) -> Receipt:
        return self._registry_write("setAddresses", list(multiaddrs))

    def deregister(self) -> Receipt:
        return self._registry_write("deregister")

    def create_run(
        self, config: RunConfig, name: str, genesis: Sequence[bytes], founders: Sequence[str] | None = None
    ) -> bytes:
        """The id of the run; `name` is the manifest's, `genesis` has the hash of V[s,0] for each stage. `founders`: the
        accounts of which one signs each seal of a stage until work has earned enough weight there (None: the account).

        Raises LedgerError for what the contract does not take.
        """
        founders = [self.account] if founders is None else founders
        if problem := config_problem(config) or founders_problem(founders):
            raise LedgerError(f"the ledger takes no such run: {problem}")
        gas = _GAS_CREATE + _GAS_PER_STAGE * len(genesis) + _GAS_PER_FOUNDER * len(founders)
        self._write("createRun", astuple(config), name, list(genesis), list(founders), gas=gas)
        return run_id(self.chain_id, self.ledger, self.account, config.manifest)

    def join_run(self, run: bytes, stage: int = ANY_STAGE) -> tuple[int, int]:
        """The (replica, stage) that the ledger gave to the account."""
        receipt = self._write("joinRun", run, stage)
        for log in receipt.logs:
            event = decode_log(log, 0)
            if isinstance(event, Joined):
                return event.replica, event.stage
        raise LedgerError("joinRun was mined without giving a slot")

    def enlist(self, run: bytes, stage: int, until: int, signature: bytes) -> Receipt:
        """Lets the others of the account's site take a slot for it until then; `signature` is the site key's, over a
        SiteMember."""
        return self._write("enlist", run, stage, until, signature)

    def join_site(self, run: bytes, replica: int, accounts: Sequence[str]) -> Receipt:
        """Takes all slots of a replica for machines of the account's site, one for each stage in their order."""
        gas = _GAS_SITE + _GAS_PER_MACHINE * len(accounts)
        return self._write("joinSite", run, replica, list(accounts), gas=gas)

    def move_down(self, run: bytes) -> Receipt:
        return self._write("moveDown", run)

    def leave_run(self, run: bytes) -> Receipt:
        return self._write("leaveRun", run)

    def accuse(self, run: bytes, account: str) -> Receipt:
        return self._write("accuse", run, account)

    def answer(self, run: bytes) -> Receipt:
        return self._write("answer", run)

    def evict(self, run: bytes, account: str) -> Receipt:
        return self._write("evict", run, account)

    def dismiss(self, run: bytes, account: str, successor: str | None = None) -> Receipt:
        """Frees the slot of a member of a stage that is the account's as a founder, for the successor alone if there is
        one: see RunView.may_dismiss."""
        return self._write("dismiss", run, account, successor or ZERO_ACCOUNT)

    def reclaim(self, run: bytes, account: str) -> Receipt:
        """Takes the slot of a member that stands still: see RunView.may_reclaim."""
        return self._write("reclaim", run, account)

    def deal(self, run: bytes, replica: int) -> Receipt:
        return self._write("deal", run, replica)

    def seal(self, seal: Seal, signatures: bytes) -> Receipt:
        """Closes (round, stage); `signatures` as typed.entries makes them of those over `seal.digest(domain)`."""
        gas = most_gas("seal", len(split_entries(signatures)))
        return self._write("seal", seal_argument(seal, signatures), gas=gas)

    def convict(self, verdicts: Sequence[SignedVerdict]) -> Receipt:
        """Bars the account whose contribution all these verdicts find false or withheld: see RunView.may_convict.

        Raises TypedError for verdicts on several contributions, or that find one honest, and SignatureError for a
        signature of nobody.
        """
        entries = conviction_entries(verdicts, self.domain)
        gas = _GAS_CONVICT + _GAS_PER_VERDICT * len(verdicts)
        return self._write("convict", *verdicts[0].verdict.contribution, entries, gas=gas)

    def publish_checkpoint(self, run: bytes, round: int, folder: bytes, uri: str) -> Receipt:
        """Says where V[., round] can be fetched; `folder` is the sha256 of the list of its files."""
        return self._write("publishCheckpoint", run, round, folder, uri)

    def evaluate(self, run: bytes, version: int, sum: int, count: int, statement: bytes) -> Receipt:
        """Says the loss of V[., version]: the sum over `count` held-out tokens, in micronats; `statement` is the name
        of the signed typed.Evaluation."""
        return self._write("evaluate", run, version, sum, count, statement)

    # Who may join an invited run.

    def is_admitted(self, run: bytes, account: str) -> bool:
        """Whether the account, or its site, was let into the invited run."""
        return bool(self._call("Invitations", "isAdmitted", self.ledger, run, account)[0])

    def is_guest(self, run: bytes, guest: str) -> bool:
        """Whether an invitation of the account or the site was brought, and not taken back."""
        return bool(self._call("Invitations", "guestOf", self.ledger, run, guest)[0][0])

    def is_revoked(self, run: bytes, guest: str) -> bool:
        """Whether the account's or the site's invitation was taken back, and no later one brought."""
        admitted, revoked_at = self._call("Invitations", "guestOf", self.ledger, run, guest)[0]
        return not admitted and revoked_at > 0

    def is_steward(self, run: bytes, account: str) -> bool:
        """Whether the account may invite to the run: its creator, or a steward."""
        return bool(self._call("Invitations", "isSteward", self.ledger, run, account)[0])

    def admit(self, invitation: Invitation, signature: bytes) -> Receipt:
        """Brings an invitation, whoever's it is."""
        return self._send("Invitations", "admit", astuple(invitation), signature)

    def list_of(self, run: bytes) -> bytes | None:
        """The root of the list of accounts that the run's creator committed: see AccountList. None: there is none."""
        root = bytes(self._call("Invitations", "listOf", self.ledger, run)[0][0])
        return root if any(root) else None

    def set_list(self, run: bytes, root: bytes | None) -> Receipt:
        """Commits to a list in place of the one before; None ends it."""
        return self._send("Invitations", "setList", self.ledger, run, root or ZERO32)

    def admit_listed(self, run: bytes, account: str, proof: Sequence[bytes]) -> Receipt:
        """Lets in an account of the run's list."""
        return self._send("Invitations", "admitListed", self.ledger, run, account, list(proof))

    def revoke(self, run: bytes, guest: str) -> Receipt:
        """Takes an account's or a site's invitations back: no slot comes of them any more."""
        return self._send("Invitations", "revoke", self.ledger, run, guest)

    def set_steward(self, run: bytes, account: str, steward: bool) -> Receipt:
        return self._send("Invitations", "setSteward", self.ledger, run, account, steward)

    # What slots of a run have at stake.

    def bond(self, run: bytes, account: str) -> Bond:
        return Bond(*self._call("Bonds", "bondOf", self.ledger, run, account))

    def deposit(self, run: bytes, account: str, wei: int) -> Receipt:
        """Pays so much of what the account needs for a slot of the run; only the account gets it back."""
        return self._send("Bonds", "deposit", self.ledger, run, account, value=wei)

    def withdraw(self, run: bytes) -> Receipt:
        """Takes all back that is not at stake."""
        return self._send("Bonds", "withdraw", self.ledger, run)

    def slash(self, evidence: Evidence) -> Receipt:
        """Brings evidence against an account: what it has at stake is gone, and a tenth of it the sender's."""
        return self._send("Bonds", evidence.function, self.ledger, *evidence.arguments)

    def is_disproved(self, digest: bytes) -> bool:
        """Whether the version of the seal with this digest was disproved. Raises KeyError where the ledger names no
        contract for it."""
        return bool(self._call("OuterProofs", "disproved", digest)[0])

    def disprove(self, call: Call) -> Receipt:
        """Sends a call to the contract that disproves versions. Raises KeyError where the ledger names none."""
        abi = Interface("OuterProofs", self.rpc)
        gas = _GAS_PROOF + _GAS_PER_PROOF_BYTE * len(abi.call_data(call.function, *call.arguments))
        return self.transact(self.part("OuterProofs"), abi, call.function, call.arguments, gas)

    def part(self, name: str) -> str:
        """Where the ledger's contract of this name is. Raises KeyError."""
        return self._state[1][name]

    def _call(self, contract: str, function: str, *args: Any) -> tuple[Any, ...]:
        return Interface(contract, self.rpc).call(self.part(contract), function, *args)

    def _send(self, contract: str, function: str, *args: Any, value: int = 0) -> Receipt:
        abi = Interface(contract, self.rpc)
        return self.transact(self.part(contract), abi, function, args, _GAS[function], value)

    def _check_chain(self) -> tuple[Domain, dict[str, str], Sender | None]:
        rpc = self._polling
        chain_id = rpc.chain_id()
        if self._chain_id not in (None, chain_id):
            raise WrongLedger(f"the chain node at {rpc.name} is on chain {chain_id}, not {self._chain_id}")
        rpc.expect(chain_id)
        found = {
            part.name: self._checked(part, chain_id) for part in parts_of(self.ledger, self._code_soon, self._read_soon)
        }
        sender = None if self._key is None else Sender(self.rpc, chain_id, self._key, self._outbox, self._limits)
        return Domain(chain_id, self.ledger), found, sender

    def _checked(self, part: Part, chain_id: int) -> str:
        """Its address. Raises LedgerUnavailable, WrongLedger."""
        if not part.code:
            raise LedgerUnavailable(
                f"no code at {part.address} on chain {chain_id} yet: the chain node at {self.rpc.name} has not got as "
                f"far as the {part.name}, or this is not its address"
            )
        if not part.is_ours:
            hint = "check --ledger, or use the dlx-node that deployed it"
            raise WrongLedger(f"{part.address} on chain {chain_id} is not this version's {part.name}: {hint}")
        return part.address

    def _failing(self, error: RpcError) -> LedgerUnavailable:
        return LedgerUnavailable(f"the chain node at {self.rpc.name} answers with an error: {error}")

    @property
    def _state(self) -> tuple[Domain, dict[str, str], Sender | None]:
        if self._connected is None:
            self.connect()
        assert self._connected is not None
        return self._connected

    @property
    def _sender(self) -> Sender:
        sender = self._state[2]
        if sender is None:
            raise LedgerError("no account key: this client only reads")
        sender.confirmed = self._confirmed
        return sender

    def _find_contracts(self) -> Contracts:
        since = min(
            self._deployed_at("ledger", "TrainingLedger", self.ledger),
            self._deployed_at("registry", "NodeRegistry", self.registry),
        )
        return Contracts(self.ledger, self.registry, since)

    def _code_soon(self, address: str) -> bytes:
        """As `code`, with the patience of a poll."""
        return self._polling.data("eth_getCode", address, "latest")

    def _read_soon(self, contract: str, address: str, function: str) -> tuple[Any, ...]:
        """The answer of a view, likewise."""
        return Interface(contract, self._polling).call(address, function)

    def _deployed_at(self, name: str, contract: str, address: str) -> int:
        """The block of a contract's creation, by its own word. Its time shows that it is the chain node's block of that
        number: there are chains whose contracts count other blocks than their nodes."""
        number, time = self._read_soon(contract, address, "deployedAt")
        block, node = self._polling.header(number), self._polling.name
        if block is None:
            raise LedgerUnavailable(f"the chain node at {node} has no block {number}, in which the {name} was created")
        if block.time != time:
            raise Contradiction(
                f"block {number} of the chain node at {node} is of time {block.time}, but the {name} says that it was "
                f"created in block {number} at {time}: name another chain node with --rpc-url"
            )
        return number

    def _registry_write(self, function: str, *args: Any) -> Receipt:
        return self.transact(self.registry, self._registry_abi, function, args, _GAS[function])

    def _write(self, function: str, *args: Any, gas: int | None = None) -> Receipt:
        return self.transact(self.ledger, self._ledger_abi, function, args, gas or _GAS[function])

    def transact(
        self, to: str, abi: Interface, function: str, args: Sequence[Any], gas_limit: int, value: int = 0
    ) -> Receipt:
        """Sends a call of the contract at `to`, which takes at most `gas_limit` and pays it `value` wei, and waits for
        its receipt."""
        data = abi.call_data(function, *args)
        by: dict[str, Any] = {"from": self.account, "gas": gas_limit} | ({"value": value} if value else {})

        def check(block: int | str) -> None:  # raises Reverted before gas is spent
            abi.call(to, function, *args, block=block, **by)

        pending = self._sender.send(to, data, gas_limit, function in _KEEPS_SLOT, check, value)
        try:
            receipt = self._sender.wait(pending, self._timeout)
        except WouldRevert as error:
            raise abi.refusal(error.error) from None
        result = _receipt(receipt)
        if int(receipt["status"], 16) != 1:
            if result.gas_used >= pending.gas:
                raise Reverted("out of gas")
            abi.call(to, function, *args, block=result.block, **by)  # mostly still reverts in the state the block left
            raise Reverted("in its block, but neither before nor after it")
        return result


def most_gas(function: str, entries: int = 0) -> int:
    """What one of a node's calls may take at most; `entries`: of a seal."""
    return _GAS_SEAL + _GAS_PER_ENTRY * entries if function == "seal" else _GAS[function]


def usual_seal_gas(entries: int) -> int:
    """About what a seal of so many entries takes, as `contracts/gas.json` has it of sizes up to 64."""
    return 65_000 + 9_000 * entries


def seal_argument(seal: Seal, signatures: bytes) -> tuple[Any, ...]:
    """The struct that the contract's `seal` takes."""
    outcome = (*seal.outcome.hashes, seal.outcome.plans)
    return (seal.run, seal.stage, seal.round, outcome, encode_records(seal.records), signatures)


def _receipt(receipt: dict[str, Any]) -> Receipt:
    return Receipt(
        tx=bytes.fromhex(receipt["transactionHash"][2:]),
        block=int(receipt["blockNumber"], 16),
        block_hash=bytes.fromhex(receipt["blockHash"][2:]),
        gas_used=int(receipt["gasUsed"], 16),
        logs=tuple(parse_log(log) for log in receipt["logs"]),
    )
