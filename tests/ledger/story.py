"""A run told event by event, without a chain."""

from dataclasses import replace
from typing import Any

from ledger_run import config, seal_of, signatures_of, verdicts_of, work

from dlx.ledger.abi import ascending
from dlx.ledger.events import Convicted, Event, EventPosition, Joined, Left, RunCreated, RunOpened, Sealed
from dlx.ledger.keys import account_of
from dlx.ledger.typed import Domain, conviction_entries
from dlx.ledger.view.recount import verify_seal
from dlx.ledger.view.run_view import RunView

RUN = b"\x10" * 32
DOMAIN = Domain(31337, account_of(b"\x99" * 32))
KEYS = {account_of(bytes([i]) * 32): bytes([i]) * 32 for i in range(1, 41)}
ACCOUNTS = ascending(list(KEYS))
FOUNDER = ACCOUNTS[-1]  # who holds no slot
GENESIS = (b"\x01" * 32, b"\x02" * 32)
MIN, TIMEOUT, EVICTION = 10, 60, 30


class Story:
    """Accounts by their index; the founder signs every seal unless it is said not to."""

    def __init__(self, **changes: Any) -> None:
        self.view, self.block, self.time = RunView(RUN, DOMAIN), 0, 1000
        self.told: list[Event] = []
        times = {"min_round_time": MIN, "round_timeout": TIMEOUT, "eviction_time": EVICTION}
        settings = config(**{"rounds": 1000, **times, **changes})
        self.tell(RunCreated, ACCOUNTS[0], settings, "story", GENESIS[: settings.stages], (FOUNDER,))

    @classmethod
    def staffed(cls, members: int, **changes: Any) -> "Story":
        """One stage with so many members, each in its own replica, in round 0."""
        story = cls(**{"stages": 1, "max_replicas": min(64, members + 8), "min_replicas": members, **changes})
        for index in range(members):
            story.join(index, index, 0)
        story.open()
        return story

    def at(self) -> EventPosition:
        return EventPosition(self.block, b"\x33" * 32, 0, b"\x44" * 32, self.time)

    def tell(self, kind: Any, *values: Any) -> None:
        self.apply(kind(RUN, *values, self.at()))

    def apply(self, event: Event) -> None:
        self.block += 1
        self.told.append(event)
        self.view.apply(event)

    def join(self, index: int, replica: int, stage: int) -> None:
        self.tell(Joined, ACCOUNTS[index], replica, stage)

    def leave(self, index: int) -> None:
        slot = self.view.slot_of(ACCOUNTS[index])
        assert slot is not None
        self.tell(Left, ACCOUNTS[index], *slot)
        self.time += 1  # in the same second nobody can take the slot

    def open(self) -> None:
        self.tell(RunOpened, self.time)

    def sealed(self, stage: int, counted: Any, signers: Any, **changes: Any) -> Sealed:
        """A correct seal of the stage's next round but for the changes. `counted`: accounts, or for those without a
        slot {replica: account}; `wait`: seconds since the round opened; `made`: changes of the contributions,
        `steps`: of each account's; `founder`: who signs as one."""
        view, wait, made = self.view, changes.pop("wait", MIN), changes.pop("made", {})
        steps, founder = changes.pop("steps", {}), changes.pop("founder", FOUNDER)
        assert view.opened_at is not None
        self.time = max(self.time, view.opened_at + wait)
        if not isinstance(counted, dict):
            slots = {index: view.slot_of(ACCOUNTS[index]) for index in counted}
            counted = {slot[0]: index for index, slot in slots.items() if slot is not None}
        makers = {replica: ACCOUNTS[index] for replica, index in counted.items()}
        contributions = work(view, stage, makers, KEYS, **made)
        for replica, index in counted.items():
            if index in steps:
                one = replace(contributions[replica].contribution, inner_steps=steps[index])
                contributions = {**contributions, replica: one.sign(DOMAIN, KEYS[one.account])}
        seal = seal_of(view, stage, contributions, **changes)
        signatures = signatures_of(view, seal, contributions, names(signers), KEYS, founder)
        digest = seal.digest(DOMAIN)
        return Sealed(RUN, stage, seal.round, digest, seal.outcome, seal.records, signatures, self.at())

    def seal(self, stage: int, counted: Any, signers: Any, **changes: Any) -> None:
        """Applies one that the audit passes."""
        event = self.sealed(stage, counted, signers, **changes)
        problems = verify_seal(self.view, event)
        assert problems == []
        self.apply(event)

    def work(self, rounds: int, counted: Any, **changes: Any) -> None:
        """So many rounds of a run of one stage in which these work and sign."""
        for _ in range(rounds):
            self.seal(0, counted, counted, **changes)

    def convicted(self, account: int, signers: Any, round: int = 0, stage: int = 0, **changes: Any) -> Convicted:
        """The event of what these sign, whether or not it is enough."""
        verdicts = verdicts_of(self.view, stage, round, ACCOUNTS[account], names(signers), KEYS, **changes)
        about = verdicts[0].verdict
        return Convicted(
            RUN, about.account, stage, round, about.statement, conviction_entries(verdicts, DOMAIN), self.at()
        )

    def weights(self, *indices: int, stage: int = 0) -> list[int]:
        """Of the members with a slot."""
        lanes = self.view.stages[stage].lanes.weights
        return [lanes[self.view.accounts[ACCOUNTS[index]].lane] for index in indices]


def names(indices: Any) -> tuple[str, ...]:
    return tuple(ACCOUNTS[index] for index in indices)
