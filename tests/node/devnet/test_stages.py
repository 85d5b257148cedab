"""What each node of a site in one machine is told."""

import dataclasses

from dlx.node.devnet.stages import environment
from dlx.node.home import config
from dlx.node.home.datadir import DataDir
from dlx.node.home.settings import Settings


def test_a_node_of_each_stage_has_the_given_settings_and_ports_of_its_own(tmp_path) -> None:
    given = Settings(
        ledger="0x" + "11" * 20,
        listen=("/ip4/0.0.0.0/tcp/4650", "/ip6/::/tcp/0"),
        announce=("/dns4/site.example/tcp/4650",),
        site="lyon",
        http_port=8000,
        compile=True,
        threads=3,
        disk_quota=10**9,
        daily_budget=0.0,
    )
    found = config.load(DataDir(tmp_path), {}, environment(given, 2))
    expected = dataclasses.replace(
        given,
        listen=("/ip4/0.0.0.0/tcp/4652", "/ip6/::/tcp/0"),
        announce=("/dns4/site.example/tcp/4652",),
        http_port=8002,
    )
    assert found == expected
    assert config.load(DataDir(tmp_path), {}, environment(Settings(), 0)) == Settings()
