"""Who has which slot: what members of a run of two stages do, and what the ledger would take after each of it."""

from __future__ import annotations

from random import Random
from typing import Any

from eth_hash.auto import keccak

from dlx.ledger.abi import checksum
from dlx.ledger.events import (
    Accused,
    Answered,
    Dealt,
    EventPosition,
    Evicted,
    Joined,
    Left,
    Moved,
    RunCreated,
    RunOpened,
    Sealed,
)
from dlx.ledger.keys import account_of
from dlx.ledger.typed import Domain, Outcome, Plan, Record, RunConfig
from dlx.ledger.view.run_view import RunView
from dlx.ledger.view.runs import counted_since_asked, was_counted_lately

REPLICAS, ACCOUNTS, EVENTS = 3, 7, 90
SEEDS = 16, 174  # whose runs together tell most rules apart
TIMEOUT, EVICTION = 60, 40
ANY = 65535  # stage


def content() -> dict[str, Any]:
    """What belongs into the file."""
    stories = [_Story(1, 0, b"wait"), *(_Story(2, seed) for seed in SEEDS)]
    for number, story in enumerate(stories):
        (story.chance if number else story.wait)()
    terms = {"max_replicas": REPLICAS, "min_replicas": 1, "round_timeout": TIMEOUT, "eviction_time": EVICTION}
    return terms | {"runs": [{"stages": len(one.stages), "events": one.events} for one in stories]}


