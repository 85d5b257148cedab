"""A run in one process: real round machines and real signatures over a fake network, trainer and ledger.

The fake network loses, repeats and reorders as a random generator says. The fake ledger takes what the contract would
take, as a view of the ledger has it, and emits the real events. Training gives bytes that depend on (account, round)
alone. A founder without a slot vouches for every stage, or the member with the number `founder` is one.
"""

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

from dlx.ground.constants import UNIT
from dlx.ledger import events as chain
from dlx.ledger.abi import ZERO_ACCOUNT
from dlx.ledger.bonds import Evidence
from dlx.ledger.events import EventPosition
from dlx.ledger.typed import (
    Contribution,
    Domain,
    Plan,
    Report,
    RunConfig,
    Seal,
    SignatureError,
    SignedContribution,
    Signs,
    account_of,
    recover,
    sign,
    split_entries,
)
from dlx.ledger.view.run_state import ViewError
from dlx.ledger.view.run_view import RunView
from dlx.ledger.view.runs import was_counted_lately
from dlx.node.round import actions as a
from dlx.node.round import events as e
from dlx.node.round.liveness import claims
from dlx.node.round.machine import RoundMachine
from dlx.node.round.rules import stopping
from dlx.node.round.rules.plans import finished, plan_of, seals_needed
from dlx.node.round.rules.round_rules import OuterResult, PayloadFacts, Rules, base_version, most_steps
from dlx.node.round.stage_machine import StageMachine
from dlx.node.round.vouching import VouchingMachine, vouched_stages
from dlx.training.outer.policy import Measured
from dlx.training.slot.segments import segments_in

DOMAIN = Domain(31337, account_of(b"\x09" * 32))
RUN = hashlib.sha256(b"run").digest()
START = 1_800_000_000.0
PAYLOAD_SIZE = 500
FACTS = PayloadFacts(PAYLOAD_SIZE, hashlib.sha256(b"root").digest())  # of every payload
MIN_ROUND_TIME, EVICTION_TIME = 1, 8  # s
STALL_SECONDS = 4.0  # that a member waits for those of its neighbours before it gives the round up


def digest(*parts: object) -> bytes:
    return hashlib.sha256(repr(parts).encode()).digest()


def make_rules(rounds: int = 4, stages: int = 2, delay: int = 1, **changes: Any) -> Rules:
    values = dict(
        domain=DOMAIN, run=RUN, stages=stages, rounds=rounds, delay=delay, tokens_per_step=64, plan=Plan(4, 0, 5),
        codec="int4", adaptive=None, policy="mean", max_payload_sizes=({0: 1000},) * stages, straggler_grace=8,
        proposal_timeout=3, round_timeout=12, confirmations=0,
    )  # fmt: skip
    return Rules(**{**values, **changes})


FOUNDER = digest("key", "founder")
HORIZON = 8  # the shortest: founders are done after a few seals


@dataclass
class Party:
    """Who follows the rounds of a stage, and what it has of them."""

    key: bytes
    machine: StageMachine
    alive: bool = True
    payloads: set[bytes] = field(default_factory=set)
    rejected: list[str] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)  # reason and whose
    evidence: list[Evidence] = field(default_factory=list)
    behind: float = 0.0  # seconds by which its reckoning of the chain's time lags
    heard: dict[Any, None] = field(default_factory=dict)  # messages since its machine began

    @property
    def account(self) -> str:
        return self.machine.account


@dataclass
class Member(Party):
    machine: RoundMachine
    training: tuple[int, float] | None = None
    steps: int = 0  # of the round that it trains
    slowness: float = 1.0  # times longer that its steps take
    pipes: dict[str, str] = field(default_factory=dict)  # link -> neighbour's account
    trained: list[int] = field(default_factory=list)
    breaks: bool = False  # it says and signs whatever is asked of it, starts every round, and trains none
    mute: bool = False  # it answers accusations and says nothing else

    def sign_report(self, report: Report) -> bytes:
        return sign(report.digest(DOMAIN), self.key)


def signed_by(sealed: chain.Sealed) -> set[str]:
    """Whose signatures of the seal the ledger took, and a founder's."""
    entries = split_entries(sealed.signatures)
    return {recover(sealed.digest, entry.signature) for entry in entries if entry.signs is not Signs.RECORD}


