"""Members at home, behind real NAT, beside two that can be reached: real hosts, each in a network of its own."""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks import homes, namespaces
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[4]
PUBLIC = {"one": "52.20.1.1", "two": "52.20.2.1"}
pytestmark = pytest.mark.skipif(homes.lacking() is not None, reason=homes.lacking() or "")


@contextmanager
def members(ledger: Path, names: list[str]) -> Iterator[Callable[[], dict[str, Any]]]:
    """What each says of itself."""
    with ExitStack() as stack:
        for name in names:
            module = [sys.executable, "-m", "tests.node.daemon.membership.home_member", name, str(ledger)]
            with (ledger / f"{name}.log").open("wb") as log:
                process = stack.enter_context(
                    subprocess.Popen(homes.command(name, *module), cwd=ROOT, stdout=log, stderr=log)
                )
            stack.callback(process.kill)

        def said() -> dict[str, Any]:
            return {path.stem: json.loads(path.read_bytes()) for path in ledger.glob("*.said")}

        yield said


def registered(ledger: Path, name: str) -> list[str]:
    """Once a member has registered any."""
    found = until(lambda: json.loads((ledger / f"{name}.json").read_bytes()), lambda one: one["addresses"], PATIENCE)
    return list(found["addresses"])


def until(
    said: Callable[[], dict[str, Any]], shows: Callable[[dict[str, Any]], bool], seconds: float
) -> dict[str, Any]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = said()
        try:
            if shows(found):
                return found
        except KeyError:
            pass  # somebody has said nothing yet
        time.sleep(0.3)
    raise AssertionError(f"after {seconds:.0f} s: {json.dumps(said(), indent=1)}")


@pytest.mark.parametrize("kind", homes.KINDS)
def test_two_homes_behind_nat_reach_each_other_by_relay(tmp_path: Path, kind: str) -> None:
    """Both have the address 192.168.1.2:4650, and nothing is configured."""
    at_home = {"ann": ("52.20.3.1", kind), "bob": ("52.20.4.1", kind)}
    with homes.made(PUBLIC, at_home), members(tmp_path, [*PUBLIC, *at_home]) as said:
        found = until(said, lambda one: {*one["ann"]["fetched"]} == {"one", "two", "bob"}, 2 * PATIENCE)
        found = until(said, lambda one: all(s > 0 for name in at_home for s in one[name]["fetched"].values()), PATIENCE)
        by_relay = "by relay at /ip4/52.20."
        found = until(said, lambda one: all(one[name]["reachable"].startswith(by_relay) for name in at_home), PATIENCE)
        for name, (address, _) in at_home.items():
            ledger = registered(tmp_path, name)
            assert all("/p2p-circuit/p2p/" in text and text.startswith("/ip4/52.20.") for text in ledger)
            assert address not in " ".join(ledger) and homes.HOME not in " ".join(ledger)
        if kind == "symmetric":
            time.sleep(10)
            found = said()
            assert found["ann"]["peers"]["bob"] and found["bob"]["peers"]["ann"], "it stays with the relay"
        else:  # the two have opened a connection to each other
            until(said, lambda one: one["ann"]["peers"]["bob"] is one["bob"]["peers"]["ann"] is None, PATIENCE)
        assert found["ann"]["peers"]["one"] is None, "to who can be reached none is needed"
        for name, address in PUBLIC.items():
            assert found[name]["reachable"] == f"yes, at /ip4/{address}/tcp/4650"
        relayed = sum(found[name]["relayed"] for name in PUBLIC)
        assert relayed > 8_000_000 if kind == "symmetric" else relayed, "what was fetched before they had their own"


