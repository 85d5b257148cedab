"""How an account stands, in words, through the life of a stage."""

from collections.abc import Sequence

import pytest

from dlx.ledger.events import Accused, Event, EventPosition, Evicted, Joined, RunCreated, RunOpened, Sealed
from dlx.ledger.keys import account_of
from dlx.ledger.typed import Domain
from dlx.ledger.view.run_view import RunView
from dlx.node.daemon.membership.eligibility import full, notices, weight
from tests.ledger.ledger_run import config, seal_of, signatures_of, work

KEYS = {account_of(key): key for key in (bytes([n]) * 32 for n in (1, 2, 3))}
FIRST, SECOND, THIRD = KEYS
RUN, START = b"\x01" * 32, 1_800_000_000


class Chain:
    """One stage, of which two replicas are enough. FIRST is the founder."""

    def __init__(
        self,
        rounds: int = 100,
        slots: Sequence[tuple[str, int, int]] = ((FIRST, 0, 0), (SECOND, 1, 0)),
        horizon: int = 8,
    ) -> None:
        self.now = START
        self.view = RunView(RUN, Domain(31337, f"0x{9:040x}"))
        stages, replicas = 1 + max(stage for _, _, stage in slots), 1 + max(replica for _, replica, _ in slots)
        terms = config(
            stages=stages,
            rounds=rounds,
            min_replicas=replicas,
            max_replicas=3,
            round_timeout=100,
            eviction_time=60,
            horizon=horizon,
        )
        self.apply(RunCreated(RUN, FIRST, terms, "a-run", (bytes([4]) * 32,) * stages, (FIRST,), self.at()))
        for account, replica, stage in slots:
            self.apply(Joined(RUN, account, replica, stage, self.at()))
        self.apply(RunOpened(RUN, self.now, self.at(0)))

    def at(self, seconds: int = 5) -> EventPosition:
        self.now += seconds
        return EventPosition(self.now, bytes(32), 0, bytes(32), self.now)

    def apply(self, event: Event) -> None:
        self.view.apply(event)

    def seal(self, *accounts: str, stage: int = 0) -> None:
        view = self.view
        makers = {replica: account for account in accounts for replica, _ in [view.slot_of(account)]}  # type: ignore[misc]
        counted = work(view, stage, makers, KEYS)
        seal = seal_of(view, stage, counted)
        signed = signatures_of(view, seal, counted, (FIRST, SECOND), KEYS)
        digest = seal.digest(view.domain)
        self.apply(Sealed(RUN, stage, seal.round, digest, seal.outcome, seal.records, signed, self.at(200)))


@pytest.fixture
def chain() -> Chain:
    return Chain()


def test_a_member_hears_its_weight_and_what_founders_hold(chain: Chain) -> None:
    def said(account: str) -> str | None:
        return weight(chain.view, account, chain.now)

    by_work = "of stage 0's, by work that seals counted lately"
    assert said(FIRST) == f"0% {by_work}; founders hold 100% until work has earned it"
    assert said(THIRD) is None
    for _ in range(40):
        chain.seal(FIRST, SECOND)
    chain.apply(Joined(RUN, THIRD, 2, 0, chain.at()))
    assert (said(FIRST), said(THIRD)) == (f"50% {by_work}", f"0% {by_work}")
    chain.seal(FIRST, SECOND, THIRD)
    assert said(THIRD) == f"4% {by_work}"


def test_accused_and_evicted_members_hear_what_keeps_their_slot(chain: Chain) -> None:
    chain.seal(FIRST, SECOND)
    assert notices(chain.view, SECOND, chain.now) == ()
    chain.apply(Accused(RUN, SECOND, FIRST, False, chain.at(101)))
    (notice,) = notices(chain.view, SECOND, chain.now)
    assert notice.startswith("accused: an answer, or being counted, keeps the slot, until ")
    chain.apply(Evicted(RUN, SECOND, 1, 0, chain.now + 120, chain.at(60)))
    (notice,) = notices(chain.view, SECOND, chain.now)
    assert notice.startswith("the slot of stage 0 in replica 1 waits for this node until ")
    assert notice.endswith(": it was evicted, or a founder named it")
    assert notices(chain.view, SECOND, chain.now + 1000) == ()


def test_who_is_never_counted_hears_that_the_slot_is_anybodys(chain: Chain) -> None:
    chain.seal(FIRST, SECOND)
    while not chain.view.may_deal(1):  # what it would do is drawn
        chain.seal(FIRST)  # draws that lead nowhere may go on until the slot is forfeit, too
    found = notices(chain.view, SECOND, chain.now)
    assert not any("may deal" in one for one in found), "no honest node deals a replica of one stage"
    for _ in range(24):
        chain.seal(FIRST)
    assert any(
        one.startswith("forfeit: anybody may ask for this slot") for one in notices(chain.view, SECOND, chain.now)
    )


def test_who_finds_no_slot_hears_whether_one_may_come_free(chain: Chain) -> None:
    chain.apply(Joined(RUN, THIRD, 2, 0, chain.at()))
    assert full(chain.view, None, chain.now) == "the run is full: all its 3 slots are taken"
    chain.seal(FIRST, SECOND)
    chain.apply(Accused(RUN, SECOND, FIRST, False, chain.at(101)))
    chain.apply(Evicted(RUN, SECOND, 1, 0, chain.now + 120, chain.at(60)))
    kept = full(chain.view, 0, chain.now)
    assert kept.startswith("stage 0 is full: all its 3 slots are taken (1 until ")
    assert kept.endswith("by whom they wait for)")
    assert full(chain.view, 0, chain.now + 121) == "stage 0 is full: all its 3 slots are taken"


def test_a_finished_run_can_cost_nobody_a_slot() -> None:
    chain = Chain(rounds=1)
    chain.seal(FIRST)
    assert chain.view.finished
    assert notices(chain.view, SECOND, chain.now) == ()


def test_a_founder_hears_how_to_free_the_slots_of_a_run_that_stands_still() -> None:
    chain = Chain(slots=[(THIRD, 0, 0), (SECOND, 0, 1)], horizon=128)
    for _ in range(31):
        chain.seal()
        chain.seal(SECOND, stage=1)
    assert notices(chain.view, FIRST, chain.now) == ()
    chain.seal()
    (notice,) = notices(chain.view, FIRST, chain.now)
    assert notice.startswith("stage 0 stands still. Who holds it up may sit in another stage")
    assert f"dlx-node run dismiss ACCOUNT --run 0x{RUN.hex()}` frees a slot" in notice
    assert notice.endswith(f"You may dismiss of stage 0 {THIRD}; of stage 1 {SECOND}")
    assert not any("stands still" in one for one in notices(chain.view, SECOND, chain.now)), "it is no founder"
    chain.seal(SECOND, stage=1)
    chain.seal(THIRD)
    assert notices(chain.view, FIRST, chain.now) == ()
