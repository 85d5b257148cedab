"""Campaigns on a chain: money goes in, is claimed and comes back. A contract stands for ledger and proofs."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import eth_abi
import pytest
from eth_account.signers.local import LocalAccount
from web3.contract import Contract

from dlx.ledger.abi import checksum
from dlx.ledger.bindings import Interface
from dlx.ledger.campaigns import ETH, Campaign, Campaigns, CampaignTerms, Token, epochs_of, least_patience
from dlx.ledger.client import LedgerClient
from dlx.ledger.errors import LedgerUnavailable, Reverted, WrongLedger
from dlx.ledger.transactions.sender import Sender
from dlx.ledger.typed import Domain
from tests.ledger.chain_support import Chain, serving
from tests.ledger.solidity import compiled

RUN = b"\x07" * 32
ROUNDS, STAGES = 40, 1
ACCOUNT = checksum(b"\x0a" * 20)
TERMS = CampaignTerms(RUN, ETH, 0, 3, 2, 86_400, 0)


class World:
    """A chain with a double of ledger and proofs, and the campaigns over it."""

    def __init__(self, chain: Chain) -> None:
        self.chain, self.owner = chain, chain.account()
        self.ledger = self.deploy("PaidDouble.sol", "PaidDouble")
        data = Interface("Campaigns").creation_data(self.ledger.address, self.ledger.address)
        self.campaigns = checksum(bytes.fromhex(self._create(data)[2:]))
        said: dict[str, Any] = {"manifestHash": RUN, "rounds": ROUNDS, "stages": STAGES, "roundTimeout": 60}
        config = [said.get(one["name"], _nothing(one["type"])) for one in self._config()]
        self.do(self.ledger, "createRun", RUN, tuple(config))
        self.do(self.ledger, "take", RUN, ACCOUNT, 0)

    def deploy(self, file: str, name: str) -> Contract:
        made = compiled(file, name)
        address = self._create(bytes.fromhex(made["bytecode"][2:]))
        return self.chain.w3.eth.contract(address=checksum(bytes.fromhex(address[2:])), abi=made["abi"])

    def do(self, contract: Contract, function: str, *args: Any) -> None:
        assert self.chain.mined(self.chain.use(self.owner, contract, function, *args))["status"] == "0x1"

    def funder(self) -> tuple[LedgerClient, Campaigns]:
        """A new account with 100 ETH."""
        account: LocalAccount = self.chain.account()
        client = LedgerClient(self.chain.url, self.ledger.address, account.key, chain_id=31337)
        sender = Sender(client.rpc, 31337, account.key, None)
        client._connected = (Domain(31337, client.ledger), client.ledger, sender)  # it is no ledger of ours
        return client, Campaigns(client, self.campaigns)

    def work(self, rounds: int) -> None:
        _, begin, opened_at = self.ledger.functions.openRound(RUN).call()
        if not opened_at:
            self.do(self.ledger, "open", RUN)
        records = eth_abi.encode(["address[]"], [[ACCOUNT]])
        empty = (bytes(32), bytes(32), bytes(32), bytes(32), bytes(11))
        for round in range(begin, begin + rounds):
            self.do(self.ledger, "seal", (RUN, 0, round, empty, records, b""))

    def _create(self, data: bytes) -> str:
        sent = self.chain.send(self.owner, to=None, value=0, gas=6_000_000, data="0x" + data.hex())
        return str(self.chain.mined(sent)["contractAddress"])

    def _config(self) -> list[dict[str, Any]]:
        made = next(one for one in self.ledger.abi if one.get("name") == "createRun")
        return made["inputs"][1]["components"]


def _nothing(kind: str) -> Any:
    return {"bytes32": bytes(32), "bool": False}.get(kind, 0)


@pytest.fixture
def world(tmp_path: Any) -> Iterator[World]:
    with serving(tmp_path / "chain", time_lapse=True, block_time=0.02) as chain:
        yield World(chain)


def progress(client: LedgerClient) -> SimpleNamespace:
    _, round, opened_at = client.read("openRound", RUN)
    return SimpleNamespace(round=round, opened_at=opened_at, now=client.head().time)


def test_money_goes_in_is_claimed_and_comes_back(world: World) -> None:
    (client, campaigns), (other, others) = world.funder(), world.funder()
    number = campaigns.create(TERMS, [10_000], 3 * 10**18)
    others.fund(campaigns.campaign(number), 10**18)
    made = campaigns.campaign(number)
    assert made == Campaign(
        number, TERMS, ROUNDS, made.created_at, 0, 0, 4 * 10**18, 0, 0, 0, 0, parts=(10_000,), useful=()
    )
    assert made.left == made.funded and campaigns.of_run(RUN) == (made,)
    pots = campaigns.pots(made)
    assert [pot.epoch for pot in pots] == [0, 1, 2] and {pot.worth for pot in pots} == {None}
    assert sum(pot.amount for pot in pots) == made.funded

    world.work(16 + TERMS.window)
    at = progress(client)
    assert made.can_settle(at.round, at.opened_at, at.now) == 1 and not made.is_dead(at.opened_at, at.now)
    with pytest.raises(Reverted, match="Begun"):
        others.fund(made, 1)
    campaigns.settle(made, 9)
    settled = campaigns.campaign(number)
    assert list(settled.settled_epochs) == [0] and settled.useful == (16,)
    (due,) = campaigns.due(settled, [(ACCOUNT, 0), (client.account, 0)])
    assert (due.account, due.epochs, due.amount, due.forfeited) == (ACCOUNT, (0,), pots[0].amount, 0)
    assert campaigns.pots(settled)[0].worth == pots[0].amount
    others.claim(number, due)  # whoever asks
    assert client.balance(ACCOUNT) == due.amount
    assert campaigns.paid_to(number, [client.account, ACCOUNT]) == (0, due.amount)
    assert campaigns.due(settled, [(ACCOUNT, 0)]) == ()

    world.do(world.ledger, "convict", RUN, ACCOUNT)
    world.work(16)
    campaigns.settle(campaigns.campaign(number), 9)
    (due,) = campaigns.due(campaigns.campaign(number), [(ACCOUNT, 0)])
    assert (due.amount, due.forfeited) == (0, pots[1].amount)
    campaigns.claim(number, due)
    assert campaigns.deposit(number, client.account) == (3 * 10**18, 0, pots[1].amount * 3 // 4)
    before = other.balance(other.account)
    campaigns.refund(number, other.account)
    assert other.balance(other.account) - before == pots[1].amount // 4
    after = campaigns.campaign(number)
    assert after.paid + after.claimable + after.returned + after.left == after.funded
    with pytest.raises(Reverted, match="NothingToRefund"):
        campaigns.refund(number, other.account)


def test_a_token_is_allowed_and_paid(world: World) -> None:
    client, campaigns = world.funder()
    token = world.deploy("Tokens.sol", "Token")
    world.do(token, "mint", client.account, 1000)
    assert campaigns.token(token.address) == Token(token.address, "TKN", 18)
    terms = CampaignTerms(RUN, token.address, 0, 3, 2, 86_400, 0)
    number = campaigns.create(terms, [10_000], 600)
    campaigns.fund(campaigns.campaign(number), 300)
    assert campaigns.campaign(number).funded == token.functions.balanceOf(world.campaigns).call() == 900
    with pytest.raises(Reverted):
        campaigns.fund(campaigns.campaign(number), 101)
    assert campaigns.token(ACCOUNT) == Token(ACCOUNT, ACCOUNT, 0), "what is no token hides no campaign"


def test_only_our_contract_of_this_ledger_is_believed(world: World) -> None:
    client, _ = world.funder()
    with pytest.raises(LedgerUnavailable, match="no code at"):
        Campaigns(client, ACCOUNT)
    with pytest.raises(WrongLedger, match="not this version's Campaigns"):
        Campaigns(client, world.ledger.address)
    client.ledger = ACCOUNT
    with pytest.raises(WrongLedger, match="are of the ledger"):
        Campaigns(client, world.campaigns)


def test_what_can_be_settled_follows_from_the_rounds() -> None:
    campaign = Campaign(0, TERMS, ROUNDS, 1000, 0, 0, 9, 0, 0, 0, 0, parts=(10_000,), useful=())
    assert [campaign.end(epoch) for epoch in range(3)] == [16, 32, 40]
    assert [campaign.can_settle(round, 2000, 2000) for round in (17, 18, 33, 34, 40)] == [0, 1, 1, 2, 2]
    late = 2000 + TERMS.patience
    assert campaign.can_settle(40, 2000, late) == 2 and campaign.can_settle(40, 2000, late + 1) == 3
    assert campaign.can_settle(0, 0, late + 1) == 0 and campaign.is_dead(0, late + 1)
    assert (epochs_of(40), epochs_of(32), least_patience(60), least_patience(86_400)) == (3, 2, 86_400, 32 * 86_400)
