"""A run driven by the tests: its members, its seals, and the comparison of the view with the contract."""

import random
from collections.abc import Sequence
from typing import Any

from dlx.ledger.abi import static_fields
from dlx.ledger.client import LedgerClient, Receipt
from dlx.ledger.events import Event, Sealed
from dlx.ledger.keys import sign
from dlx.ledger.typed import Contribution, Plan, RunConfig, Seal, SignedContribution, summarise
from dlx.ledger.verify import verify_seal
from dlx.ledger.view import RunView

TOKENS = 1024
NAME = "a-run"
PLAN = Plan(4, 0, 10)


def config(**changes: Any) -> RunConfig:
    values: dict[str, Any] = {
        "manifest": random.randbytes(32),
        "rounds": 50,
        "stages": 2,
        "min_replicas": 2,
        "max_replicas": 3,
        "quorum_numerator": 2,
        "quorum_denominator": 3,
        "round_timeout": 2,
        "eviction_time": 2,
        "tokens_per_step": TOKENS,
    }
    return RunConfig(**{**values, **changes})


def contribution(run: bytes, round: int, stage: int, replica: int, account: str, **changes: Any) -> Contribution:
    kinds = static_fields(Contribution)
    values: dict[str, Any] = {name: random.randbytes(32) for name, kind in kinds if kind == "bytes32"}
    values |= {"payload_size": 5000, "plan": PLAN.hash(), "inner_steps": 10, "tokens": 10 * TOKENS, "segments": 1}
    values |= {"loss": random.randrange(10**7), "compute_ms": 1000, "exchange_ms": 10, "flags": 0}
    values |= {"run": run, "round": round, "stage": stage, "replica": replica, "account": account}
    return Contribution(**{**values, **changes})


class Run:
    """A run on a chain, followed event by event."""

    def __init__(self, clients: Sequence[LedgerClient], settings: RunConfig) -> None:
        self.clients = {client.account: client for client in clients}
        self.creator = clients[0]
        genesis = [bytes([1 + s]) * 32 for s in range(settings.stages)]
        self.id = self.creator.create_run(settings, NAME, genesis)
        self.view = RunView(self.id)
        self.feed = self.creator.feed(self.id)
        self.events: list[Event] = []
        self.poll()

    def poll(self) -> None:
        """Applies what is new; every seal must pass the audit on the view right before it."""
        update = self.creator.poll(self.feed)
        assert not update.reorg
        for event in update.events:
            if isinstance(event, Sealed):
                assert verify_seal(self.view, event, self.creator.domain) == []
                stored = self.creator.read("sealDigest", self.id, event.round, event.stage)
                assert stored == (event.digest,)
            self.view.apply(event)
            self.events.append(event)

    def check(self) -> None:
        """The view's answers equal the contract's."""
        self.poll()
        view, read = self.view, self.creator.read
        for stage in range(view.config.stages):
            assert read("nextRound", self.id, stage) == (view.next_round(stage),)
            version = view.next_round(stage)
            assert read("heads", self.id, stage) == (view.weights(stage, version), view.momentum(stage, version))
            assert read("quorumOf", self.id, stage) == (len(view.voters(stage)), view.quorum(stage))
            for replica in range(view.config.max_replicas):
                holder = view.holder(replica, stage) or "0x" + "0" * 40
                assert read("holderOf", self.id, replica, stage) == (holder,)
        for account in self.clients:
            holds, *slot = read("slotOf", self.id, account)
            assert view.slot_of(account) == (tuple(slot) if holds else None)
            votes = holds and account in view.voters(slot[1])
            assert read("isActive", self.id, account) == (votes,)
        is_open, round, opened_at = read("openRound", self.id)
        assert (view.open_round, view.opened_at) == ((round, opened_at) if is_open else (None, None))

    def records(self, stage: int, accounts: Sequence[str]) -> list[SignedContribution]:
        """Signed contributions of these holders to the stage's next round, ascending."""
        found = []
        for account in sorted(accounts, key=lambda a: int(a, 16)):
            replica, _ = self.view.slot_of(account) or (0, 0)
            made = contribution(self.id, self.view.next_round(stage), stage, replica, account)
            found.append(made.sign(self.creator.domain, self.clients[account]._key))
        return found

    def seal(self, stage: int, records: Sequence[SignedContribution], **changes: Any) -> Seal:
        """A correct seal of the stage's next round but for the changes."""
        round, summary = self.view.next_round(stage), summarise(records)
        before = self.view.weights(stage, round), self.view.momentum(stage, round)
        after = (random.randbytes(32), random.randbytes(32)) if records else before
        values: dict[str, Any] = {
            "run": self.id,
            "stage": stage,
            "round": round,
            "previous_weights": before[0],
            "next_weights": after[0],
            "previous_momentum": before[1],
            "next_momentum": after[1],
            "contributions_root": summary.root,
            "contributions_hash": summary.hash,
            "count": summary.count,
            "total_tokens": summary.total_tokens,
            "mean_loss": summary.mean_loss,
            "plan_level": PLAN.level,
            "plan_rank": PLAN.rank,
            "plan_inner_steps": PLAN.inner_steps,
            "multipliers": (32768,) * len(records),
        }
        return Seal(**{**values, **changes})

    def sign(self, seal: Seal, signers: Sequence[str]) -> dict[str, bytes]:
        digest = seal.digest(self.creator.domain)
        return {account: sign(digest, self.clients[account]._key) for account in signers}

    def send(
        self,
        stage: int,
        accounts: Sequence[str],
        signers: Sequence[str],
        by: LedgerClient | None = None,
        **changes: Any,
    ) -> Receipt:
        """Seals the stage's next round with these contributors and signers."""
        records = self.records(stage, accounts)
        seal = self.seal(stage, records, **changes)
        return (by or self.creator).seal(seal, records, self.sign(seal, signers))
