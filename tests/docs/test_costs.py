"""What README says that a member pays is what nodes pay unless told otherwise, and what was measured."""

import json

import pytest

from dlx.ledger.client import most_gas
from dlx.node.home.settings import Settings
from dlx.training.recipe.recipe import Audit
from tests.docs.sentences import ROOT

README = (ROOT / "README.md").read_text()
GAS = json.loads((ROOT / "contracts" / "gas.json").read_text())


def test_readme_says_for_how_long_money_waits() -> None:
    sources = ROOT / "contracts" / "src"
    for source, constant, words in (
        ("Campaigns.sol", "CLAIM_TIME = 180 days;", "claim it within 180 days of the campaign's end"),
        ("Bonds.sol", "UNBONDING = 7 days;", "withdraw it seven days after the slot"),
    ):
        assert constant in (sources / source).read_text() and words in README
    assert Audit().window == 20 and "drawn in the last 20 rounds" in README


def test_readme_says_what_a_member_pays() -> None:
    said = {2: "about 40,000 with 2 replicas", 8: "16,000 to 17,000 with 8"}
    for replicas, words in said.items():
        assert words in README
        part = int(words.removeprefix("about ").split()[0].replace(",", ""))
        assert part == pytest.approx(GAS[f"seal {replicas}"] / replicas, rel=0.03)
    assert 16_500 < GAS["seal 8, a quarter signs its record only"] / 8 < 17_000
    assert f"up to {most_gas('register') + most_gas('joinRun'):,} units of gas" in README
    assert f"at most {Settings().daily_budget} ETH in 24 hours" in README
    assert Settings().data_cache == 64 * 10**9 and "64 GB of training data come on top (`data_cache`)" in README
    assert Settings().relay == 4 * 10**6 and "relays up to 4 MB/s for those that they cannot (`relay`)" in README
    assert Settings().disk_floor == 1 << 30 and "1 GiB of the disk stays free" in README
