"""A run in one process: real round machines and real signatures over a fake network, trainer and ledger.

The fake network loses, repeats and reorders as a random generator says; the fake ledger keeps the contract's rules for
seals and emits the real events; training gives bytes that depend on (account, round) alone.
"""

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dlx.ledger import events as chain
from dlx.ledger.events import EventPosition
from dlx.ledger.typed import Contribution, Domain, Plan, RunConfig, Seal, account_of, encode_records, sign
from dlx.ledger.view import RunView
from dlx.node.round import actions as a
from dlx.node.round import events as e
from dlx.node.round.machine import RoundMachine
from dlx.node.round.plans import finished, plan_of, seals_needed
from dlx.node.round.rules import OuterResult, Rules, base_version
from dlx.training.outer.policy import Measured
from dlx.training.slot.segments import segments_in

DOMAIN = Domain(31337, account_of(b"\x09" * 32))
RUN = hashlib.sha256(b"run").digest()
START = 1_800_000_000.0
PAYLOAD_SIZE = 500


def digest(*parts: object) -> bytes:
    return hashlib.sha256(repr(parts).encode()).digest()


def make_rules(rounds: int = 4, stages: int = 2, delay: int = 1, **changes: Any) -> Rules:
    values = dict(
        domain=DOMAIN, run=RUN, stages=stages, rounds=rounds, delay=delay, tokens_per_step=64, plan=Plan(4, 0, 5),
        codec="int4", adaptive=None, policy="mean", max_payload_sizes=({0: 1000},) * stages, straggler_grace=8,
        proposal_timeout=3, round_timeout=12, eviction_time=10, confirmations=0,
    )  # fmt: skip
    return Rules(**{**values, **changes})


@dataclass
class Member:
    key: bytes
    machine: RoundMachine
    alive: bool = True
    training: tuple[int, float] | None = None
    pipes: dict[str, str] = field(default_factory=dict)  # link -> neighbour's account
    payloads: set[bytes] = field(default_factory=set)
    rejected: list[str] = field(default_factory=list)
    evidence: int = 0
    behind: float = 0.0  # seconds by which its reckoning of the chain's time lags
    trained: list[int] = field(default_factory=list)

    @property
    def account(self) -> str:
        return self.machine.account


