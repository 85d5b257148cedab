"""The contract takes just the configs in which the client sees no problem."""

from dataclasses import astuple

import pytest
from direct_chain import DirectChain
from ledger_run import NAME, config

from dlx.ledger.errors import LedgerError, Reverted
from dlx.ledger.keys import account_of
from dlx.ledger.view import runs

KEY = b"\x07" * 32
FOUNDERS = [account_of(KEY)]
DAY = 86400
LIMITS = {
    "rounds": (1, 1_000_000),
    "stages": (1, 64),
    "min_replicas": (1, 3),
    "max_replicas": (2, 64),
    "quorum_numerator": (2, 3),
    "quorum_denominator": (2, 3),
    "min_round_time": (1, 2),
    "round_timeout": (1, 30 * DAY),
    "eviction_time": (1, 30 * DAY),
    "max_inner_steps": (1, 100_000),
    "start_time": (0, 2**36 - 1),
    "tokens_per_step": (1, 2**40 - 1),
    "horizon": (8, 1024),
    "bond": (0, 2**96 - 1),
}
WHOLE = {"rounds": 1_000_000, "max_replicas": 64, "max_inner_steps": 100_000}


@pytest.fixture(scope="module")
def chain():
    return DirectChain([KEY])


def takes(chain, **changes):
    wanted = config(**changes)
    try:
        chain.write(KEY, "createRun", astuple(wanted), NAME, [b"\1" * 32] * wanted.stages, FOUNDERS)
    except Reverted as error:
        assert error.name == "InvalidConfig"
        return False, runs.config_problem(wanted)
    return True, runs.config_problem(wanted)


@pytest.mark.parametrize("field", LIMITS)
def test_a_field_is_taken_within_its_limits_and_by_both(chain, field):
    low, high = LIMITS[field]
    for value in (low, high):
        assert takes(chain, **{field: value}) == (True, None)
    for value in {max(0, low - 1), high + 1} - {low}:
        taken, problem = takes(chain, **{field: value})
        assert not taken and problem, value


def test_a_horizon_is_a_power_of_two(chain):
    assert takes(chain, horizon=64) == (True, None)
    assert takes(chain, horizon=96) == (False, "horizon: expected a power of two, got 96")


def test_a_run_has_one_to_eight_founders(chain):
    accounts = [account_of(bytes([n]) * 32) for n in range(1, 10)]
    for founders, good in ((accounts[:8], True), (accounts, False), ([], False), (["0x" + "0" * 40], False)):
        wanted = config()
        assert (runs.founders_problem(founders) is None) == good
        try:
            chain.write(KEY, "createRun", astuple(wanted), NAME, [b"\1" * 32] * 2, founders)
        except Reverted as error:
            assert error.name == "InvalidConfig" and not good
        else:
            assert good


def test_a_manifest_is_a_hash(chain):
    assert takes(chain, manifest=bytes(32)) == (False, "manifest: expected a hash, got zeros")


def test_a_whole_run_counts_less_than_2_to_the_63_tokens(chain):
    most = (2**63 - 1) // (1_000_000 * 64 * 100_000)
    assert takes(chain, **WHOLE, tokens_per_step=most) == (True, None)
    taken, problem = takes(chain, **WHOLE, tokens_per_step=most + 1)
    assert not taken and "the whole run could count" in problem


def test_who_creates_a_run_reads_what_is_wrong_with_it_before_anything_is_sent(embedded):
    client = embedded.client(30)
    sent = client.rpc.number("eth_getTransactionCount", client.account, "latest")
    with pytest.raises(LedgerError, match="the ledger takes no such run: quorum_numerator: expected 2 to 3, got 1"):
        client.create_run(config(quorum_numerator=1), NAME, [b"\1" * 32] * 2)
    assert client.rpc.number("eth_getTransactionCount", client.account, "latest") == sent
