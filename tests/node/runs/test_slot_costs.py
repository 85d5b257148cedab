"""What a slot of a run takes is said before anybody joins: of the ledger's run as it is, and of this machine."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from dlx.ledger.client import LedgerClient, most_gas, usual_seal_gas
from dlx.ledger.errors import LedgerUnavailable
from dlx.ledger.events import Sealed
from dlx.ledger.index.rebuild import RunReplay
from dlx.ledger.transactions.fees import ETH, GWEI, Limits
from dlx.ledger.typed import Outcome, Plan
from dlx.ledger.view.run_view import RunView
from dlx.node.audit.sources.blobs import Attempt, Folder, Source
from dlx.node.home.formatting import size
from dlx.node.home.settings import Settings
from dlx.node.runs import slot_costs
from dlx.node.runs.slot_costs import GasPrice, gas_in_words, gas_of
from dlx.node.runs.upkeep import stage_sizes
from dlx.training.balance.costs import costs
from dlx.training.recipe.manifest import manifest_hash
from dlx.training.recipe.recipe import Adaptive, Evaluation
from tests.history_builder import History, Network
from tests.node.command import dlx
from tests.node.stated_run import RUN, STEPS, SilentRpc, StatedRun

pytest_plugins = ["tests.history_builder"]
GAS = json.loads((Path(__file__).parents[3] / "contracts" / "gas.json").read_text())
PRICE = GasPrice(now=2 * GWEI, cap=5 * GWEI)
ALL = {0: STEPS, 1: STEPS}


def view_of(stated: StatedRun) -> RunView:
    replay = RunReplay(stated.index, RUN)
    replay.advance()
    return replay.view


@pytest.fixture
def stated() -> StatedRun:
    """Of two replicas, with rounds of 10,020 seconds."""
    found = StatedRun(rounds=100)
    found.join(0)
    found.join(1)
    found.open()
    for round in range(30):
        found.seal(round, ALL)
    return found


@pytest.mark.parametrize("entries", [2, 8, 32, 64])
def test_the_gas_of_a_seal_is_about_what_was_measured(entries: int) -> None:
    for kind in ("", ", momentum", ", a quarter signs its record only"):
        assert usual_seal_gas(entries) == pytest.approx(GAS[f"seal {entries}{kind}"], rel=0.06)


def test_a_day_costs_a_members_part_of_its_stages_seals_and_of_what_the_last_stage_evaluates(
    stated: StatedRun,
) -> None:
    view = view_of(stated)
    assert (slot_costs.at_work(view), slot_costs.round_seconds(view)) == (2, 10_020)
    found = gas_of(view, None, PRICE, 600.0)
    assert found.day_wei == pytest.approx(144 * usual_seal_gas(2) / 2 * 2 * GWEI)
    assert found.joining_wei == 1_500_000 * 5 * GWEI
    evaluates = gas_of(view, Evaluation(every=10, samples=8, replicas=1), PRICE, 600.0)
    assert (evaluates.day_wei or 0) - (found.day_wei or 0) == pytest.approx(144 * most_gas("evaluate") / 20 * 2 * GWEI)
    assert gas_of(view, None, PRICE, None).day_wei is None


def test_gas_is_said_with_what_it_is_per(stated: StatedRun) -> None:
    view = view_of(stated)
    said = gas_in_words(gas_of(view, None, PRICE, 600.0), "", chain_id=10)
    assert said == (
        "about 0.012 ETH a day at 2 gwei and 10 min a round; to join, an account has to hold up to 0.0075 ETH; "
        "a rollup's own fee comes on top; a node pays at most 0.05 ETH a day (daily_budget)"
    )
    assert "about 0.000083 ETH a round at 2 gwei;" in gas_in_words(gas_of(view, None, PRICE, None), "", chain_id=10)
    dear = gas_of(view, None, PRICE._replace(now=20 * GWEI), 600.0)
    assert (dear.day_wei or 0) > 0.05 * ETH
    assert gas_in_words(dear, "", 10).endswith("; a node stops at 0.05 ETH a day: raise daily_budget")
    assert "daily_budget" not in gas_in_words(dear, "", 10, budget=0)
    assert gas_in_words(None, "names a tip above max_fee", 10) == "not known: names a tip above max_fee"
    assert "faucet" in gas_in_words(dear, "", Settings().chain_id)


def test_a_chain_node_that_names_no_price_hides_nothing_else(stated: StatedRun) -> None:
    price = slot_costs.gas_price(SilentRpc("http://127.0.0.1:9"), Limits())
    found = slot_costs.take(view_of(stated), None, price, 600.0)
    assert (
        found.gas is None and found.seconds == 600.0 and found.gas_unknown == str(LedgerUnavailable("nobody answers"))
    )


def test_the_rounds_that_are_left_are_of_the_plan_that_the_run_has_now(honest_history: History) -> None:
    manifest, stated = honest_history.manifest, StatedRun(rounds=100, max_inner_steps=50)
    adapts = replace(manifest, rounds=100, adaptive=Adaptive(inner_steps=200, min_inner_steps=2, max_inner_steps=50))
    stated.join(0)
    stated.join(1)
    stated.open()
    view = view_of(stated)
    assert slot_costs.rounds_left(adapts, view) == 50, "of 4 steps"
    for round in range(6):  # a seal plans the round after the next, with this delay
        for stage in range(2):
            stated.block += 500  # late enough for a round without a contribution
            outcome = Outcome.empty(4 if round < 2 else 20, Plan(4, 0, 20))
            stated.tell(partial(Sealed, RUN, stage, round, bytes([round, stage]) * 16, outcome, (), b""))
    view = view_of(stated)
    assert slot_costs.inner_steps(adapts, view) == 20
    assert slot_costs.rounds_left(adapts, view) == 6, "200 steps less 2 rounds of 4 and 4 of 20"
    fixed = replace(manifest, rounds=100, adaptive=None)
    assert slot_costs.rounds_left(fixed, view) == 94 and slot_costs.inner_steps(fixed, view) == 4


def test_sizes_without_torch_are_those_of_the_plan(honest_history: History) -> None:
    for cost in costs(honest_history.manifest):
        found = stage_sizes(honest_history.manifest, cost.stage)
        assert found == (cost.parameters, cost.optimiser, cost.payload, cost.pipes)


@pytest.fixture(scope="module")
def going(history_network: Network, tmp_path_factory: pytest.TempPathFactory) -> tuple[History, list[str], Path]:
    """A run with rounds to come, the options by which a stranger finds it, and a folder of such a one."""
    history = history_network.run("going", rounds=1000, bond=50_000_000)
    reach = ["--run", history.run.hex()[:12], "--rpc-url", history.rpc_url, "--ledger", history.ledger]
    folder = tmp_path_factory.mktemp("stranger") / "node"
    dlx("init", "--datadir", folder, "--insecure-devnet")
    return history, reach, folder


def test_a_slot_of_a_run_is_planned_for_this_machine(going: tuple[History, list[str], Path]) -> None:
    history, reach, folder = going
    shutil.copytree(history.blobs, folder / "blobs", dirs_exist_ok=True)
    asked = ["run", "plan", *reach, "--datadir", folder, "--link", "10Mbit/s"]
    said = dlx(*asked)
    lines = {line.partition("  ")[0]: line.partition("  ")[2].strip() for line in said.stdout.splitlines()}
    found = json.loads(dlx(*asked, "--json").stdout)
    left = found["rounds"]
    assert left == found["run"]["rounds_left"] == 997
    assert f" at best for {left:,} rounds that are left, of " in lines["time"]
    assert "; the newest rounds took " in lines["time"] and " of 2 replicas, at an assumed speed " in lines["time"]
    worst = max(found["stages"], key=lambda stage: stage["memory"]["host"])
    assert lines["memory"].startswith(f"up to {size(worst['memory']['host'])} for stage {worst['stage']}; ")
    assert lines["memory"].endswith(" are free here") and " a day" in lines["traffic"]
    assert lines["bond"] == "0.05 ETH, which a slot locks and only exact evidence takes"
    assert "faucet" in lines["gas"] and found["run"]["gas"]["day_wei"] > 0
    assert (found["run"]["run"], found["run"]["bond_wei"]) == ("0x" + history.run.hex(), 5 * 10**16)
    assert found["conditions"]["replicas"] == 2, "that are at work, of room for 4"
    assert "stages" not in lines and not any(word in said.stderr for word in ("warning: adaptive", "under [timing]"))

    run = ["run", "show", *reach[1:], "--datadir", folder]
    shown = json.loads(dlx(*run, "--json").stdout)["slot"]
    assert shown["costs"]["disk"] == max(stage["checks"]["disk"] for stage in found["stages"])
    assert shown["costs"]["sent"] == found["seconds"]["sent"] and shown["bytes_a_day"] > 0
    words = dlx(*run).stdout
    assert f"disk     up to {size(shown['costs']['disk'])} at the run's end" in words and "run plan --run 0x" in words


def test_a_manifest_that_nobody_gives_is_one_line(going: tuple[History, list[str], Path], tmp_path: Path) -> None:
    _, reach, _ = going
    said = dlx("run", "plan", *reach, code=1, HOME=str(tmp_path)).stderr
    assert "the run's manifest cannot be had: " in said.splitlines()[-1]
    shown = dlx("run", "show", *reach[1:], HOME=str(tmp_path)).stdout
    assert "memory, disk  not known here, without the run's manifest: `" in shown


def test_a_manifest_that_peers_have_is_fetched(
    going: tuple[History, list[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Peers are pretended by a folder, of which nothing but the manifest is wanted."""
    history, reach, _ = going
    wanted = []

    class Peer(Folder):
        def fetch(self, digest: bytes, limit: int, into: Path) -> Attempt:
            wanted.append(digest.hex())
            return super().fetch(digest, limit, into)

    @contextmanager
    def peers(client: LedgerClient, run: bytes, *given: object) -> Iterator[list[Source]]:
        assert run == history.run
        yield [Peer(history.blobs, own=False)]

    monkeypatch.setattr("dlx.node.audit.sources.search.open_sources", peers)
    found = json.loads(dlx("run", "plan", *reach, "--json", HOME=str(tmp_path)).stdout)
    assert found["run"]["rounds_left"] == 997 and wanted == [manifest_hash(history.manifest).hex()]


def test_a_plan_is_of_a_draft_or_of_a_run(tmp_path: Path) -> None:
    for given in ([], ["--manifest", tmp_path / "run.toml", "--run", "abcdef"]):
        assert "name one of --manifest" in dlx("run", "plan", *given, code=2).stderr