class Simulation:
    """`step()` moves time on by a tenth of a second; `random` decides about faults."""

    def __init__(
        self,
        rules: Rules,
        replicas: int,
        seed: int,
        loss: float = 0.0,
        train_seconds: float = 1.0,
        genesis: tuple[bytes, ...] | None = None,
    ) -> None:
        self.rules, self.random, self.loss, self.train_seconds = rules, random.Random(seed), loss, train_seconds
        self.now, self.block = START, 10
        self.ledger_up = True
        self.view = RunView(RUN)
        self.kept = RunView(RUN, seals_needed(rules))  # what a running node has of it
        self.seals: dict[tuple[int, int], bytes] = {}
        config = RunConfig(
            bytes(32), rules.rounds, rules.stages, replicas, replicas + 2, 2, 3, int(rules.round_timeout),
            int(rules.eviction_time), rules.tokens_per_step,
        )  # fmt: skip
        genesis = genesis or tuple(digest("genesis", s) for s in range(rules.stages))
        keys = [digest("key", i) for i in range(replicas * rules.stages)]
        self.apply(chain.RunCreated(RUN, account_of(keys[0]), config, "a-run", genesis, self.at()))
        slots = [(r, s) for r in range(replicas) for s in range(rules.stages)]
        for key, (replica, stage) in zip(keys, slots, strict=True):
            self.apply(chain.Joined(RUN, account_of(key), replica, stage, self.at()))
        self.apply(chain.RoundOpened(RUN, 0, int(self.now), self.at()))
        self.members = {
            account_of(key): Member(key, RoundMachine(rules, account_of(key), stage, self.kept.copy()))
            for key, (_, stage) in zip(keys, slots, strict=True)
        }
        self.mail: list[tuple[float, Callable[[], None]]] = []
        for account in self.members:
            self.connect(account)

    # ---- driving ----

    def step(self) -> None:
        self.now += 0.1
        if int(self.now * 10) % 10 == 0 and self.ledger_up:
            self.block += 1
        due = [mail for mail in self.mail if mail[0] <= self.now]
        self.mail = [mail for mail in self.mail if mail[0] > self.now]
        self.random.shuffle(due)
        for _, deliver in due:
            deliver()
        for member in self.alive():
            if self.ledger_up and self.random.random() < 0.3:
                self.feed(member, e.LedgerSeen(self.kept.copy(), self.block))
            if member.training and member.training[1] <= self.now:
                self.finish(member)
            self.feed(member, e.Tick())

    def run(self, until: Callable[[], bool], seconds: float) -> bool:
        deadline = self.now + seconds
        while self.now < deadline:
            if until():
                return True
            self.step()
        return until()

    def alive(self) -> list[Member]:
        return [member for member in self.members.values() if member.alive]

    def kill(self, account: str) -> None:
        member = self.members[account]
        member.alive, member.training = False, None
        self.disconnect(account)

    def restart(self, account: str) -> None:
        """The process comes back with what was on disk: own contributions, adopted versions, payloads."""
        member, old = self.members[account], self.members[account].machine
        if self.view.slot_of(account) is None:
            stage = old.stage
            replica = next(r for r in range(99) if self.view.holder(r, stage) is None)
            self.apply(chain.Joined(RUN, account, replica, stage, self.at()))
        member.machine = RoundMachine(
            self.rules, account, old.stage, self.kept.copy(), old.version, old.oldest, old.last_trained, old.own
        )
        member.alive = True
        self.connect(account)

    def join(self, name: str, replica: int, stage: int) -> str:
        """A newcomer takes a seat; it does nothing before `restart`."""
        key = digest("key", name)
        account = account_of(key)
        self.apply(chain.Joined(RUN, account, replica, stage, self.at()))
        self.members[account] = Member(key, RoundMachine(self.rules, account, stage, self.view.copy()), alive=False)
        return account

    # ---- the fake edges ----

    def feed(self, member: Member, event: e.Event) -> None:
        if member.alive:
            for action in member.machine.handle(event, self.now - member.behind):
                self.act(member, action)

    def later(self, member: Member, event: e.Event, seconds: float = 0.05) -> None:
        """What a process hears of its own doing: one that was started meanwhile does not."""
        machine = member.machine

        def deliver() -> None:
            if member.machine is machine:
                self.feed(member, event)

        self.mail.append((self.now + seconds * (0.5 + self.random.random()), deliver))

    def done(self, member: Member, action: a.Action, outcome: e.Event, seconds: float = 0.05) -> None:
        self.later(member, e.Done(action, outcome), seconds)  # type: ignore[arg-type]

    def gossip(self, sender: Member, event: e.Event) -> None:
        for member in self.alive():
            if member is sender or self.random.random() < self.loss:
                continue
            for _ in range(1 + (self.random.random() < self.loss)):
                self.later(member, event, 0.05 + 2 * self.loss * self.random.random())

    def act(self, member: Member, action: a.Action) -> None:
        match action:
            case a.StartRound(round=round, plan=plan):
                assert member.training is None
                seconds = self.round_seconds(plan.inner_steps)
                member.training = (round, self.now + seconds * (0.8 + 0.4 * self.random.random()))
            case a.AbandonRound(round=round, reason=reason):
                member.training = None
                self.disconnect(member.account)
                self.later(member, e.RoundAbandoned(round, reason))
                self.connect(member.account)
            case a.ResetPipes():
                self.disconnect(member.account)
                self.connect(member.account)
            case a.WantRound(round=round, ready=ready):
                for link, other in list(member.pipes.items()):
                    back = "next" if link == "previous" else "previous"
                    if self.members[other].pipes.get(back) == member.account:
                        self.feed(self.members[other], e.NeighbourWants(back, round, ready))
            case a.GossipContribution(signed=signed):
                signer = signed.contribution.account
                self.gossip(member, e.ContributionSeen(signed, signer, member.account))
            case a.FetchPayload(signed=signed):
                held = any(signed.contribution.payload in other.payloads for other in self.alive())
                if held and self.random.random() >= self.loss:
                    member.payloads.add(signed.contribution.payload)
                    ready = e.PayloadReady(signed.contribution.round, signed.contribution.payload, PAYLOAD_SIZE)
                    self.done(member, action, ready)
                else:
                    self.later(member, e.Failed(action, "nobody has it"))
            case a.ComputeOuter(round=round, listed=listed, multipliers=multipliers):
                names, made = self.names(listed), self.outer(round, listed, multipliers)
                energy = self.energy(member, round) if action.ranks else {}
                result = OuterResult(made, bytes(32))
                self.done(member, action, e.OuterComputed(round, names, multipliers, result, energy))
            case a.MeasurePolicy(round=round, listed=listed):
                measured = e.PolicyMeasured(round, self.names(listed), self.measured(member, listed))
                self.done(member, action, measured)
            case a.SignSeal(digest=digest):
                self.done(member, action, e.SealSigned(digest, sign(digest, member.key)), 0.001)
            case a.GossipProposal(seal=seal, listed=listed, record_signatures=records):
                event = e.ProposalSeen(seal, listed, records, action.attempt, action.signature, member.account)
                self.gossip(member, event)
            case a.GossipAttestation():
                stage = member.machine.stage
                event2 = e.AttestationSeen(action.round, stage, action.digest, action.signature, member.account)
                self.gossip(member, event2)
            case a.GossipReport():
                stage = member.machine.stage
                self.gossip(member, e.ReportSeen(action.round, stage, action.holding, action.missing, member.account))
            case a.AdoptVersion(version=version):
                self.done(member, action, e.VersionAdopted(version))
            case a.Reject(reason=reason):
                member.rejected.append(reason)
            case a.KeepEvidence(second=second):
                member.evidence += 1
                self.done(member, action, e.EvidenceKept(second))
            case _:
                ok = self.ledger_up and self.transact(member, action)
                mined, refused = e.Done(action, e.Mined(self.block)), e.Failed(action, "refused")
                self.later(member, mined if ok else refused, 0.5)

    def names(self, listed: tuple) -> tuple[bytes, ...]:
        return tuple(signed.contribution.hash() for signed in listed)

    def outer(self, round: int, listed: tuple, multipliers: tuple[int, ...]) -> bytes:
        return digest("outer", round, [signed.contribution.payload for signed in listed], multipliers)

    def energy(self, member: Member, round: int) -> dict[int, float]:
        """What ranks keep of a round's mean, as the member measures it."""
        return {}

    def measured(self, member: Member, listed: tuple) -> Measured:
        """The norms of payloads, and which pull against the others, as the member measures them."""
        return Measured((1.0,) * len(listed))

    @property
    def finished(self) -> bool:
        return finished(self.rules, self.view)

    def round_seconds(self, inner_steps: int) -> float:
        return self.train_seconds * inner_steps / self.rules.plan.inner_steps

    def finish(self, member: Member) -> None:
        """All stages of a replica finish together, as their barrier makes them."""
        assert member.training is not None
        round = member.training[0]
        slot = self.view.slot_of(member.account)
        if slot is None:
            return
        holders = [self.view.holder(slot[0], s) for s in range(self.rules.stages)]
        team = [self.members[account] for account in holders if account is not None]
        if not all(m.alive and m.training and m.training[0] == round and m.training[1] <= self.now for m in team):
            return
        for mate in team:
            mate.training = None
            mate.trained.append(round)
            self.feed(mate, e.RoundTrained(self.contribution(mate, round)))

    def contribution(self, member: Member, round: int, **changes: object):  # type: ignore[no-untyped-def]
        slot = self.view.slot_of(member.account)
        assert slot is not None
        payload = digest("payload", member.account, round, changes)
        member.payloads.add(payload)
        plan = plan_of(self.rules, self.view, slot[1], round) or self.rules.plan
        steps, exchange = plan.inner_steps, member.machine.exchange_seconds(round, self.now)
        values = dict(
            run=RUN, round=round, stage=slot[1], replica=slot[0], account=member.account,
            base_weights=self.base_weights(slot[1], round), payload=payload,
            payload_size=PAYLOAD_SIZE, plan=plan.hash(), inner_steps=steps,
            tokens=steps * self.rules.tokens_per_step, loss=5_000_000 - round, previous=bytes(32),
            start_payload=bytes(32), folded_payload=bytes(32), folded_payload2=bytes(32), weights_before=bytes(32),
            weights_after=bytes(32), optimiser_before=bytes(32), optimiser_after=bytes(32), residual_before=bytes(32),
            residual_after=bytes(32), segments_root=bytes(32), segments=segments_in(steps),
            compute_ms=int(1000 * self.round_seconds(steps)), exchange_ms=int(1000 * (exchange or 0)), flags=0,
        )  # fmt: skip
        return Contribution(**{**values, **changes}).sign(DOMAIN, member.key)  # type: ignore[arg-type]

    def base_weights(self, stage: int, round: int) -> bytes:
        base = base_version(self.rules, round)
        return self.view.weights(stage, base) if base <= self.view.next_round(stage) else bytes(32)

    # ---- pipes ----

    def connect(self, account: str) -> None:
        slot = self.view.slot_of(account)
        if slot is None:
            return
        for link, stage, back in (("previous", slot[1] - 1, "next"), ("next", slot[1] + 1, "previous")):
            other = self.view.holder(slot[0], stage)
            if other is None or not self.members_ready(account, other) or link in self.members[account].pipes:
                continue
            self.members[account].pipes[link] = other
            self.members[other].pipes[back] = account
            self.feed(self.members[account], e.NeighbourWants(link, 0, False))
            self.feed(self.members[other], e.NeighbourWants(back, 0, False))

    def members_ready(self, *accounts: str) -> bool:
        return hasattr(self, "members") and all(a in self.members and self.members[a].alive for a in accounts)

    def disconnect(self, account: str) -> None:
        for link, other in list(self.members[account].pipes.items()):
            back = "next" if link == "previous" else "previous"
            self.members[account].pipes.pop(link, None)
            self.members[other].pipes.pop(back, None)
            self.feed(self.members[account], e.NeighbourWants(link, None))
            self.feed(self.members[other], e.NeighbourWants(back, None))

    # ---- the fake ledger ----

    def at(self) -> EventPosition:
        return EventPosition(self.block, bytes(32), 0, digest("tx", self.block), int(self.now))

    def apply(self, event: chain.Event) -> None:
        self.view.apply(event)
        self.kept.apply(event)

    def transact(self, member: Member, action: a.Action) -> bool:
        """The contract's rules, as far as the machine relies on them."""
        account, view, now = member.account, self.view, int(self.now)
        match action:
            case a.SendSeal(seal=seal, listed=listed, signatures=signatures):
                return self.seal(seal, listed, signatures)
            case a.SendAccuse(account=other) if view.may_accuse(other, now) and view.slot_of(account) is not None:
                slot = view.slot_of(other)
                assert slot is not None and view.open_round is not None
                self.apply(chain.Accused(RUN, other, *slot, view.open_round, account, self.at()))
                return True
            case a.SendAnswer() if account in view.accusations:
                self.apply(chain.Answered(RUN, account, self.at()))
                return True
            case a.SendEvict(account=other) if view.may_evict(other, now, self.block):
                slot = view.slot_of(other)
                assert slot is not None
                self.apply(chain.Evicted(RUN, other, *slot, self.at()))
                return True
            case a.SendMoveDown() if (slot := view.slot_of(account)) is not None:
                lower = next((r for r in range(slot[0]) if view.holder(r, slot[1]) is None), None)
                if lower is not None and slot[0] not in view.complete_replicas():
                    self.disconnect(account)
                    self.apply(chain.Moved(RUN, account, slot[0], lower, slot[1], self.at()))
                    self.connect(account)
                    return True
        return False

    def seal(self, seal: Seal, listed: tuple, signatures: tuple) -> bool:
        view = self.view
        empty_early = not listed and self.now < (view.opened_at or 0) + self.rules.round_timeout
        if seal.round != view.open_round or seal.round != view.next_round(seal.stage) or empty_early:
            return False
        for signed in listed:
            statement = signed.contribution
            if view.slot_of(statement.account) != (statement.replica, statement.stage):
                return False
        event = chain.Sealed(
            RUN, seal.round, seal.stage, seal.digest(DOMAIN), seal, encode_records(listed),
            b"".join(signature for _, signature in signatures), self.at(),
        )  # fmt: skip
        counting = [signer for signer in event.signers if signer in view.voters(seal.stage)]
        if len(set(counting)) < view.quorum(seal.stage):
            return False
        made = self.outer(seal.round, listed, seal.multipliers)
        assert seal.next_weights == (made if listed else seal.previous_weights)
        assert (seal.stage, seal.round) not in self.seals
        self.seals[seal.stage, seal.round] = seal.next_weights
        self.apply(event)
        if (
            all(view.next_round(s) > seal.round for s in range(self.rules.stages))
            and seal.round + 1 < self.rules.rounds
        ):
            self.apply(chain.RoundOpened(RUN, seal.round + 1, int(self.now), self.at()))
        return True
