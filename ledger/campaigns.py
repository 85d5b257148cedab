"""Campaigns: what funds a run, who was paid, and what goes back. Synchronous, like the client.

What is exact is the contract's: amounts are in the token's smallest units (wei for ETH), and nothing here rounds.
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from itertools import pairwise, takewhile
from typing import Annotated, Any

from dlx.ground.constants import EPOCH_ROUNDS
from dlx.ground.untrusted import printable
from dlx.ledger.abi import U32, Address, Bytes32, account_bytes, checksum
from dlx.ledger.bindings import Interface
from dlx.ledger.client import LedgerClient, Receipt, most_gas, seal_argument
from dlx.ledger.errors import LedgerError, LedgerUnavailable, RpcError, WrongLedger
from dlx.ledger.rpc.rpc_client import RpcClient
from dlx.ledger.typed import Seal, split_entries

ETH = "0x" + 40 * "0"  # the token of a campaign that pays in ETH
WHOLE = 10_000  # all parts of a pot
CLAIM_TIME = 180 * 86_400  # seconds from the close until what is unclaimed goes back
LEAST_PATIENCE, MOST_PATIENCE = 86_400, 1461 * 86_400  # seconds
MOST_WINDOW = 4096  # rounds
_LEAST_TIMEOUTS = 32  # of the run's rounds that a campaign is patient at least
_MANY_EPOCHS = 64  # in one call
_MANY_CAMPAIGNS = 100
_MANY_POTS = 1024
_GAS_CREATE, _GAS_PER_STAGE = 700_000, 30_000
_GAS_SETTLE, _GAS_PER_SEALS = 200_000, 60_000  # a (stage, epoch)
_GAS_CLAIM, _GAS_PER_EPOCH = 300_000, 80_000
_GAS_PASS_ON = 120_000  # a seal to the ledger, and its refund
_GAS = {"fund": 300_000, "refund": 250_000, "approve": 120_000}


@dataclass(frozen=True)
class CampaignTerms:
    """What a campaign pays for: the run's epochs from `from_epoch` up to `to_epoch`, which is not paid any more."""

    run: Bytes32
    token: Address  # ETH, or a contract's address
    from_epoch: U32
    to_epoch: U32
    window: U32  # rounds after an epoch until its pay can be claimed
    patience: U32  # seconds without a finished round until the run counts as dead
    seal_refund: Annotated[int, "uint128"]  # the most that one seal's gas is refunded with, in wei


@dataclass(frozen=True)
class Campaign:
    """A campaign as the contract has it. Of what was funded, `paid` went to accounts and `claimable` is set apart for
    them. `returned` is its funders' again (`refunded` of that went out), and `left` waits for its epochs."""

    number: int
    terms: CampaignTerms
    rounds: int  # of the run
    created_at: int
    settled: int  # the first epoch that is not settled yet
    closed_at: int  # Unix seconds; 0: not yet
    funded: int
    paid: int
    claimable: int
    returned: int
    refunded: int
    parts: tuple[int, ...]  # of a pot, by stage, in ten-thousandths
    useful: tuple[int, ...]  # by settled epoch: the fewest non-empty seals of any stage

    @property
    def left(self) -> int:
        return self.funded - self.paid - self.claimable - self.returned

    @property
    def settled_epochs(self) -> range:
        return range(self.terms.from_epoch, self.settled)

    def end(self, epoch: int) -> int:
        """The first round after the epoch."""
        return min(EPOCH_ROUNDS * (epoch + 1), self.rounds)

    def can_settle(self, round: int, opened_at: int, now: int) -> int:
        """How many epochs can be settled, as the run's open round and its opening time say; `now`: the chain's time."""
        waits = 0 if self.is_dead(opened_at, now) else self.terms.window
        ready = (round >= self.end(epoch) + waits for epoch in range(self.settled, self.terms.to_epoch))
        return sum(takewhile(bool, ready))

    def is_dead(self, opened_at: int, now: int) -> bool:
        """Whether the run has finished no round for as long as the campaign is patient."""
        return now > max(opened_at, self.created_at) + self.terms.patience


@dataclass(frozen=True)
class Pot:
    """An epoch's money without what refunds of seals took, and what its work is worth: None before it is settled."""

    epoch: int
    amount: int
    worth: int | None