def test_two_members_of_one_home_connect_directly(tmp_path: Path) -> None:
    """Their router connects the home with itself in no way."""
    at_home = {"ann bob": ("52.20.3.1", "symmetric")}
    with homes.made(PUBLIC, at_home), members(tmp_path, [*PUBLIC]) as said:
        until(said, lambda one: all(one[name]["reachable"].startswith("yes") for name in PUBLIC), PATIENCE)
        assert all(registered(tmp_path, name) for name in PUBLIC), "else the two would register private addresses"
        with members(tmp_path, ["ann", "bob"]):
            until(said, lambda one: one["ann"]["peers"]["bob"] is one["bob"]["peers"]["ann"] is None, 2 * PATIENCE)
            for name in ("ann", "bob"):
                assert homes.HOME not in " ".join(registered(tmp_path, name)), "by no address that others know"


@pytest.mark.parametrize("by", homes.WAYS)
def test_a_router_that_is_asked_forwards_the_port_until_the_member_ends(tmp_path: Path, by: str) -> None:
    if shutil.which(homes.DAEMON) is None:
        pytest.skip(f"missing: {homes.DAEMON} (Debian: miniupnpd-nftables)")
    with homes.made(PUBLIC, {"ann": ("52.20.3.1", "symmetric")}), homes.forwarding("ann", tmp_path, by):
        with members(tmp_path, [*PUBLIC, "ann"]) as said:
            found = until(said, lambda one: one["ann"]["reachable"].startswith("yes"), PATIENCE)
            router = f"the router at {homes.HOME}.1 forwards port 4650 by {by}"
            assert found["ann"]["reachable"] == f"yes, at /ip4/52.20.3.1/tcp/4650; {router}"
            until(lambda: json.loads((tmp_path / "ann.json").read_bytes()), lambda one: one["addresses"], PATIENCE)
            (address,) = json.loads((tmp_path / "ann.json").read_bytes())["addresses"]
            assert address.startswith("/ip4/52.20.3.1/tcp/4650/p2p/")
            until(said, lambda one: {*one["one"]["peers"]} == {"two", "ann"}, PATIENCE)
            (tmp_path / "ann.end").touch()
            until(forwarded, lambda there: there == 0, PATIENCE)


def forwarded() -> Any:
    rules = namespaces.run(
        homes.command("ann-router", "nft", "list", "chain", "inet", "filter", "prerouting_miniupnpd")
    )
    return rules.count("dnat")


FAMILIES = {
    "four": "52.20.1.1",
    "six": "2a0f:0:1::1",
    "both": "52.20.3.1 2a0f:0:3::1",
    "too": "52.20.4.1 2a0f:0:4::1",
}


def test_members_with_ip4_ip6_or_both_reach_each_other(tmp_path: Path) -> None:
    """Those with one each by who has both."""
    with homes.made(FAMILIES, {}), members(tmp_path, [*FAMILIES]) as said:
        found = until(
            said, lambda one: all({*one[name]["peers"]} == {*FAMILIES} - {name} for name in FAMILIES), 3 * PATIENCE
        )
        assert found["four"]["peers"]["six"] and found["six"]["peers"]["four"], "a relay carries it"
        relayed = [peer for name in FAMILIES for peer in found[name]["peers"].values() if peer]
        assert len(relayed) == 2, "and nothing else"
        found = until(said, lambda one: all(one[name]["reachable"].startswith("yes") for name in FAMILIES), PATIENCE)
        until(said, lambda one: all(len(one[name]["fetched"]) == 3 for name in FAMILIES), PATIENCE)
        ledger = {name: json.loads((tmp_path / f"{name}.json").read_bytes())["addresses"] for name in FAMILIES}
        assert {text.split("/p2p/")[0] for text in ledger["both"]} == {
            "/ip4/52.20.3.1/tcp/4650", "/ip6/2a0f:0:3::1/tcp/4650",
        }  # fmt: skip
        assert any(text.startswith("/ip4/52.20.") and "/p2p-circuit/" in text for text in ledger["six"])
        assert len(ledger["four"]) == 1, "who has IPv4 takes no place at a relay for those who have not"
