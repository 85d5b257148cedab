"""`dlx-node campaign` as funders and members use it, on the real ledger: until there is work to pay for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlx.ledger.campaigns import ETH, Token
from dlx.ledger.client import LedgerClient
from dlx.ledger.keys import account_of
from dlx.node.home.errors import UsageFailure
from dlx.node.runs import campaigns
from tests.ledger.ledger_run import NAME, config
from tests.node.cli.test_cli import Chain
from tests.node.command import dlx


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("campaign") / "node"


@pytest.fixture(scope="module")
def chain(folder: Path) -> Iterator[Chain]:
    served = Chain(folder)
    dlx("init", "--datadir", folder, "--insecure-devnet")
    yield served
    served.process.kill()
    served.process.wait()


@pytest.fixture(scope="module")
def run(chain: Chain) -> str:
    """Of two stages and 40 rounds, which nobody has joined."""
    from dlx.ledger.deployment import fund

    key = b"\x31" * 32
    fund(chain.found["rpc_url"], account_of(key))
    client = LedgerClient(chain.found["rpc_url"], chain.found["ledger"], key)
    return "0x" + client.create_run(config(stages=2, rounds=40), NAME, [b"\x01" * 32, b"\x02" * 32]).hex()


def test_a_run_is_funded_by_several_and_says_what_became_of_it(chain: Chain, folder: Path, run: str) -> None:
    given = ["--datadir", folder]
    assert dlx("campaign", "show", *given).stdout == "no campaign pays for this run\n"
    options = ["--rounds", "16:", "--parts", "70,30", "--seal-refund", "20000 gwei", "--patience", "2"]
    made = json.loads(dlx("campaign", "create", "1.5 ETH", "--run", run, *options, *given, "--json").stdout)
    summary = made["summary"]
    assert (summary["campaign"], summary["state"], summary["rounds"]) == (0, "to come", [16, 40])
    assert (summary["funded"], summary["left"], summary["paid"], summary["unit"]) == ("1.5", "1.5", "0", "ETH")
    assert (made["parts"], made["window"], made["patience"]) == (["70", "30"], campaigns.WINDOW, 172_800)
    assert made["seal_refund"] == "0.00002"

    assert "2.5" in dlx("campaign", "fund", 0, "1 ETH", *given).stdout
    made = json.loads(dlx("campaign", "show", 0, *given, "--json").stdout)
    assert [pot["pot"] for pot in made["pots"]] == ["1.25", "1.25"] and made["pots"][0]["earned"] is None
    assert made["funder"]["deposited"] == "2.5" and made["accounts"] == []
    shown = dlx("campaign", "show", 0, *given).stdout
    assert "rounds 16 to 39" in shown and "stage 0: 70%, stage 1: 30%" in shown and "FUNDER" in shown
    (line,) = json.loads(dlx("campaign", "show", *given, "--json").stdout)["campaigns"]
    assert line["funded"] == "2.5"
    assert "CLAIMABLE" in dlx("campaign", "show", *given).stdout

    assert "nothing of this run's campaigns is claimable" in dlx("campaign", "claim", *given).stdout
    assert json.loads(dlx("campaign", "claim", 0, *given, "--json").stdout)["claims"] == []
    assert "to take back now" in dlx("campaign", "refund", 0, *given, code=1).stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["create", "5 USD"], 2, "expected a number and its unit (ETH, gwei or wei)"),
        (["create", "0 ETH"], 2, "more than nothing"),
        (["create", "1 ETH", "--rounds", "8:32"], 2, "multiples of 16"),
        (["create", "1 ETH", "--rounds", "16:64"], 2, "the run has 40 rounds"),
        (["create", "1 ETH", "--rounds", "32:32"], 2, "no epoch is left"),
        (["create", "1 ETH", "--rounds", "soon"], 2, "expected FROM:TO"),
        (["create", "1 ETH", "--parts", "50,49"], 2, "100 in all"),
        (["create", "1 ETH", "--parts", "50,x"], 2, "100 in all"),
        (["create", "1 ETH", "--patience", "0.5"], 2, "--patience: expected 1 to 1461 days"),
        (["create", "1 ETH", "--window", "5000"], 2, "expected 0 to 4096 rounds"),
        (["create", "1 ETH", "--token", "0x12"], 2, "40 hex digits"),
        (["claim", "--account", "0x" + 20 * "aB"], 2, "has a wrong checksum"),
        (["create", "1", "--token", "0x" + "11" * 20], 1, "another answer than expected"),
        (["show", "7"], 1, "UnknownCampaign(7)"),
        (["fund", "7", "1 ETH"], 1, "UnknownCampaign(7)"),
        (["show", "--campaigns", "0x" + "11" * 20], 3, "no code at"),
        (["show", "--campaigns", ""], 2, "no contract of campaigns is set"),
        (["create", "1 ETH", "--rpc-url", "http://127.0.0.1:9"], 3, "start `chain` there"),
    ],
)
def test_what_cannot_be_is_one_line(
    chain: Chain, folder: Path, run: str, arguments: list[str], code: int, said: str
) -> None:
    done = dlx("campaign", *arguments, "--datadir", folder, code=code)
    assert said in done.stderr and len(done.stderr.splitlines()) == 1


def test_amounts_are_exact() -> None:
    coin = Token("0x12", "USDC", 6)
    ether = Token(ETH, "ETH", 18)
    assert campaigns.amount_of("0.000000000000000001 ETH", ether) == campaigns.amount_of("1 wei", ether) == 1
    assert campaigns.amount_of("250 USDC", coin) == campaigns.amount_of("250", coin) == 250_000_000
    for wrong in ("0.0000001 USDC", "1 EUR", "-1 USDC", "1e3 USDC", "", "1 ETH", "9" * 31):
        with pytest.raises(UsageFailure):
            campaigns.amount_of(wrong, coin)
    with pytest.raises(UsageFailure):
        campaigns.amount_of("1", ether)
    assert [campaigns.amount_text(amount, coin) for amount in (0, 1, 1_500_000, 10**12)] == [
        "0", "0.000001", "1.5", "1,000,000",
    ]  # fmt: skip


def test_parts_come_to_a_whole() -> None:
    for stages in (1, 3, 7, 64):
        assert sum(campaigns.parts(None, stages)) == 10_000
    assert campaigns.parts("12.5,87.5", 2) == (1250, 8750)
    assert campaigns.parts("0,100", 2) == (0, 10_000)