class _Story:
    """Accounts are numbers; the last one only founds the run."""

    def __init__(self, stages: int, seed: int, word: bytes = b"seal") -> None:
        self.stages, self.word = range(stages), word
        terms: dict[str, Any] = dict(
            manifest=bytes(31) + b"\1", rounds=1000, stages=stages, min_replicas=1, max_replicas=REPLICAS,
            quorum_numerator=5, quorum_denominator=8, horizon=8, min_round_time=1, round_timeout=TIMEOUT,
            eviction_time=EVICTION, max_inner_steps=10, start_time=0, tokens_per_step=1, invited=False, bond=0,
            outer=bytes(32),
        )  # fmt: skip
        self.random, self.time, self.events = Random(seed), 1000, list[dict[str, Any]]()
        self.accounts = [account_of(bytes(31) + bytes([1 + number])) for number in range(ACCOUNTS + 1)]
        self.number = {account: number for number, account in enumerate(self.accounts)}
        self.founder = self.accounts[ACCOUNTS]
        self.view = RunView(bytes(32), Domain(31337, checksum(bytes(range(20)))))
        config, genesis = RunConfig(**terms), (bytes(31) + b"\2",) * stages
        self.tell(RunCreated, self.founder, config, "slots", genesis, (self.founder,))

    def tell(self, kind: Any, *said: Any) -> None:
        self.view.apply(kind(self.view.run, *said, EventPosition(1, bytes(32), 0, bytes(32), self.time)))

    def chance(self) -> None:
        """It chooses among what the ledger would take."""
        acts = [self.join, self.move] * 4 + [self.leave] * 2 + [self.ask, self.answer, self.evict, self.deal] * 2
        while len(self.events) < EVENTS:
            self.time = self.random.choice(self.moments())
            act = self.seal if self.random.random() < 0.35 else self.random.choice(acts)
            if (done := act()) is not None:
                self.note(done)

    def wait(self) -> None:
        """What takes long. A replica is complete from round 1 on and never counted; an answer wins it time. And a slot
        waits for who was evicted, though a lower one is free."""
        idle, lively = self.accounts[1:3]
        self.note(self.placed(self.accounts[0], ANY, (0, 0)))
        self.time += 1
        self.note(self.sealed(0, [0]))
        self.note(self.placed(idle, ANY, (1, 0)))
        self.note(self.placed(lively, ANY, (2, 0)))
        self.seals(12)
        self.note(self.asked(self.founder, idle))
        self.note(self.answered(idle))
        self.seals(17)
        self.note(self.evicted(idle))
        self.time += TIMEOUT + 1
        self.note(self.asked(self.accounts[0], lively))
        self.time += EVICTION
        self.note(self.evicted(lively))
        self.time += 1
        self.note(self.placed(lively, ANY, (2, 0)))

    def seals(self, count: int) -> None:
        for _ in range(count):
            self.time += TIMEOUT
            self.note(self.sealed(0, [0, 2]))

    def note(self, done: dict[str, Any]) -> None:
        self.events.append({"time": self.time} | done | {"then": self.state()})

    def moments(self) -> list[int]:
        """A little later, or when something may begin or end."""
        view, soon = self.view, [self.time + more for more in (0, 1, 1, 20)]
        ends = [view.round_opened_at + TIMEOUT, *(one.until for one in view.returns.values())]
        asked = [view.member(one).asked_at for one in self.held()]
        ends += [time + term for time in asked if time for term in (EVICTION, TIMEOUT)]
        if self.random.random() < 0.02:
            ends = [view.round_opened_at + 32 * TIMEOUT]
        return soon + [end + more for end in ends for more in (0, 1) if end >= self.time]

    def state(self) -> dict[str, Any]:
        """What the ledger would take in this second, each digit a replica or an account."""
        view, now = self.view, self.time
        held, left = self.held(), [one for one in view.accounts if not view.member(one).holds]

        def those(may: Any, among: Any = held) -> str:
            return "".join(sorted(self.digit(account) for account in among if may(account)))

        free = [view.free_slot(stage, self.founder, now) for stage in self.stages]
        makers = (
            "".join(self.digit(view.maker(replica, stage)) for replica in range(REPLICAS)) for stage in self.stages
        )
        found = {
            "makers": " ".join(makers),
            "free": "".join("-" if replica is None else str(replica) for replica in free),
            "forfeit": those(view.is_forfeit),
            "asked_by_members": those(lambda one: view.may_accuse(held[0], one, now)),
            "asked_by_anyone": those(lambda one: view.may_accuse(self.founder, one, now)),
            "may_answer": those(view.should_answer),
            "may_return": those(self.may_return, left),
            "stays_in_its_stage": those(lambda one: view.changed_now(view.member(one)), left),
            "evicted": those(lambda one: view.may_evict(one, now)),
            "dealt": "".join(str(replica) for replica in range(REPLICAS) if view.may_deal(replica)),
        }
        return {what: value for what, value in found.items() if value}

    def digit(self, account: str | None) -> str:
        return "-" if account is None else str(self.number[account])

    def some(self, accounts: Any) -> str | None:
        found = [*accounts]
        return self.random.choice(found) if found else None

    def held(self) -> list[str]:
        return [one for one in self.accounts if self.view.member(one).holds]

    # ---- what somebody does, None where nobody can

    def join(self) -> dict[str, Any] | None:
        view = self.view
        account = self.some(one for one in self.accounts[:ACCOUNTS] if not view.member(one).holds)
        asked = self.random.choice((*self.stages, ANY))
        if account is None:
            return None
        member, slot = view.member(account), self.slot_for(account, asked)
        if slot is None or (slot[1] != member.stage and view.changed_now(member)):
            return None
        return self.placed(account, asked, slot)

    def placed(self, account: str, asked: int, slot: tuple[int, int]) -> dict[str, Any]:
        opened = self.view.round_opened_at
        self.tell(Joined, account, *slot)
        self.open_first(opened)
        return {"join": self.number[account], "stage": asked, "slot": slot}

    def slot_for(self, account: str, asked: int) -> tuple[int, int] | None:
        view, own = self.view, (self.view.member(account).replica, self.view.member(account).stage)
        if asked in (ANY, own[1]) and self.may_return(account):
            return own
        stages = self.stages if asked == ANY else (asked,)
        found = [(view.free_slot(stage, account, self.time), stage) for stage in stages]
        return min(((replica, stage) for replica, stage in found if replica is not None), default=None)

    def may_return(self, account: str) -> bool:
        own = self.view.member(account).replica, self.view.member(account).stage
        waits = self.view.returns.get(own)
        return (
            waits is not None
            and (waits.account, own in self.view.by_slot) == (account, False)
            and (waits.until >= self.time)
        )

    def open_first(self, before: int) -> None:
        if not before and self.view.due:
            self.tell(RunOpened, self.time)

    def leave(self) -> dict[str, Any] | None:
        account = self.some(self.held())
        if account is None or self.random.random() < 0.5:
            return None
        self.tell(Left, account, *(self.view.slot_of(account) or ()))
        return {"leave": self.number[account]}

    def move(self) -> dict[str, Any] | None:
        account = self.some(one for one in self.held() if self.view.may_move(one, self.time))
        if account is None:
            return None
        replica, stage = self.view.slot_of(account) or (0, 0)
        to, opened = self.view.free_slot(stage, account, self.time), self.view.round_opened_at
        self.tell(Moved, account, replica, to, stage)
        self.open_first(opened)
        return {"move": self.number[account], "to": to}

    def ask(self) -> dict[str, Any] | None:
        view = self.view
        by = str(self.some((*self.held(), self.founder)))
        account = self.some(one for one in self.held() if view.may_accuse(by, one, self.time))
        return None if account is None else self.asked(by, account)

    def asked(self, by: str, account: str) -> dict[str, Any]:
        forfeit = self.view.is_forfeit(account)
        self.tell(Accused, account, by, forfeit)
        return {"accuse": self.number[account], "forfeit": forfeit}

    def answer(self) -> dict[str, Any] | None:
        account = self.some(one for one in self.held() if self.view.should_answer(one))
        return None if account is None or self.random.random() < 0.5 else self.answered(account)

    def answered(self, account: str) -> dict[str, Any]:
        member = self.view.member(account)
        self.tell(Answered, account)
        was_counted = counted_since_asked(self.view, member)
        return {"answer": self.number[account], "counted_since": was_counted}

    def evict(self) -> dict[str, Any] | None:
        account = self.some(one for one in self.held() if self.view.may_evict(one, self.time))
        return None if account is None else self.evicted(account)

    def evicted(self, account: str) -> dict[str, Any]:
        until = self.time + EVICTION if was_counted_lately(self.view, self.view.member(account)) else 0
        self.tell(Evicted, account, *(self.view.slot_of(account) or ()), until)
        return {"evict": self.number[account], "until": until}

    def deal(self) -> dict[str, Any] | None:
        replica = next((one for one in range(REPLICAS) if self.view.may_deal(one)), None)
        if replica is None:
            return None
        swaps = self.view.deal_of(replica)
        for stage, other in swaps:
            self.tell(Dealt, stage, replica, other)
        return {"deal": replica, "swaps": [[stage, other] for stage, other in swaps]}

    def seal(self) -> dict[str, Any] | None:
        """The account 2 works seldom."""
        view, round = self.view, self.view.open_round
        if round is None or not view.round_opened_at:
            return None
        stage = next(stage for stage in self.stages if view.next_round(stage) == round)
        makers = {replica: view.maker(replica, stage) for replica in range(REPLICAS)}
        counted = [
            replica
            for replica, maker in makers.items()
            if maker is not None and self.random.random() < (0.02 if self.number[maker] == 2 else 0.9)
        ]
        if self.random.random() < 0.15:
            counted = []
        accounts = [str(makers[replica]) for replica in counted]
        self.time = max(self.time, view.round_opened_at + 1)
        if not counted or self.time < view.opens_at(stage, accounts, self.time, True):
            self.time = max(self.time, view.round_opened_at + TIMEOUT)
        return self.sealed(stage, counted)

    def sealed(self, stage: int, counted: list[int]) -> dict[str, Any]:
        round = self.view.round
        digest = keccak(self.word + b" %d %d" % (round, stage))
        records = tuple(Record(replica, digest, 0, 1, 0, 32768) for replica in counted)
        some, none = digest, bytes(32)
        hashes = (some, none, some, none) if records else (none,) * 4
        outcome = Outcome(*hashes, 10, Plan(4, 0, 10))
        self.tell(Sealed, stage, round, digest, outcome, records, bytes([192]) + bytes(65))
        return {"seal": stage, "digest": digest.hex(), "counted": "".join(map(str, counted))}