@dataclass(frozen=True)
class Due:
    """What a claim would pay an account for its work in a stage, and what it would give to the funders instead."""

    account: str
    stage: int
    epochs: tuple[int, ...]
    amount: int
    forfeited: int


@dataclass(frozen=True)
class Token:
    """What a campaign is paid in."""

    address: str
    symbol: str
    decimals: int


class Campaigns:
    """The campaigns of a ledger, at the address of their contract; writes are the client's account's.

    Reads raise Reverted for a number that no campaign has; LedgerError, LedgerUnavailable as the client does.
    """

    def __init__(self, client: LedgerClient, address: str, rpc: RpcClient | None = None) -> None:
        """Reads are asked of `rpc`, where it is given. Raises LedgerUnavailable where there is no code yet, WrongLedger
        for other code or another ledger's."""
        self._client, self.address = client, checksum(bytes.fromhex(address[2:]))
        self._rpc = rpc or client.rpc
        self._abi, self._token_abi = Interface("Campaigns", self._rpc), Interface("PayToken", self._rpc)
        code = self._rpc.data("eth_getCode", self.address, "latest")
        if not code:
            raise LedgerUnavailable(f"no code at {self.address} yet: check --campaigns, or try again later")
        if not self._abi.same_code(code):
            raise WrongLedger(f"{self.address} is not this version's Campaigns: check --campaigns")
        (ledger,) = self._read("ledger")
        if ledger != client.ledger:
            raise WrongLedger(f"the campaigns at {self.address} are of the ledger {ledger}, not {client.ledger}")

    # Reads.

    def campaign(self, number: int) -> Campaign:
        ((terms, *numbers, upto, useful),) = self._read("campaign", number)
        rounds, created_at, settled, closed_at, funded, paid, claimable, returned, refunded = numbers
        parts = tuple(end - begin for begin, end in pairwise((0, *upto)))
        return Campaign(
            number, CampaignTerms(*terms), rounds, created_at, settled, closed_at, funded, paid, claimable, returned,
            refunded, parts, tuple(useful),
        )  # fmt: skip

    def of_run(self, run: bytes, most: int = _MANY_CAMPAIGNS) -> tuple[Campaign, ...]:
        """The run's newest ones, newest first."""
        _, count = self._read("campaignsOf", run, 0, 0)
        numbers, _ = self._read("campaignsOf", run, max(0, count - most), most)
        return tuple(self.campaign(number) for number in reversed(numbers))

    def refunding(self, run: bytes, epoch: int) -> int | None:
        """Of the run's newest campaigns the one that refunds most of a seal's gas in that epoch, as long as it has so
        much left."""
        able = [
            one
            for one in self.of_run(run)
            if one.settled <= epoch < one.terms.to_epoch
            and epoch >= one.terms.from_epoch
            and not one.closed_at
            and one.left >= one.terms.seal_refund > 0
        ]
        return max(able, key=lambda one: one.terms.seal_refund).number if able else None

    def pots(self, campaign: Campaign) -> tuple[Pot, ...]:
        """Of each of its epochs."""
        found = list[Pot]()
        terms = campaign.terms
        for first in range(terms.from_epoch, terms.to_epoch, _MANY_POTS):
            amounts, worths = self._read("epochsOf", campaign.number, first, _MANY_POTS)
            found += [
                Pot(epoch, amount, worth if epoch < campaign.settled else None)
                for epoch, amount, worth in zip(range(first, terms.to_epoch), amounts, worths, strict=False)
            ]
        return tuple(found)

    def due(self, campaign: Campaign, places: Sequence[tuple[str, int]]) -> tuple[Due, ...]:
        """Of each (account, stage) that has anything coming to it in settled epochs: one for each claim that is worth
        its gas, of up to 64 epochs."""
        settled = campaign.settled_epochs
        groups = [tuple(settled[i : i + _MANY_EPOCHS]) for i in range(0, len(settled), _MANY_EPOCHS)]
        asked = [(account, stage, group) for account, stage in places for group in groups]
        answers = self._each("due", [(campaign.number, *one) for one in asked])
        found = (Due(*one, *sums) for one, sums in zip(asked, answers, strict=True))
        return tuple(one for one in found if one.amount or one.forfeited)

    def paid_to(self, number: int, accounts: Sequence[str]) -> tuple[int, ...]:
        """What each has been paid."""
        return tuple(amount for (amount,) in self._each("paidTo", [(number, account) for account in accounts]))

    def deposit(self, number: int, funder: str) -> tuple[int, int, int]:
        """What the funder put in, got back, and can have back now."""
        return *self._read("depositOf", number, funder), *self._read("refundable", number, funder)

    def token(self, address: str) -> Token:
        """By its address and in its smallest units where it does not answer as a token does: anybody may name any."""
        if address == ETH:
            return Token(ETH, "ETH", 18)
        try:
            symbol, decimals = (self._token_abi.call(address, name)[0] for name in ("symbol", "decimals"))
        except LedgerError:
            return Token(address, address, 0)
        return Token(address, printable(symbol, 20), decimals)

    # Writes.

    def create(self, terms: CampaignTerms, parts: Sequence[int], amount: int) -> int:
        """Makes a campaign and funds it; its number. `parts` as in Campaign."""
        self._allow(terms.token, amount)
        gas = _GAS_CREATE + _GAS_PER_STAGE * len(parts)
        receipt = self._write("create", astuple(terms), list(parts), amount, gas=gas, value=_wei(terms.token, amount))
        for log in receipt.logs:
            if account_bytes(log.address) == account_bytes(self.address) and len(log.topics) == 3:
                return int.from_bytes(log.topics[1], "big")
        raise LedgerError("create was mined without making a campaign")

    def fund(self, campaign: Campaign, amount: int) -> Receipt:
        token = campaign.terms.token
        self._allow(token, amount)
        return self._write("fund", campaign.number, amount, gas=_GAS["fund"], value=_wei(token, amount))

    def settle(self, campaign: Campaign, epochs: int) -> Receipt:
        """At most so many of its next ones."""
        gas = _GAS_SETTLE + _GAS_PER_SEALS * len(campaign.parts) * max(1, epochs)
        return self._write("settle", campaign.number, epochs, gas=gas)

    def claim(self, number: int, due: Due) -> Receipt:
        gas = _GAS_CLAIM + _GAS_PER_EPOCH * len(due.epochs)
        return self._write("claim", number, due.account, due.stage, list(due.epochs), gas=gas)

    def seal(self, number: int, seal: Seal, signatures: bytes) -> Receipt:
        """Closes (round, stage) as `LedgerClient.seal` does, and has the campaign refund what it cost."""
        gas = _GAS_PASS_ON + most_gas("seal", len(split_entries(signatures)))
        return self._write("seal", number, seal_argument(seal, signatures), gas=gas)

    def refund(self, number: int, funder: str) -> Receipt:
        return self._write("refund", number, funder, gas=_GAS["refund"])

    def _allow(self, token: str, amount: int) -> None:
        """Lets the contract take so much of the token, unless it may already."""
        if token == ETH:
            return
        (allowed,) = self._token_abi.call(token, "allowance", self._client.account, self.address)
        if allowed < amount:
            self._client.transact(token, self._token_abi, "approve", (self.address, amount), _GAS["approve"])

    def _read(self, function: str, *args: Any) -> tuple[Any, ...]:
        return self._abi.call(self.address, function, *args)

    def _each(self, function: str, calls: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
        """The answers of one view, asked for together."""
        requests = [
            ({"to": self.address, "data": "0x" + self._abi.call_data(function, *args).hex()}, "latest")
            for args in calls
        ]
        try:
            return [self._abi.answer(function, one) for one in self._rpc.batch("eth_call", requests)]
        except RpcError as error:
            raise self._abi.refusal(error) from None

    def _write(self, function: str, *args: Any, gas: int, value: int = 0) -> Receipt:
        return self._client.transact(self.address, self._abi, function, args, gas, value)


def least_patience(round_timeout: int) -> int:
    """The seconds that a campaign is patient at least with a run of such rounds."""
    return max(LEAST_PATIENCE, _LEAST_TIMEOUTS * round_timeout)


def epochs_of(rounds: int) -> int:
    """How many epochs a run of so many rounds has; the last one may be shorter."""
    return -(-rounds // EPOCH_ROUNDS)


def _wei(token: str, amount: int) -> int:
    """What a call that puts in so much pays."""
    return amount if token == ETH else 0
