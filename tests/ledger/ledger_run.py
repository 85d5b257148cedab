"""A run driven by the tests: its members, its seals, and the comparison of the view with the contract."""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple
from itertools import product
from typing import Any

from dlx.ledger.abi import static_fields
from dlx.ledger.client import LedgerClient, Receipt
from dlx.ledger.events import Convicted, Event, Sealed
from dlx.ledger.keys import sign
from dlx.ledger.typed import (
    FALSE,
    Contribution,
    Outcome,
    Plan,
    RunConfig,
    Seal,
    SignedContribution,
    SignedVerdict,
    Verdict,
    entries,
)
from dlx.ledger.view import bitmaps, pay, seals
from dlx.ledger.view.recount import verify_conviction, verify_seal
from dlx.ledger.view.run_state import Standing
from dlx.ledger.view.run_view import RunView
from dlx.ledger.view.weights import EPOCH_ROUNDS

NAME = "a-run"
STEPS = 10
PLAN = Plan(4, 0, STEPS)


def config(**changes: Any) -> RunConfig:
    values: dict[str, Any] = {
        "manifest": random.randbytes(32),
        "rounds": 50,
        "stages": 2,
        "min_replicas": 2,
        "max_replicas": 3,
        "quorum_numerator": 2,
        "quorum_denominator": 3,
        "horizon": 8,
        "min_round_time": 1,
        "round_timeout": 2,
        "eviction_time": 2,
        "max_inner_steps": 2 * STEPS,
        "start_time": 0,
        "tokens_per_step": 1024,
        "invited": False,
        "bond": 0,
        "outer": bytes(32),
    }
    return RunConfig(**{**values, **changes})


def contribution(run: bytes, round: int, stage: int, replica: int, account: str, **changes: Any) -> Contribution:
    kinds = static_fields(Contribution)
    values: dict[str, Any] = {name: random.randbytes(32) for name, kind in kinds if kind == "bytes32"}
    values |= {"payload_size": 5000, "plan": PLAN.hash(), "inner_steps": STEPS, "segments": 1}
    values |= {"loss": random.randrange(10**7), "compute_ms": 1000, "exchange_ms": 10, "kept": 0, "flags": 0}
    values |= {"run": run, "round": round, "stage": stage, "replica": replica, "account": account}
    return Contribution(**{**values, **changes})


Work = Mapping[int, SignedContribution]  # by replica


def work(view: RunView, stage: int, makers: Mapping[int, str], keys: Mapping[str, bytes], **changes: Any) -> Work:
    """Contributions to the stage's next round, for each replica by the account that makes it."""
    round = view.next_round(stage)
    made = {r: contribution(view.run, round, stage, r, account, **changes) for r, account in makers.items()}
    return {replica: one.sign(view.domain, keys[one.account]) for replica, one in sorted(made.items())}


def seal_of(view: RunView, stage: int, counted: Work, **changes: Any) -> Seal:
    """A correct seal of the stage's next round but for the changes."""
    outcome = Outcome.empty(STEPS, PLAN)
    if counted:
        weights, momentum, weights_root, momentum_root = (random.randbytes(32) for _ in range(4))
        outcome = Outcome(weights, momentum, weights_root, momentum_root, STEPS, PLAN)
    records = tuple(counted[replica].contribution.record(32768) for replica in sorted(counted))
    values = {"run": view.run, "stage": stage, "round": view.next_round(stage), "previous": view.head(stage)}
    return Seal(**{**values, "outcome": outcome, "records": records, **changes})


def signatures_of(
    view: RunView,
    seal: Seal,
    counted: Work,
    signers: Sequence[str],
    keys: Mapping[str, bytes],
    founder: str | None = None,
) -> bytes:
    """The seal's entries: these accounts sign it, makers that are not among them their records, and a founder."""
    digest = seal.digest(view.domain)
    makers = {signed.contribution.account: replica for replica, signed in counted.items()}
    places = {account: makers[account] for account in signers if account in makers}
    places |= {account: (view.slot_of(account) or (0, 0))[0] for account in signers if account not in makers}
    by_seal = {account: (replica, sign(digest, keys[account])) for account, replica in places.items()}
    by_record = {replica: counted[replica].signature for account, replica in makers.items() if account not in signers}
    return entries(by_seal, by_record, None if founder is None else sign(digest, keys[founder]))


def verdicts_of(
    view: RunView,
    stage: int,
    round: int,
    account: str,
    signers: Sequence[str],
    keys: Mapping[str, bytes],
    **changes: Any,
) -> list[SignedVerdict]:
    """That these accounts find its contribution false, each with a report of its own; one that a seal counts, if any
    does."""
    counted = view.sealed.get((stage, round))
    made = dict(zip(counted.accounts, counted.records, strict=True)) if counted else {}
    statement = made[account].statement if account in made else random.randbytes(32)
    values: dict[str, Any] = {"run": view.run, "stage": stage, "round": round, "account": account}
    values |= {"statement": statement, "finding": FALSE, **changes}
    return [Verdict(**{"report": random.randbytes(32), **values}).sign(view.domain, keys[one]) for one in signers]


