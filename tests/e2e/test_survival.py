"""Real nodes and a real chain that are killed: what the ledger says afterwards, and what the nodes do next."""

import os
import signal
import time
from collections.abc import Iterator

import pytest

from dlx.ledger.events import Accused, Evicted, Joined
from tests.e2e.devnets import STAGES, Timing, Watched, create

TIMING = Timing(grace=2, proposal=1, timeout=5, eviction=5)
OUTAGE = 12.0  # seconds: longer than it takes to evict a silent member
ROUNDS = 1000  # more than any test sees; with many more the first steps of the warm-up would change no float32

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """A devnet that all tests here share: each leaves it, as it found it, with every slot at work."""
    devnet = create(tmp_path_factory.mktemp("survival") / "devnet", ROUNDS, steps=20, timing=TIMING)
    try:
        devnet.start()
        yield Watched(devnet)
    finally:
        devnet.stop()


def test_a_killed_node_is_evicted_and_comes_back(watched: Watched) -> None:
    watched.until_all_count()
    replica = 1 if watched.member_at(replica=1, stage=1) != "node-0" else 0  # the founder's node has to run
    victim = watched.member_at(replica=replica, stage=1)
    before = watched.until_inside_a_round(victim)
    others = watched.read().members().keys() - {before.account}
    survivors = {watched.view.member_at(1 - replica, stage) for stage in range(STAGES)}

    watched.kill(victim)
    assert before.stage is not None
    evicted = watched.until("the eviction", lambda: watched.read() and watched.of(Evicted, before.account))[0]
    accused = watched.of(Accused, before.account)[-1]
    assert accused.at.time + TIMING.eviction <= evicted.at.time <= evicted.return_until and accused.by in others

    at = watched.sealed_rounds()
    watched.until("rounds of the other replica alone", lambda: watched.sealed_rounds() >= at + 3)
    for stage in range(STAGES):
        alone = watched.view.sealed[stage, at + 2]
        assert set(alone.accounts) <= survivors and alone.count == 1

    watched.devnet.start_node(victim)
    joined = watched.until(
        "the node's slot again",
        lambda: (
            watched.read() and [one for one in watched.of(Joined, before.account) if one.at.block > evicted.at.block]
        ),
    )[0]
    assert (joined.replica, joined.stage) == (before.replica, before.stage)
    back = watched.until_all_count(after=at + 3)
    assert before.account in watched.view.sealed[joined.stage, back].accounts
    watched.until("the node to see that it counts", lambda: counts(watched, victim, back))
    assert not others & {event.account for event in watched.of(Evicted)}
    watched.assert_sealed_once()


def test_a_killed_training_process_is_started_again_and_its_node_is_counted(watched: Watched) -> None:
    watched.until_all_count()
    name = watched.member_at(replica=0, stage=1)
    before = watched.until_inside_a_round(name)
    killed = watched.trainer(name)
    os.kill(killed, signal.SIGKILL)
    watched.until("another training process", lambda: watched.trainer(name) != killed)
    back = watched.until_all_count(after=watched.sealed_rounds())
    assert before.account in watched.view.sealed[1, back].accounts
    assert not watched.of(Evicted, before.account)
    watched.assert_sealed_once()


def test_an_outage_of_the_chain_stops_nobody(watched: Watched) -> None:
    watched.until_all_count(after=watched.sealed_rounds())
    before = watched.until_inside_a_round(watched.member_at(replica=0, stage=0))
    evicted, sealed = len(watched.of(Evicted)), len(watched.seals())

    watched.devnet.kill("chain")
    ends = time.monotonic() + OUTAGE

    def all_wait() -> bool:
        statuses = watched.statuses().values()
        return len(statuses) == len(watched.devnet.names) and all(
            not status.ledger.reachable
            and str(status.waiting_for).startswith("the chain, which does not answer")  # not what others fail to do
            and any(reason.startswith("the chain does not answer") for reason in status.not_ready)
            and status.step == status.steps
            for status in statuses
        )

    watched.until("the end of the outage, and everybody waiting", lambda: time.monotonic() >= ends and all_wait())

    watched.devnet.start_chain()
    at = watched.until_all_count(after=(before.round or 0) + 1)
    watched.until("everybody counted again", lambda: all(counts(watched, name, at) for name in watched.devnet.names))
    assert len(watched.seals()) > sealed and len(watched.of(Evicted)) == evicted
    watched.assert_sealed_once()


def test_nodes_that_start_while_their_chain_is_down_wait_for_it(watched: Watched) -> None:
    at = watched.until_all_count(after=watched.sealed_rounds())
    for name in (*watched.devnet.names, "chain"):
        watched.devnet.kill(name)
    for name in watched.devnet.names:
        watched.devnet.start_node(name)

    def all_wait() -> bool:
        statuses = watched.statuses().values()
        return len(statuses) == len(watched.devnet.names) and all(
            str(status.waiting_for).startswith("the chain, which does not answer") for status in statuses
        )

    watched.until("everybody up and waiting", all_wait)
    watched.devnet.start_chain()
    back = watched.until_all_count(after=at + 2)
    watched.until("everybody counted again", lambda: all(counts(watched, name, back) for name in watched.devnet.names))
    watched.assert_sealed_once()


def counts(watched: Watched, name: str, round: int) -> bool:
    """Whether the node itself says that it was counted in `round` or later."""
    status = watched.devnet.status(name)
    return status is not None and (status.last_counted_round or -1) >= round and not status.not_ready