def round_of(event: Any) -> int:
    """The round that a message is about."""
    match event:
        case e.ContributionSeen(signed=signed):
            return signed.contribution.round
        case e.ProposalSeen(seal=seal):
            return seal.round
    return int(event.round)


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
        min_replicas: int = 1,
        start_time: int = 0,
        spare: int = 2,
        founder: int | None = None,
        horizon: int = HORIZON,
    ) -> None:
        self.rules, self.random, self.loss, self.train_seconds = rules, random.Random(seed), loss, train_seconds
        self.now, self.block = START, 10
        self.ledger_up = True
        self.view = RunView(RUN, DOMAIN)
        self.kept = RunView(RUN, DOMAIN, seals_needed(rules))  # what a running node has of it
        self.seals: dict[tuple[int, int], bytes] = {}
        config = RunConfig(
            digest("manifest"), rules.rounds, rules.stages, min_replicas, replicas + spare, 5, 8, horizon,
            MIN_ROUND_TIME, int(rules.round_timeout), EVICTION_TIME, 1000, start_time, rules.tokens_per_step, False, 0,
            bytes(32),
        )  # fmt: skip
        genesis = genesis or tuple(digest("genesis", s) for s in range(rules.stages))
        keys = [digest("key", i) for i in range(replicas * rules.stages)]
        self.founder = FOUNDER if founder is None else keys[founder]
        founders = (account_of(self.founder),)
        self.apply(chain.RunCreated(RUN, account_of(keys[0]), config, "a-run", genesis, founders, self.at()))
        slots = [(r, s) for r in range(replicas) for s in range(rules.stages)]
        for key, (_, stage) in zip(keys, slots, strict=True):
            self.take_slot(account_of(key), stage)
        self.members = {
            account_of(key): Member(key, self.machine(account_of(key), stage, self.kept.copy()))
            for key, (_, stage) in zip(keys, slots, strict=True)
        }
        self.vouching: dict[int, Party] = {}  # the founder, in the stages that need it
        self.founder_alive = True
        self.seals_empty = False  # what its operator wants
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
                self.see_ledger(member)
            if member.training and member.training[1] <= self.now:
                self.finish(member)
            if member.training and member.training[1] + STALL_SECONDS <= self.now:
                self.give_up(member)
            self.feed(member, e.Tick())
        self.vouch()

    def vouch(self) -> None:
        """The founder's node, as long as it runs."""
        account = account_of(self.founder)
        wanted = vouched_stages(self.rules, self.kept, account, self.now) if self.founder_alive else ()
        self.vouching = {stage: party for stage, party in self.vouching.items() if stage in wanted}
        for stage in wanted:
            if stage not in self.vouching:
                machine = VouchingMachine(self.rules, account, stage, self.kept.copy())
                self.vouching[stage] = Party(self.founder, machine)
            cast(VouchingMachine, self.vouching[stage].machine).seals_empty = self.seals_empty
            if self.ledger_up and self.random.random() < 0.3:
                self.see_ledger(self.vouching[stage])
            self.feed(self.vouching[stage], e.Tick())

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
        if not (self.view.slot_of(account) or self.take_slot(account, old.stage) or self.reclaim(account, old.stage)):
            self.mail.append((self.now + 1, lambda: self.restart(account)))
            return
        self.renew(member)
        member.alive = True
        self.connect(account)

    def reclaim(self, account: str, stage: int) -> bool:
        tries = (one for one in claims(self.view, account, stage, self.now) if one.call == "reclaim")
        return any(self.transact(self.members[account], one) for one in tries)

    def renew(self, member: Member) -> None:
        """Another session of the same slot, or of another replica's."""
        old = member.machine
        member.heard.clear()
        member.machine = self.machine(
            old.account, old.stage, self.kept.copy(),
            version=old.version, oldest=old.oldest, last_trained=old.last_trained, own=old.own,
        )  # fmt: skip

    def machine(self, account: str, stage: int, view: RunView, **known: Any) -> RoundMachine:
        takes_samples = stage in (0, self.rules.stages - 1)
        return RoundMachine(self.rules, account, stage, view, takes_samples=takes_samples, **known)

    def join(self, name: str, stage: int) -> str:
        """A newcomer takes a slot; it does nothing before `restart`."""
        key = digest("key", name)
        account = account_of(key)
        assert self.take_slot(account, stage)
        self.members[account] = Member(key, self.machine(account, stage, self.view.copy()), alive=False)
        return account

    def leave(self, account: str) -> None:
        """It gives its slot back and is gone."""
        slot = self.view.slot_of(account)
        assert slot is not None
        self.kill(account)
        self.apply(chain.Left(RUN, account, *slot, self.at()))

    def take_slot(self, account: str, stage: int) -> bool:
        """Its own one back while that waits for it, else the lowest free one, if there is one."""
        view, now = self.view, int(self.now)
        own = next(((r, s) for (r, s), kept in view.returns.items() if kept.account == account), None)
        waits = own is not None and own[1] == stage and view.returns[own].until >= now and not view.member_at(*own)
        replica = own[0] if own is not None and waits else view.free_slot(stage, account, now)
        if replica is None:
            return False
        was_open = view.opened_at is not None or view.finished
        self.apply(chain.Joined(RUN, account, replica, stage, self.at()))
        self.open_first(was_open)
        return True

    def open_first(self, was_open: bool) -> None:
        """Round 0 opens once enough replicas are complete."""
        config = self.view.config
        if not was_open and len(self.view.complete_replicas()) >= config.min_replicas:
            self.apply(chain.RunOpened(RUN, max(config.start_time, int(self.now)), self.at()))

    # ---- the fake edges ----

    def feed(self, member: Party, event: e.Event) -> None:
        if member.alive:
            for action in member.machine.handle(event, self.now - member.behind):
                if isinstance(member, Member):
                    self.act(member, action)
                else:
                    self.do(member, action)

    def later(self, member: Party, event: e.Event, seconds: float = 0.05) -> None:
        """What a process hears of its own doing: one that was started meanwhile does not."""
        machine = member.machine

        def deliver() -> None:
            if member.machine is machine:
                self.feed(member, event)

        self.mail.append((self.now + seconds * (0.5 + self.random.random()), deliver))

    def done(self, member: Party, action: a.Task, outcome: e.Event, seconds: float = 0.05) -> None:
        self.later(member, e.Done(action, outcome), seconds)

    def gossip(self, sender: Party, event: e.Event) -> None:
        """Contributions go to everybody, other statements to the stage's members."""
        for member in (*self.alive(), *self.vouching.values()):
            if member is sender or self.random.random() < self.loss:
                continue
            if not isinstance(event, e.ContributionSeen) and member.machine.stage != sender.machine.stage:
                continue
            for _ in range(1 + (self.random.random() < self.loss)):
                self.tell(member, event, 0.05 + 2 * self.loss * self.random.random())

    def tell(self, member: Party, event: Any, seconds: float) -> None:
        """A message is heard once, unless it was refused: it may be true by a newer view of the ledger."""
        machine, name = member.machine, replace(event, peer="") if isinstance(event, e.ContributionSeen) else event

        def deliver() -> None:
            if member.machine is not machine or name in member.heard:
                return
            refused = len(member.rejected)
            self.feed(member, event)
            if len(member.rejected) == refused:
                member.heard[name] = None

        self.mail.append((self.now + seconds * (0.5 + self.random.random()), deliver))

    def see_ledger(self, member: Party) -> None:
        """With a round that its stage has not sealed comes again what was said of it too early."""
        before = member.machine.unsealed
        self.feed(member, e.LedgerSeen(self.kept.copy(), self.block))
        if member.machine.unsealed != before:
            for event in [event for event in member.heard if round_of(event) == member.machine.unsealed]:
                self.feed(member, event)

    def act(self, member: Member, action: a.Action) -> None:
        if member.mute and isinstance(action, a.Statement | a.Transaction) and action != a.Send("answer"):
            return
        match action:
            case a.StartRound(round=round, steps=steps):
                assert member.training is None
                member.steps = steps
                seconds = member.slowness * self.round_seconds(steps) * self.jitter()
                member.training = (round, float("inf") if member.breaks else self.now + seconds)
            case a.AbandonRound(round=round, reason=reason):
                member.training = None
                self.disconnect(member.account)
                self.later(member, e.RoundAbandoned(round, reason))
                self.connect(member.account)
            case a.ResetPipes():
                self.disconnect(member.account)
                self.connect(member.account)
            case a.WantRound(link=link, round=round, ready=ready, steps=steps):
                back, other = "next" if link == "previous" else "previous", member.pipes.get(link)
                if other is not None and self.members[other].pipes.get(back) == member.account:
                    self.feed(self.members[other], e.NeighbourWants(back, round, ready, steps))
            case a.HaveSamples(round=round):
                self.done(member, action, e.SamplesHere(round))
            case _:
                self.do(member, action)

    def do(self, member: Party, action: a.Action) -> None:
        """What members and a founder do alike."""
        match action:
            case a.Transaction():
                ok = self.ledger_up and self.transact(member, action)
                mined, refused = e.Done(action, e.Mined(self.block)), e.Failed(action, "refused")
                self.later(member, mined if ok else refused, 0.5)
            case a.GossipContribution(signed=signed):
                signer = signed.contribution.account
                self.gossip(member, e.ContributionSeen(signed, signer, member.account))
            case a.FetchPayload(signed=signed):
                payload = signed.contribution.payload
                served = any(payload in other.payloads and self.serves(other, member) for other in self.alive())
                if served and self.random.random() >= self.loss:
                    member.payloads.add(payload)
                    self.done(member, action, e.PayloadReady(signed.contribution.round, payload, FACTS))
                else:
                    self.later(member, e.Failed(action, "nobody has it"))
            case a.CheckStatement(signed=signed):
                statement = signed.contribution
                self.done(member, action, e.StatementSound(statement.round, statement.hash()))
            case a.ComputeOuter(round=round, listed=listed, multipliers=multipliers):
                names = self.names(listed)
                made = self.outer(round, names, multipliers)
                result = OuterResult(made, bytes(32), digest("root", made), bytes(32))
                self.done(member, action, e.OuterComputed(round, names, multipliers, result))
            case a.MeasurePolicy(round=round, listed=listed):
                measured = e.PolicyMeasured(round, self.names(listed), self.measured(member, listed))
                self.done(member, action, measured)
            case a.JudgeEnd(round=round):
                opening = stopping.opening(member.machine.view, round)
                self.done(member, action, e.EndJudged(round, opening, self.is_over(member, round)))
            case a.SignSeal(digest=named):
                self.done(member, action, e.SealSigned(named, sign(named, member.key)), 0.001)
            case a.GossipProposal(seal=seal):
                event = e.ProposalSeen(seal, action.attempt, action.signature, member.account)
                self.gossip(member, event)
            case a.GossipAttestation():
                stage = member.machine.stage
                event2 = e.AttestationSeen(action.round, stage, action.digest, action.signature, member.account)
                self.gossip(member, event2)
            case a.GossipReport():
                stage = member.machine.stage
                holding, missing, now = action.holding, action.missing, int(self.now * 1000)
                self.gossip(member, e.ReportSeen(action.round, stage, holding, missing, member.account, now))
            case a.AdoptVersion(version=version):
                self.done(member, action, e.VersionAdopted(version))
            case a.Reject(reason=reason, source=source):
                member.rejected.append(reason)
                member.refused.append((reason, source))
            case a.KeepEvidence(evidence=evidence):
                member.evidence.append(evidence)
                self.done(member, action, e.EvidenceKept(evidence))
            case _:
                raise AssertionError(action)

    def serves(self, member: Member, asker: Party) -> bool:
        """Whether a member gives a payload to who asks for it."""
        return True

    def names(self, listed: tuple) -> tuple[bytes, ...]:
        return tuple(signed.contribution.hash() for signed in listed)

    def outer(self, round: int, names: tuple[bytes, ...], multipliers: tuple[int, ...]) -> bytes:
        return digest("outer", round, names, multipliers)

    def part_kept(self, member: Member, plan: Plan) -> int:
        """What the member states that its payload keeps, in a run whose rank adapts."""
        return UNIT

    def is_over(self, member: Party, round: int) -> bool:
        """What the member makes of the held-out losses, in a run that may stop early."""
        return False

    def measured(self, member: Party, listed: tuple) -> Measured:
        """The norms of payloads, and which pull against the others, as the member measures them."""
        return Measured((1.0,) * len(listed))

    @property
    def finished(self) -> bool:
        return finished(self.rules, self.view)

    def jitter(self) -> float:
        return 0.8 + 0.4 * self.random.random()

    def round_seconds(self, inner_steps: int) -> float:
        return self.train_seconds * inner_steps / self.rules.plan.inner_steps

    def finish(self, member: Member) -> None:
        """All stages of a replica finish together, as their barrier makes them."""
        assert member.training is not None
        round = member.training[0]
        slot = self.view.slot_of(member.account)
        if slot is None:
            return
        held_by = [self.view.member_at(slot[0], s) for s in range(self.rules.stages)]
        team = [self.members[account] for account in held_by if account is not None]
        if not all(m.alive and m.training and m.training[0] == round and m.training[1] <= self.now for m in team):
            return
        for mate in team:
            mate.training = None
            mate.trained.append(round)
            self.feed(mate, e.RoundTrained(self.contribution(mate, round)))

    def contribution(self, member: Member, round: int, **changes: Any) -> SignedContribution:
        slot = self.view.slot_of(member.account)
        assert slot is not None
        payload = digest("payload", member.account, round, changes)
        member.payloads.add(payload)
        plan = plan_of(self.rules, self.view, slot[1], round) or self.rules.plan
        most = most_steps(self.rules, self.view, slot[1], member.account, round, plan)
        steps, exchange = min(member.steps or most, most), member.machine.exchange_seconds(round, self.now)
        values: dict[str, Any] = dict(
            run=RUN, round=round, stage=slot[1], replica=slot[0], account=member.account,
            base_weights=self.base_weights(slot[1], round), payload=payload,
            payload_size=FACTS.size, payload_root=FACTS.root, plan=plan.hash(), inner_steps=steps,
            loss=5_000_000 - round, previous=bytes(32),
            start_payload=bytes(32), folded_payload=bytes(32), folded_payload2=bytes(32), weights_before=bytes(32),
            optimiser_before=bytes(32), optimiser_after=bytes(32), change_before=bytes(32), payload_before=bytes(32),
            change=bytes(32), trace=bytes(32), segments=segments_in(steps, 20),
            compute_ms=int(1000 * self.round_seconds(steps)), exchange_ms=int(1000 * (exchange or 0)), flags=0,
            kept=self.part_kept(member, plan) if self.rules.ladders.rank_adapts else 0,
        )  # fmt: skip
        return Contribution(**{**values, **changes}).sign(DOMAIN, member.key)

    def base_weights(self, stage: int, round: int) -> bytes:
        base = base_version(self.rules, round)
        return self.view.weights(stage, base) if base <= self.view.next_round(stage) else bytes(32)

    # ---- pipes ----

    def connect(self, account: str) -> None:
        slot = self.view.slot_of(account)
        if slot is None:
            return
        for link, stage, back in (("previous", slot[1] - 1, "next"), ("next", slot[1] + 1, "previous")):
            other = self.view.member_at(slot[0], stage)
            if other is None or not self.members_ready(account, other):
                continue
            for one, at, to in ((account, link, other), (other, back, account)):
                if self.members[one].pipes.get(at) != to:  # of before a deal
                    self.hang_up(one, at)
            if link in self.members[account].pipes:
                continue
            self.members[account].pipes[link] = other
            self.members[other].pipes[back] = account
            self.feed(self.members[account], e.NeighbourWants(link, 0, False))
            self.feed(self.members[other], e.NeighbourWants(back, 0, False))

    def members_ready(self, *accounts: str) -> bool:
        return hasattr(self, "members") and all(a in self.members and self.members[a].alive for a in accounts)

    def disconnect(self, account: str) -> None:
        for link in list(self.members[account].pipes):
            self.hang_up(account, link)

    def hang_up(self, account: str, link: str) -> None:
        other = self.members[account].pipes.pop(link, None)
        if other is None:
            return
        back = "next" if link == "previous" else "previous"
        if self.members[other].pipes.get(back) == account:
            del self.members[other].pipes[back]
            self.feed(self.members[other], e.NeighbourWants(back, None))
        self.feed(self.members[account], e.NeighbourWants(link, None))

    # ---- the fake ledger ----

    def give_up(self, member: Member) -> None:
        """What it waits for from its neighbours does not come."""
        assert member.training is not None
        round, member.training = member.training[0], None
        self.disconnect(member.account)
        self.feed(member, e.RoundAbandoned(round, "no tensor came"))
        self.connect(member.account)

    def at(self) -> EventPosition:
        return EventPosition(self.block, bytes(32), 0, digest("tx", self.block), int(self.now))

    def apply(self, event: chain.Event) -> None:
        self.view.apply(event)
        self.kept.apply(event)

    def transact(self, member: Party, action: a.Action) -> bool:
        """What the contract would take. Its rules are those of the view, which the ledger's tests compare with it."""
        account, view, now = member.account, self.view, int(self.now)
        match action:
            case a.SendSeal(seal=seal, signatures=signatures):
                return self.seal(seal, signatures)
            case a.Send("accuse", str(other)) if view.may_accuse(account, other, now):
                self.apply(chain.Accused(RUN, other, account, view.is_forfeit(other), self.at()))
                return True
            case a.Send("answer") if view.should_answer(account):
                self.apply(chain.Answered(RUN, account, self.at()))
                return True
            case a.Send("evict", str(other)) if view.may_evict(other, now):
                self.evict(other)
                return True
            case a.Send("reclaim", str(other)) if view.may_reclaim(account, other, now):
                slot = view.slot_of(other)
                assert slot is not None
                self.apply(chain.Reclaimed(RUN, account, other, *slot, self.at()))
                self.apply(chain.Joined(RUN, account, *slot, self.at()))
                return True
            case a.Send("move_down") if view.may_move(account, now):
                slot = view.slot_of(account)
                assert slot is not None
                lower = view.free_slot(slot[1], account, now)
                assert lower is not None
                was_open = view.opened_at is not None
                self.apply(chain.Moved(RUN, account, slot[0], lower, slot[1], self.at()))
                self.open_first(was_open)
                self.reslot(account)
                return True
            case a.Send("deal", int(replica)) if view.may_deal(replica):
                self.deal(replica)
                return True
        return False

    def evict(self, account: str) -> None:
        slot = self.view.slot_of(account)
        assert slot is not None
        counted = was_counted_lately(self.view, self.view.member(account))
        until = int(self.now) + EVICTION_TIME if counted else 0
        self.apply(chain.Evicted(RUN, account, *slot, until, self.at()))

    def dismiss(self, account: str) -> None:
        """The founder frees its slot, whatever it answers."""
        slot, founder = self.view.slot_of(account), account_of(self.founder)
        assert slot is not None and self.view.may_dismiss(founder, account, int(self.now))
        self.apply(chain.Dismissed(RUN, account, founder, *slot, ZERO_ACCOUNT, 0, self.at()))

    def deal(self, replica: int) -> None:
        swaps = self.view.deal_of(replica)
        for stage, other in swaps:
            self.apply(chain.Dealt(RUN, stage, replica, other, self.at()))
        for stage, other in swaps:
            for account in (self.view.member_at(replica, stage), self.view.member_at(other, stage)):
                assert account is not None
                self.reslot(account)

    def reslot(self, account: str) -> None:
        """A member's session ends and one of its new replica begins."""
        member = self.members.get(account) if hasattr(self, "members") else None
        if member is None or not member.alive:
            return
        member.training = None
        self.renew(member)  # first: the old session would open pipes again
        self.disconnect(account)
        self.connect(account)

    def seal(self, seal: Seal, signatures: bytes) -> bool:
        view, now = self.view, int(self.now)
        if seal.round != view.open_round or seal.round != view.next_round(seal.stage):
            return False
        if seal.previous != view.head(seal.stage):
            return False
        digest, signers, founder = seal.digest(DOMAIN), set(), False
        for entry in split_entries(signatures):
            if entry.signs is not Signs.RECORD:
                try:
                    signer = recover(digest, entry.signature)
                except SignatureError:
                    continue
                if entry.signs is Signs.SEAL:
                    signers.add(signer)
                else:
                    founder = founder or view.is_founder(signer)
        makers = [view.maker(record.replica, seal.stage) for record in seal.records]
        if not view.may_seal(seal.stage, [one for one in makers if one], signers, now, founder):
            return False
        event = chain.Sealed(
            RUN, seal.stage, seal.round, digest, seal.outcome, seal.records, signatures, self.at()
        )  # fmt: skip
        try:
            view.copy().apply(event)
        except ViewError:
            return False  # a record that nobody signed who can have made it
        multipliers = tuple(record.multiplier for record in seal.records)
        made = self.outer(seal.round, tuple(record.statement for record in seal.records), multipliers)
        assert seal.outcome.weights == (made if seal.records else bytes(32))
        assert (seal.stage, seal.round) not in self.seals
        self.apply(event)
        self.seals[seal.stage, seal.round] = view.weights(seal.stage, seal.round + 1)
        return True
