"""A campaign gives back what a seal cost; where none does, the seal goes to the ledger itself."""

from __future__ import annotations

import pytest

from dlx.ledger.campaigns import ETH, Campaigns, CampaignTerms, least_patience
from dlx.ledger.errors import Reverted
from dlx.ledger.sealer import Sealer
from tests.ledger.conftest import World
from tests.ledger.ledger_run import Run, config, seal_of, signatures_of, work
from tests.ledger.test_client import until_time

TIMEOUT = 10**6
ETHER = 10**18


def test_a_seal_is_refunded_by_a_campaign_that_has_the_money(embedded: World) -> None:
    clients = embedded.members(range(60, 63))
    run = Run(clients, config(stages=1, min_replicas=3, round_timeout=TIMEOUT))
    creator, funder = clients[0], embedded.client(63)
    campaigns = Campaigns(funder, embedded.campaigns)
    for refund in (ETHER // 1000, ETHER):
        terms = CampaignTerms(run.id, ETH, 0, 1, 0, least_patience(TIMEOUT), refund)
        campaigns.create(terms, [10_000], ETHER // 2)
    rich = campaigns.of_run(run.id)[-1]
    for client in clients:
        client.join_run(run.id)
    run.poll()
    members = run.view.members_in(0)
    until_time(creator, run.opens_at(0, members))

    counted = work(run.view, 0, run.makers(0, members), run.keys)
    seal = seal_of(run.view, 0, counted)
    entries = signatures_of(run.view, seal, counted, members, run.keys, creator.account)
    sealer = Sealer(creator, embedded.campaigns)
    refused = signatures_of(run.view, seal, counted, members, run.keys)
    with pytest.raises(Reverted, match="QuorumMissing"):
        sealer.seal(seal, refused)
    receipt = sealer.seal(seal, entries)
    paid = campaigns.campaign(rich.number).paid
    assert 0 < paid <= receipt.gas_used * int(creator.rpc.call("eth_gasPrice"), 16)
    run.poll()
    assert run.view.next_round(0) == 1

    until_time(creator, run.opens_at(0, members))
    counted = work(run.view, 0, run.makers(0, members), run.keys)
    seal = seal_of(run.view, 0, counted)
    entries = signatures_of(run.view, seal, counted, members, run.keys, creator.account)
    Sealer(creator, "").seal(seal, entries)
    run.poll()
    assert run.view.next_round(0) == 2
    assert campaigns.campaign(rich.number).paid == paid
