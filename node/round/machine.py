"""The round protocol of one slot as a state machine: `stage_machine`, and what only who trains does."""

from dataclasses import dataclass

from dlx.ledger.typed import Plan, SignedContribution
from dlx.node.round import actions as a
from dlx.node.round import events as e
from dlx.node.round.neighbours import Neighbours
from dlx.node.round.rules.pace import WINDOW, Pace, fewest_steps
from dlx.node.round.rules.plans import deciding_seals, finished, has_round, is_stopped, plan_of, steps_before
from dlx.node.round.rules.round_rules import base_version, left_out, may_train, most_steps
from dlx.node.round.stage_machine import StageMachine
from dlx.training.slot.rounds import Trained

_NAMED = 3  # silent members
MEASURED_ROUNDS = 3  # own ones, whose exchange is being timed


@dataclass
class RoundMachine(StageMachine):
    """The protocol's state for `account`, which holds a slot of `stage`. `last_trained` comes from disk."""

    last_trained: int = -1
    takes_samples: bool = False  # of the run's data
    rests: bool = False  # its operator wants the machine: rounds get the fewest inner steps that count
    leaves: bool = False  # its node stops or gives the slot back: no round begins

    def __post_init__(self) -> None:
        super().__post_init__()
        self._neighbours = Neighbours(self.stage, self.rules.stages)
        self._samples: set[int] = set()  # the rounds whose are here
        self._floor = 0  # the replica's round: never train below it
        self._started: a.StartRound | None = None  # the round under way
        self._began = 0.0  # when it was started
        self._step_seconds: float | None = None  # as measured in the round that was trained last
        last = self.own[max(self.own)].contribution.inner_steps if self.own else None
        self._pace = Pace(self.account, self.rules.delay, self.rules.straggler_grace, last)
        self._time_for: tuple[int, int] | None = None  # a round, and the steps that we have time for: said once
        self._unsigned: a.Contribute | None = None  # what was trained last, as long as it is not signed
        self._gone: str | None = None  # why there is no training process
        self._stopping = False  # it was asked to be abandoned
        self._ended: dict[int, float] = {}  # when our own training of a round was done
        self._exchange: dict[int, float] = {}  # how long it then took until we had the version that it went into
        # A round that was contributed to is not trained again: its training state may be gone, or on another machine.
        self.last_trained = max(self.last_trained, *self.own, -1)
        self._forget_own()
        for signed in self.own.values():
            self._known.file_own(signed, here=False, now=0.0)

    # ---- what others may ask ---------------------------------------------------------------------------------------

    @property
    def slot(self) -> tuple[int, int] | None:
        """(replica, stage) while the ledger says so."""
        return self.view.slot_of(self.account)

    @property
    def training(self) -> int | None:
        """The round under way."""
        return None if self._started is None else self._started.round

    def next_round(self) -> int:
        """The round that this member would train next: the replica's round is the maximum over its members."""
        reachable = self.oldest + self.rules.delay if self.oldest else 0
        first = self.unsealed if may_train(self.view, self.account, self.unsealed) else self.unsealed + 1
        return max(first, self.last_trained + 1, self._floor, reachable)

    def known_round(self, round: int) -> tuple[int, int]:
        """(contributions held with their payloads, contributions expected) of a round."""
        state = self._known.states.get(round)
        return len(self._known.usable(state)) if state else 0, len(self.view.complete_replicas())

    def waiting_for(self, now: float) -> str | None:
        """What the node waits for, in words; None while it trains."""
        if self.diverged:
            return f"nothing: stopped contributing, {self.diverged}"
        if finished(self.rules, self.view):
            early = is_stopped(self.rules, self.view, self.unsealed)
            return "nothing: the run is finished" + (", its held-out loss no longer falls" if early else "")
        if self.training is not None:
            return None
        if self._gone is not None:
            return f"the training process, which is started again: {self._gone}"
        if trouble := self._pending.trouble():
            return f"this machine: {trouble}"
        if self.slot is None:
            return "a slot"
        if self.view.open_round is None:
            missing = self.view.config.min_replicas - len(self.view.complete_replicas())
            return f"{max(missing, 1)} more complete replica(s) before round 0 opens"
        if self.view.open_round == 0 and self.view.opened_at is not None and now < self.view.opened_at:
            return f"{self.view.opened_at - now:.0f} s until the run starts"
        if self.slot[0] not in self.view.complete_replicas():
            return f"members for the free slots of replica {self.slot[0]}"
        round = self.next_round()
        if not has_round(self.rules, self.view, round):
            return "the last seals"
        base = base_version(self.rules, round)
        if self.version is None or base > self.version:
            held, expected = self.known_round(self.unsealed)
            if self.unsealed > (-1 if self.version is None else self.version):
                return f"the weights of version {base}"
            return f"the seal of round {self.unsealed} ({held} of {expected} contributions, {self._signed(now)})"
        if plan_of(self.rules, self.view, self.stage, round) is None:
            return f"stage 0's seal of round {round - self.rules.delay - 1}, which plans round {round}"
        if self.takes_samples and not self._is_dealt(round):
            return f"stage 0's seal of round {round - self.rules.delay - 1}, which deals the samples of round {round}"
        if self.takes_samples and round not in self._samples:
            lacking = next((one.reason for one in self.failing(now) if one.action == a.HAVE_SAMPLES), "")
            return f"the training data of round {round}" + (f": {lacking}" if lacking else "")
        start = next((one for one in self.failing(now) if one.action == a.START and one.next_try), None)
        if start is not None:
            return f"{start.next_try:.0f} s: {start.failures} rounds failed in a row, the last because {start.reason}"
        return f"the neighbours of replica {self.slot[0]} to start round {round}"

    def lacks_founder(self, now: float) -> str | None:
        """Whose signature alone the open round's seal lacks, in words; None where it lacks another, or none."""
        since = self._sealing.lacks_founder(self.unsealed)
        if since is None:
            return None
        founders = " or ".join(self.view.founders)
        return f"only a founder's signature is missing, for {now - since:.0f} s: the node of {founders} has to run"

    def awaits_chain(self) -> bool:
        """Whether this node waits for the chain, or others for what the chain will tell it: a seal that may come."""
        if self.training is None:
            return True
        first = self.unsealed if self.view.open_round is None else self.view.open_round
        state = self._known.states.get(self.unsealed)
        return first < self.unsealed or (state is not None and state.ready_since is not None)

    def exchange_seconds(self, round: int, now: float) -> float | None:
        """How long the exchange before `round` took: from the end of our training of the round before until we had the
        version that its seal made, or until now where that is still to come. None where we have not seen it."""
        if round - 1 not in self._ended:
            return None
        return self._exchange.get(round - 1, now - self._ended[round - 1])

    # ---- events ----------------------------------------------------------------------------------------------------

    def _take(self, event: e.Event, now: float, out: list[a.Action]) -> None:
        super()._take(event, now, out)
        match event:
            case e.ContributionSeen(signed=signed):
                self._note_pace(signed, now)
            case e.SamplesHere(round=round):
                self._samples = {one for one in self._samples if one > self.last_trained} | {round}
            case e.VersionAdopted():
                self._note_exchange(event.version, now)
            case e.NeighbourWants():
                self._neighbours.see(event)
            case e.RoundFinished(trained=trained):
                self._step_seconds = event.step_seconds
                self._see_finished(trained, now)
            case e.RoundTrained():
                self._see_trained(event.signed, now)
            case e.RoundAbandoned() if event.round == self.training:  # a late one speaks of another
                self._end_round(event, now)
            case e.TrainerGone(reason=reason):
                self._gone = reason
                if self.training is not None and self._unsigned is None:
                    self._end_round(e.RoundAbandoned(self.training, reason, local=True), now)
            case e.TrainerBack():
                self._gone = None
            case e.Failed(action=a.Contribute(trained=trained)):  # the ledger may say something else by now
                self._see_finished(trained, now)

    def _see_ledger(self, event: e.LedgerSeen, now: float, out: list[a.Action]) -> None:
        before = self.view
        super()._see_ledger(event, now, out)
        if self.view.opened_at is not None:
            seen = before.next_round(self.stage) < self.unsealed  # just now; else the ledger says when
            self._pace.opened(self.unsealed + self.rules.delay, now if seen else self.view.opened_at)
        seals = range(max(self.unsealed - WINDOW, self.view.sealed.oldest(self.stage)), self.unsealed)
        self._pace.sealed({round: frozenset(self.view.sealed[self.stage, round].accounts) for round in seals})
        for state in self._known.states.values():  # some came before our view of the ledger could judge them
            for signed in state.contributions.values():
                self._note_pace(signed, now)

    def _see_finished(self, trained: Trained, now: float) -> None:
        round = trained.round
        if round in self.own:
            self._see_trained(self.own[round], now)
            return
        plan = plan_of(self.rules, self.view, self.stage, round)
        if plan is None or not self._still_holds(trained):
            self._unsigned, self.last_trained = None, max(self.own, default=-1)  # it is trained again
            self._end_round(None, now)
        else:
            self.last_trained = max(self.last_trained, round)
            self._unsigned = a.Contribute(trained, plan, self.exchange_seconds(round, now))

    def _still_holds(self, trained: Trained) -> bool:
        """Whether the ledger decides about it what it did when it began: no seal that its start, plan and samples
        follow from was taken back, and its samples are those of our replica."""
        began = trained.inputs
        try:
            seals = deciding_seals(self.rules, self.view, self.stage, trained.round)
        except KeyError:
            return False
        return self.slot is not None and (began.replica, began.seals) == (self.slot[0], seals)

    def _see_trained(self, signed: SignedContribution, now: float) -> None:
        round = signed.contribution.round
        self._unsigned = None
        if self._started is not None and self._started.round == round:
            self._pace.trained(round, signed.contribution.inner_steps, now - self._began, self._step_seconds)
        self._end_round(None, now)
        self.last_trained = max(self.last_trained, round)
        self.own[round] = signed
        self._forget_own()
        self._ended = {at: ended for at, ended in self._ended.items() if at >= round - MEASURED_ROUNDS} | {round: now}
        self._known.file_own(signed, here=True, now=now)
        self._note_pace(signed, now)

    def _note_pace(self, signed: SignedContribution, now: float) -> None:
        """A contribution to our stage that was not refused."""
        made = signed.contribution
        state = self._known.states.get(made.round) if made.stage == self.stage else None
        if state is not None and made.hash() in state.contributions:
            self._pace.contributed(made.round, made.account, made.inner_steps, now)

    def _forget_own(self) -> None:
        """Of the own contributions whose seals the view has no more, only the newest can matter: the next one names it.
        In place, because others hold the same dictionary."""
        oldest = self.view.sealed.oldest(self.stage)
        for round in [round for round in self.own if round < oldest and round != max(self.own)]:
            del self.own[round]

    def _end_round(self, abandoned: e.RoundAbandoned | None, now: float) -> None:
        """The round under way is trained, unless `abandoned`."""
        if self._started is not None:
            if abandoned is None:
                self._pending.done(self._started)
            else:
                self._pending.failed(self._started, abandoned.reason, now, abandoned.local)
                self._time_for = None  # it is later now
        self._started, self._stopping, self._step_seconds = None, False, None

    def _note_exchange(self, version: int, now: float) -> None:
        self._exchange = {at: seconds for at, seconds in self._exchange.items() if at in self._ended}
        if version - 1 in self._ended:
            self._exchange.setdefault(version - 1, now - self._ended[version - 1])

    # ---- what is due ------------------------------------------------------------------------------------------------

    def _advance(self, now: float, out: list[a.Action]) -> None:
        self._adopt(now, out)
        if self.slot is None or self.slot[1] != self.stage:
            self._abandon("the slot is no longer ours", out)
            return
        if self._unsigned is not None:
            self._ask(self._unsigned, now, out)
        if self.diverged is None:
            self._train(now, out)
            if not finished(self.rules, self.view):
                self._sealing.advance(now, self.version, self.training, self._since or now, out)
        self._hear_neighbours(now)
        removals = self._liveness.due(self.view, now, self._sealing.is_gathered)
        tasks: list[a.Task] = [*removals, *self._known.evidence.values()]
        for task in tasks:
            self._ask(task, now, out)

    def _train(self, now: float, out: list[a.Action]) -> None:
        assert self.slot is not None
        replica = self.slot[0]
        # Believed only so far as we could follow at once: a neighbour that lies holds us up as long as it is there, and
        # no round longer.
        named = max(self._neighbours.connected.values(), default=0)
        self._floor = max(self._floor, min(named, self.unsealed + self.rules.delay))
        if self._unsigned is not None:
            return
        if self.training is not None:
            if not self._neighbours.are_all_here:
                self._abandon("a neighbour's pipe is gone", out)
            elif named > self.training + 1:
                self._abandon("a neighbour is at a later round", out)
            if has_round(self.rules, self.view, self.training + 1):
                self._have_samples(self.training + 1, now, out)
            return
        round = self.next_round()
        opened_at = self.view.opened_at
        # Only the first opening may be to come; a later one is the time of a block that we have seen.
        opened = opened_at is not None and (opened_at <= now or bool(self.view.open_round))
        complete = replica in self.view.complete_replicas() and opened
        if not complete or not has_round(self.rules, self.view, round):
            return
        base, plan = base_version(self.rules, round), plan_of(self.rules, self.view, self.stage, round)
        samples = self._have_samples(round, now, out)
        startable = (
            samples
            and self.version is not None
            and self.oldest is not None
            and self.oldest <= base <= self.version
            and round <= self.unsealed + self.rules.delay
            and plan is not None
            and self._pending.may_start(a.START, now)
            and self._pending.trouble(a.START) is None
            and self._gone is None
            and not self.leaves
        )
        steps = self._steps(round, plan, now) if startable and plan is not None else None
        fewest = 0 if plan is None else fewest_steps(plan.inner_steps)
        wants = self._neighbours.tell(round, steps, fewest, self.last_trained)
        if wants is None:
            out.append(a.ResetPipes(f"the replica goes on at round {round}"))
            return
        out += wants
        agreed = self._neighbours.steps(round, steps, fewest)
        if steps is not None and plan is not None and agreed is not None:
            folded = left_out(self.rules, self.view, self.stage, self.own, round)
            before = steps_before(self.rules, self.view, round)
            order = a.StartRound(round, base, plan, agreed, steps, before, folded)
            if self._pending.start(order, now):
                self._started, self._began = order, now
                out.append(order)

    def _steps(self, round: int, plan: Plan, now: float) -> int:
        """The inner steps that we have time for in a round: what was said once holds, until the round is abandoned."""
        assert self.slot is not None
        if self._time_for is None or self._time_for[0] != round:
            members = [self.view.member_at(replica, self.stage) for replica in self.view.complete_replicas()]
            steps = self._pace.steps(round, plan.inner_steps, [one for one in members if one is not None], now)
            self._time_for = round, 0 if self.rests else steps
        most = most_steps(self.rules, self.view, self.stage, self.account, round, plan)
        return max(fewest_steps(plan.inner_steps), min(self._time_for[1], most))

    def _have_samples(self, round: int, now: float, out: list[a.Action]) -> bool:
        """Whether those of the round are here; asked for as soon as the seals are there that deal them."""
        if not self.takes_samples:
            return True
        if not self._is_dealt(round):
            return False
        if round not in self._samples:
            self._ask(a.HaveSamples(round), now, out)
        return round in self._samples

    def _is_dealt(self, round: int) -> bool:
        return self.view.next_round(0) >= round - self.rules.delay

    def _hear_neighbours(self, now: float) -> None:
        """Whoever keeps a pipe open is there."""
        assert self.slot is not None
        for link in self._neighbours.connected:
            member = self.view.member_at(self.slot[0], self.stage + (1 if link == "next" else -1))
            if member is not None:
                self._liveness.heard(member, now)

    def _abandon(self, reason: str, out: list[a.Action]) -> None:
        if self.training is not None and not self._stopping:
            self._neighbours.take_back()
            self._stopping = True
            out.append(a.AbandonRound(self.training, reason))

    # ---- helpers ----------------------------------------------------------------------------------------------------

    def _signed(self, now: float) -> str:
        """How far the signatures for the seal of the open round are, in words."""
        if lacks := self.lacks_founder(now):
            return lacks
        needed = self.view.needed(self.stage, int(now)) / self.view.total(self.stage, int(now))
        signed = self._sealing.signed_part(self.unsealed, now)
        said = f"{signed:.0%} of {needed:.0%} signed"
        if signed >= needed:
            return f"{said}: its transaction"
        if now <= self._overdue_at():
            return said
        silent = self._liveness.silent(self.view, self.stage, now)
        more = f" and {len(silent) - _NAMED} more" if len(silent) > _NAMED else ""
        heard = f": nothing is heard of {', '.join(silent[:_NAMED])}{more}" if silent else ""
        return f"{said}, too few members cooperate{heard}"

    def _overdue_at(self) -> float:
        return (self.view.opened_at or 0) + self.rules.round_timeout