class Run:
    """A run on a chain, followed event by event. Its founder, the first client, signs every seal as well."""

    def __init__(self, clients: Sequence[LedgerClient], settings: RunConfig) -> None:
        self.clients = {client.account: client for client in clients}
        self.keys = {client.account: client._key for client in clients if client._key is not None}
        self.creator = clients[0]
        genesis = [bytes([1 + s]) * 32 for s in range(settings.stages)]
        self.id = self.creator.create_run(settings, NAME, genesis)
        self.view = RunView(self.id, self.creator.domain)
        self.feed = self.creator.feed(self.id)
        self.events: list[Event] = []
        self.poll()

    def poll(self) -> None:
        """Applies what is new; every seal must pass the audit on the view right before it."""
        update = self.creator.poll(self.feed)
        assert not update.reorg
        for event in update.events:
            if isinstance(event, Sealed):
                assert verify_seal(self.view, event) == []
            if isinstance(event, Convicted):
                assert verify_conviction(self.view, event) == []
            self.view.apply(event)
            self.events.append(event)

    def check(self) -> None:
        """The view's answers equal the contract's."""
        self.poll()
        check(self.view, lambda function, *args: self.creator.read(function, self.id, *args), self.clients)

    def makers(self, stage: int, accounts: Sequence[str]) -> dict[int, str]:
        by_replica = {}
        for account in accounts:
            slot = self.view.slot_of(account)
            assert slot is not None
            by_replica[slot[0]] = account
        return by_replica

    def opens_at(self, stage: int, accounts: Sequence[str]) -> int:
        """From when on these accounts' work may be sealed with the founder's signature."""
        return self.view.opens_at(stage, accounts, self.creator.head().time, founder=True)

    def send(
        self,
        stage: int,
        accounts: Sequence[str],
        signers: Sequence[str],
        by: LedgerClient | None = None,
        founder: bool = True,
        **changes: Any,
    ) -> Receipt:
        """Seals the stage's next round with these contributors and signers, and mostly the founder."""
        counted = work(self.view, stage, self.makers(stage, accounts), self.keys)
        seal = seal_of(self.view, stage, counted, **changes)
        patron = self.creator.account if founder else None
        return (by or self.creator).seal(seal, signatures_of(self.view, seal, counted, signers, self.keys, patron))


def check(view: RunView, read: Any, accounts: Iterable[str], now: int | None = None) -> None:
    """The view's answers equal the contract's; `read` asks a view of the ledger about the run, and, where this is
    given, at this time."""
    for stage in range(view.config.stages):
        assert read("nextRound", stage) == (view.next_round(stage),)
        assert read("head", stage) == (view.head(stage),)
        at = view.stages[stage]
        activity, words = read("stageOf", stage)
        *plain, ever_left = activity
        expected = [at.slots, at.changed, at.held, at.non_empty, at.empties, at.epoch, at.epoch_seals]
        assert plain == expected and (ever_left or not at.absent.verdicts_part)
        lanes = [(words[lane // 8] >> 32 * (lane % 8)) & 0xFFFFFFFF for lane in range(64)]
        for lane in bitmaps.members(at.held):
            word = at.lanes.weights[lane] | at.lanes.pay[lane] << 16 | at.lanes.ages[lane] << 28
            assert lanes[lane] == word, (stage, lane, hex(lanes[lane]), hex(word))
        if now is not None:
            pool = seals.absent_now(view, stage, now)
            held = sum(at.lanes.weights)
            assert read("weightsOf", stage) == (
                held, pool.for_seals, pool.for_verdicts, view.vacuum(stage, now)
            )  # fmt: skip
        for replica in range(view.config.max_replicas):
            assert read("holderOf", replica, stage) == (view.member_at(replica, stage) or "0x" + "0" * 40,)
        for epoch in range(view.round // EPOCH_ROUNDS + 1):
            if pay.is_over(view, epoch):
                assert read("sealsIn", stage, epoch) == (view.seals_in(stage, epoch),)
    for account in accounts:
        _check_account(view, read, account, now)
    is_open, round, opened_at = read("openRound")
    assert (view.open_round, view.opened_at) == ((round, opened_at) if is_open else (None, None))


def _check_account(view: RunView, read: Any, account: str, now: int | None) -> None:
    member = view.member(account)
    expected = (
        member.holds,
        member.asked.value,
        member.replica,
        member.stage,
        member.lane,
        member.former_replica,
        member.changed_round,
        member.since,
        member.mark,
        member.asked_seal,
        member.asked_at,
        member.left_at,
        member.weight,
    )
    assert read("memberOf", account) == (expected,)
    if now is not None:
        assert read("weightOf", account) == (view.weight_of(account, now),)
    listed = view.enlistments.get(account)
    ((site, until),) = read("enlistedOf", account)
    assert (int(site, 16), until) == ((0, 0) if listed is None else (int(listed.site, 16), listed.until))
    standing = view.standings.get(account, Standing())
    assert read("standingOf", account) == ((standing.stages, standing.convicted),)
    assert read("isFounder", account) == (view.is_founder(account),)
    stays = view.stays.get(account, ())
    assert [tuple(stay) for stay in read("staysOf", account)[0]] == [astuple(stay) for stay in stays]
    for stage, stay, epoch in product(
        range(view.config.stages), range(len(stays) + 2), range(view.round // EPOCH_ROUNDS + 1)
    ):
        if pay.is_over(view, epoch):
            assert read("earnedIn", stage, epoch, account, stay) == (view.earned_in(stage, epoch, account, stay),)
