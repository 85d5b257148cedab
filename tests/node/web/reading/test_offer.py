"""What a run is, how fast it goes and how to take part, as plain data."""

import re
from contextlib import closing

import pytest

from dlx.node.home.join_line import decode
from dlx.node.runs.slot_costs import GasPrice, take
from dlx.node.web.reading.offer import offer, subject
from dlx.node.web.reading.reader import Reader, RunPage
from tests.history_builder import History, Network
from tests.node.stated_run import RUN, STEPS, TOKENS, SilentClient, StatedRun
from tests.node.web.reading.test_page import shown, text

pytest_plugins = ["tests.history_builder"]
ALL = {0: STEPS, 1: STEPS}
URL = "http://10.0.0.9:8545"


def page_of(stated: StatedRun, *urls: str) -> RunPage:
    return Reader(SilentClient(stated), (), "--datadir x", rpc_url=urls).run_page(RUN)


def test_speed_and_time_left_are_of_the_newest_rounds() -> None:
    stated = StatedRun(rounds=50)
    stated.join(0)
    stated.join(1)
    stated.open()
    assert page_of(stated).pace is None
    stated.seal(0, ALL)
    assert page_of(stated).pace is None, "nobody knows how long the first took"
    for round in range(1, 40):
        stated.seal(round, ALL)
    found = page_of(stated).pace
    seconds = 2 * 501 * 10  # of a round here, which two stages seal
    assert found.seconds_left == 10 * seconds
    assert found.tokens_per_second == pytest.approx(2 * TOKENS / seconds)
    assert "Time left 27.8 h" in text(shown(page_of(stated)))


def test_an_open_run_has_a_line_that_joins_it() -> None:
    stated = StatedRun(replicas=3)
    stated.join(0)
    found = page_of(stated, URL).offer
    assert (found.free, found.slots, found.invited) == (4, 6, False)
    program, verb, line, *_, keys = found.command.partition(" && ")[0].split()
    assert (program, verb, keys) == ("dlx-node", "join", "--insecure-devnet"), "its chain is the embedded one"
    assert (decode(line).run, decode(line).rpc_url) == (RUN, (URL,))
    said = shown(page_of(stated, URL))
    assert "4 of 6 slots are free." in re.sub(r" +\.", ".", text(said)) and found.command in text(said)
    assert page_of(stated).offer.command.partition(" && ")[0].endswith(" --rpc-url URL"), (
        "where no chain node is known that others can ask"
    )


def test_on_another_chain_a_newcomer_has_a_password() -> None:
    view = Reader(SilentClient(StatedRun()), (), "")
    with view._open(RUN) as opened:
        taken = take(opened.view, None, "nobody answers", None)
        assert (
            offer(opened.view, 1, SilentClient(StatedRun()).ledger, (URL,), taken).command.find(
                "--password-file FILE &&"
            )
            > 0
        )


def test_who_is_not_invited_has_no_line() -> None:
    stated = StatedRun(invited=True, bond=5 * 10**17)
    found = page_of(stated, URL).offer
    assert (found.invited, found.command) == (True, "")
    said = text(shown(page_of(stated, URL)))
    assert "Only who is invited may join" in said and "a slot locks a bond of 0.5 ETH" in said


def test_a_finished_run_takes_nobody() -> None:
    stated = StatedRun(rounds=2)
    stated.join(0)
    stated.join(1)
    stated.open()
    for round in range(2):
        stated.seal(round, ALL)
    page = page_of(stated, URL)
    assert page.offer.command == "" and page.pace.seconds_left is None
    assert page.offer.takes == []
    assert "The run has ended" in text(shown(page)) and "Time left" not in text(shown(page))


def test_what_is_trained_is_in_the_manifests_words(honest_history: History) -> None:
    reader = Reader(honest_history.client(), (honest_history.blobs,), "--datadir x")
    with reader._open(honest_history.run) as opened:
        manifest = opened.manifest
    what = subject(manifest, None)
    assert (what.model, what.base, what.frozen) == (manifest.model.config["model_type"], "", 0)
    assert what.parameters > 1000 and what.data == "text" and what.codec.startswith(manifest.codec.name)
    said = text(shown(reader.run_page(honest_history.run)))
    first_screen = said[: said.index(" Loss rounds")]
    for word in ("Model", "Parameters", "Data", "Licence", "Optimiser", "Codec", "Take part", "Audit this run"):
        assert word in first_screen, word
    reader.close()


def test_what_a_slot_takes_stands_beside_the_line_that_joins(history_network: Network) -> None:
    page = page_of(StatedRun())
    assert dict(page.offer.takes)["memory, disk"].startswith("not known here, without the run's manifest")
    history = history_network.run("offered", rounds=50)
    with closing(Reader(history.client(), (history.blobs,), "--datadir x")) as reader:
        found = dict((page := reader.run_page(history.run)).offer.takes)
        said = text(shown(page))
        assert f" run plan --run 0x{history.run.hex()} --datadir x" in said
        for name, value in found.items():
            assert f"{name.capitalize()} {value}" in said
        assert found["disk"].startswith("up to ") and " each way a round, with 2 replicas; " in found["traffic"]
        assert found["gas"] == "none of worth: the faucet of an embedded chain pays"
        with reader._open(history.run) as opened:
            taken = take(opened.view, opened.manifest, GasPrice(now=10**6, cap=10**6), 2.0)
            gas = dict(offer(opened.view, 10, history.ledger, (), taken).takes)["gas"]
            assert (
                " ETH a day at 0.001 gwei and 2 s a round; " in gas and "at most 0.05 ETH a day (daily_budget)" in gas
            )


def test_a_price_of_gas_is_not_asked_for_at_each_look(honest_history: History) -> None:
    with closing(Reader(honest_history.client(), (), "--datadir x")) as reader:
        first = reader._gas_price()
        assert isinstance(first, GasPrice) and reader._gas_price() is first
