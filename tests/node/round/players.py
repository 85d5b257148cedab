"""Hostile members of a simulated run, each with its own way to work against it, and what the honest get done all the
same.

They know everything at once, hear every statement at the moment it is made, and act together. What one of them tells
some members reaches the others a little later, as gossip has it; payloads go to nobody but those it gives them to.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from dlx.ledger import events as chain
from dlx.ledger.typed import SignedContribution, ascending, entries, sign
from dlx.node.round import actions as a
from dlx.node.round import events as e
from dlx.node.round.rules.inclusion import awaited
from dlx.node.round.rules.plans import kept_plan
from dlx.node.round.rules.round_rules import OuterResult, attempt_at, build_seal, may_count, proposers, unit_multipliers
from tests.node.round.simulation import DOMAIN, STALL_SECONDS, Member, Party, Simulation, digest

RELAY_SECONDS = 1.0  # within which gossip passes on what somebody told some only
MISBEHAVIOUR = {
    "bad_signature", "wrong_run", "wrong_plan", "wrong_steps", "wrong_segments", "wrong_base", "wrong_round",
    "private_data", "payload_size", "payload_root", "bad_payload", "equivocation", "not_the_proposer",
    "too_many_proposals", "wrong_seal",
}  # fmt: skip


class Player:
    """Does what its round machine asks for; subclasses do otherwise."""

    def __init__(self, contest: "Contest", member: Member) -> None:
        self.contest, self.member, self.random = contest, member, contest.random

    def act(self, action: a.Action) -> None:
        self.contest.carry_out(self.member, action)

    def step(self) -> None:
        """A tenth of a second has passed."""

    def hear(self, event: e.Event) -> None:
        """Somebody said something to everybody."""

    def serves(self, asker: Party) -> bool:
        return True

    # ---- what subclasses use ----

    @property
    def stage(self) -> int:
        return self.member.machine.stage

    @property
    def round(self) -> int | None:
        """The open round, while the stage has not sealed it."""
        view = self.contest.view
        return view.open_round if view.open_round == view.next_round(self.stage) else None

    @property
    def graced_at(self) -> float:
        return self.contest.graced_at(self.stage)

    def others(self) -> list[Member]:
        return [one for one in self.contest.alive() if one is not self.member]

    def some(self) -> list[Member]:
        """Up to half of the others."""
        others = self.others()
        return self.random.sample(others, self.random.randint(0, len(others) // 2))


class Breaker(Player):
    """Says that it is ready, starts every round, and trains none."""

    def act(self, action: a.Action) -> None:
        super().act(action)
        if isinstance(action, a.StartRound):
            self.member.training = action.round, float("inf")


class NeverReady(Player):
    def act(self, action: a.Action) -> None:
        super().act(replace(action, ready=False) if isinstance(action, a.WantRound) else action)


class FarAhead(Player):
    """Names a round that is far away."""

    def act(self, action: a.Action) -> None:
        super().act(replace(action, round=2**31, ready=True) if isinstance(action, a.WantRound) else action)


class Slow(Player):
    """Lets its mates wait as long as they do, almost."""

    def act(self, action: a.Action) -> None:
        super().act(action)
        if isinstance(action, a.StartRound) and self.member.training is not None:
            round, ends = self.member.training
            self.member.training = round, ends + 0.95 * STALL_SECONDS


class Mute(Player):
    """Trains, contributes and answers accusations: no proposal, vote or report, and no seal sent."""

    def act(self, action: a.Action) -> None:
        if not isinstance(action, a.GossipProposal | a.GossipAttestation | a.GossipReport | a.SendSeal):
            super().act(action)


class LastMoment(Player):
    """Says everything as late as it can, nearly a proposal timeout after it should, and its contribution at the end of
    the grace."""

    def act(self, action: a.Action) -> None:
        contest = self.contest
        if isinstance(action, a.Statement):
            wait = 0.95 * contest.rules.proposal_timeout
            if isinstance(action, a.GossipContribution):
                wait = max(0.0, self.graced_at - contest.now - self.random.random())
            contest.at_time(contest.now + wait, lambda: contest.carry_out(self.member, action))
        else:
            super().act(action)


class NotANumber(Player):
    """What it sends does not decode. (`Contest.carry_out` has the payload refused.)"""


class Ghost(Player):
    """Reports what nobody can fetch: its payload is for its own kind."""

    def serves(self, asker: Party) -> bool:
        return asker.account in self.contest.players


class Withholder(Player):
    """Gives its payload to some, as the grace ends, and tells some of it first."""

    def __init__(self, contest: "Contest", member: Member) -> None:
        super().__init__(contest, member)
        self._chosen: dict[int | None, set[str]] = {}

    def serves(self, asker: Party) -> bool:
        if self.round not in self._chosen:
            self._chosen = {self.round: {one.account for one in self.some()}}
        return asker.account in self._chosen[self.round] or asker.account in self.contest.players

    def act(self, action: a.Action) -> None:
        contest = self.contest
        if isinstance(action, a.GossipContribution):
            signed = action.signed
            event = e.ContributionSeen(signed, signed.contribution.account, self.member.account)
            first = self.graced_at - 2 * self.random.random()
            contest.at_time(max(contest.now, first), lambda: contest.tell_some(event, self.some()))
        else:
            super().act(action)


class Reporter(Player):
    """Reports to have what does not exist, to lack what everybody has, and repeats old reports of others."""

    def __init__(self, contest: "Contest", member: Member) -> None:
        super().__init__(contest, member)
        self._heard: list[e.ReportSeen] = []

    def hear(self, event: e.Event) -> None:
        if isinstance(event, e.ReportSeen) and event.signer not in self.contest.players:
            self._heard = [*self._heard[-50:], event]

    def act(self, action: a.Action) -> None:
        if not isinstance(action, a.GossipReport):
            super().act(action)

    def step(self) -> None:
        round = self.round
        if round is None or self.random.random() > 0.1:
            return
        real = [one.machine.own[round].contribution.hash() for one in self.contest.alive() if round in one.machine.own]
        made_up = [digest("made up", self.random.random()) for _ in range(128)]
        me = self.member.account
        self.contest.tell_some(
            e.ReportSeen(round, self.stage, tuple(made_up), tuple(real[:64]), me, int(1000 * self.contest.now)),
            self.others(),
        )
        for report in self._heard[:3]:
            self.contest.tell_some(report, self.some())


class Equivocator(Player):
    """Contributes four times, something else to each; and tells some members first."""

    def __init__(self, contest: "Contest", member: Member) -> None:
        super().__init__(contest, member)
        self._made: dict[int, list[SignedContribution]] = {}

    def act(self, action: a.Action) -> None:
        if not isinstance(action, a.GossipContribution) or action.signed.contribution.account != self.member.account:
            super().act(action)
            return
        round = action.signed.contribution.round
        if round not in self._made:
            others = [self.contest.contribution(self.member, round, loss=loss) for loss in (1, 2, 3)]
            self._made = {round: [action.signed, *others]}
        for signed in self._made[round]:
            event = e.ContributionSeen(signed, self.member.account, self.member.account)
            self.contest.tell_some(event, self.some())


class WrongSeals(Player):
    """Proposes seals over another outer step, and floods with proposals of what nobody has."""

    def act(self, action: a.Action) -> None:
        contest = self.contest
        if isinstance(action, a.ComputeOuter):
            lie = OuterResult(digest("a lie"), bytes(32), digest("root"), bytes(32))
            names = contest.names(action.listed)
            contest.done(self.member, action, e.OuterComputed(action.round, names, action.multipliers, lie))
        else:
            super().act(action)

    def step(self) -> None:
        round = self.round
        if round is not None and self.random.random() < 0.02:
            made_up = self.contest.contribution(self.member, round, loss=self.random.randrange(10**6))
            self.contest.propose(self, [made_up])


class Alternating(Player):
    """Is counted in every third round, so it is waited for in the others too."""

    def act(self, action: a.Action) -> None:
        if not isinstance(action, a.GossipContribution) or action.signed.contribution.round % 3 == 0:
            super().act(action)


class Exiler(Player):
    """Proposes and signs nothing that lists the lowest replica of which all others have something."""

    def __init__(self, contest: "Contest", member: Member) -> None:
        super().__init__(contest, member)
        self._votes: dict[bytes, dict[str, bytes]] = {}
        self._said: Counter[int] = Counter()

    def hear(self, event: e.Event) -> None:
        if isinstance(event, e.AttestationSeen):
            self._votes.setdefault(event.digest, {})[event.signer] = event.signature

    def act(self, action: a.Action) -> None:
        if not isinstance(action, a.GossipProposal | a.GossipAttestation | a.GossipReport | a.SendSeal):
            super().act(action)

    def step(self) -> None:
        contest, round = self.contest, self.round
        if round is None or self._said[round] >= 8:
            return
        ordered = sorted(contest.countable(round, self.stage, ""), key=lambda signed: signed.contribution.replica)
        few = ordered[1:]
        if few and contest.now >= contest.opens_at(self.stage, few):
            self._said[round] += contest.propose(self, few)
        contest.send_complete(self, self._votes)


class Censor(Player):
    """Holds its contribution back until it has to show it, then seals it with as few others as the ledger takes; it
    signs no other seal."""

    def __init__(self, contest: "Contest", member: Member) -> None:
        super().__init__(contest, member)
        self._votes: dict[bytes, dict[str, bytes]] = {}
        self._said: Counter[int] = Counter()

    def hear(self, event: e.Event) -> None:
        if isinstance(event, e.AttestationSeen):
            self._votes.setdefault(event.digest, {})[event.signer] = event.signature

    def act(self, action: a.Action) -> None:
        if isinstance(action, a.GossipContribution):
            if self.contest.now >= self.graced_at or self.random.random() < 0.02:
                super().act(action)
        elif not isinstance(action, a.GossipProposal | a.GossipAttestation | a.GossipReport | a.SendSeal):
            super().act(action)

    def step(self) -> None:
        contest, round = self.contest, self.round
        if round is None or int(contest.now * 10) % 2:
            return
        own = self.member.machine.own.get(round)
        others = contest.countable(round, self.stage, self.member.account)
        early = len(others) < len(contest.view.complete_replicas()) - 1  # before a victim has anything to list
        now_or_never = early or contest.now >= self.graced_at - 0.6  # in the books when the grace ends
        if own and now_or_never and may_count(contest.view, own.contribution) and self._said[round] < 8:
            shuffled = self.random.sample(others, len(others))
            listings = ([own, *shuffled[:few]] for few in range(len(others) + 1))
            fewest = next((one for one in listings if contest.now >= contest.opens_at(self.stage, one)), None)
            if fewest is not None:
                event = e.ContributionSeen(own, self.member.account, self.member.account)
                contest.tell_some(event, self.others())
                self._said[round] += contest.propose(self, fewest)
        contest.send_complete(self, self._votes)


PLAYERS: tuple[type[Player], ...] = (
    Breaker, NeverReady, FarAhead, Slow, Mute, LastMoment, NotANumber, Ghost, Withholder, Reporter, Equivocator,
    WrongSeals, Alternating, Exiler, Censor,
)  # fmt: skip


class Contest(Simulation):
    """A run with hostile members, and a tally of what honest members did in time and what was counted of it."""

    def __init__(self, *args: Any, **changes: Any) -> None:
        self.players: dict[str, Player] = {}
        self.opened: dict[int, float] = {}  # round -> when
        self.said: dict[tuple[int, str], tuple[SignedContribution, float]] = {}  # and when everybody had it
        self.first_said: dict[tuple[int, str], float] = {}  # when somebody had it
        self.owed: Counter[tuple[int, int]] = Counter()  # (stage, round) -> honest work in time
        self.lost: dict[tuple[int, int], list[str]] = {}  # of it what the seal does not count
        self.spoiled: set[tuple[int, str]] = set()  # (round, account): a deal took the slot before it could count
        self.evicted: list[str] = []
        self.outvoted: set[int] = set()  # rounds in which the hostile had more than a third of a stage's weight
        self.longest = 0.0  # of the others, in seconds
        self._sent: dict[bytes, tuple[Any, tuple[SignedContribution, ...]]] = {}
        super().__init__(*args, **changes)

    def play(self, account: str, player: type[Player]) -> None:
        """From now on the member is hostile."""
        self.players[account] = player(self, self.members[account])

    # ---- what the simulation does, told to players ----

    def step(self) -> None:
        super().step()
        round = self.view.open_round
        if round is not None:
            self.opened.setdefault(round, float(self.view.opened_at or self.now))
            if round not in self.outvoted and self._are_outvoted():
                self.outvoted.add(round)
            if round not in self.outvoted:
                self.longest = max(self.longest, self.now - self.opened[round])
        for player in list(self.players.values()):
            if player.member.alive and self.view.slot_of(player.member.account) is not None:
                player.step()

    def act(self, member: Member, action: a.Action) -> None:
        player = self.players.get(member.account)
        if player is None:
            self.carry_out(member, action)
        else:
            player.act(action)

    def carry_out(self, member: Member, action: a.Action) -> None:
        super().act(member, action)

    def do(self, member: Party, action: a.Action) -> None:
        if isinstance(action, a.FetchPayload):
            statement = action.signed.contribution
            if isinstance(self.players.get(statement.account), NotANumber):
                refused = e.PayloadRefused(statement.round, statement.payload, "bad_payload")
                self.done(member, action, refused)
                return
        super().do(member, action)

    def serves(self, member: Member, asker: Party) -> bool:
        player = self.players.get(member.account)
        return player is None or player.serves(asker)

    def gossip(self, sender: Party, event: e.Event) -> None:
        self._note(event, self.now)
        for player in self.players.values():
            player.hear(event)
        super().gossip(sender, event)

    def at_time(self, time: float, do: Callable[[], None]) -> None:
        self.mail.append((time, do))

    def tell_some(self, event: e.Event, first: Iterable[Member]) -> None:
        """To these now, to the others as gossip passes it on."""
        chosen = {member.account for member in first}
        self._note(event, self.now + RELAY_SECONDS)
        for member in self.alive():
            late = 0.0 if member.account in chosen else RELAY_SECONDS * self.random.random()
            self.tell(member, event, 0.05 + late / 2)

    def apply(self, event: chain.Event) -> None:
        if isinstance(event, chain.Sealed):
            self._count(event)
        if isinstance(event, chain.Evicted):
            self.evicted.append(event.account)
        super().apply(event)
        self._spoil()

    # ---- what players do together ----

    def countable(self, round: int, stage: int, but: str) -> list[SignedContribution]:
        """What others said about the round, as far as the ledger would count it."""
        return [
            signed
            for (at, account), (signed, _) in self.said.items()
            if at == round and signed.contribution.stage == stage and account != but
            if may_count(self.view, signed.contribution)
        ]

    def propose(self, player: Player, listed: list[SignedContribution]) -> bool:
        """A correct seal, in the first turn that the member can claim; False where it has none yet."""
        view, stage, round = self.view, player.stage, player.round
        assert round is not None
        limit = attempt_at(self.rules, view, self.now) + 2
        turns = (
            at for at in range(limit + 1) if proposers(self.rules, view, stage, round, at)[0] == player.member.account
        )
        turn = next(turns, None)
        if turn is None:
            return False
        ordered = tuple(sorted(listed, key=lambda signed: signed.contribution.replica))
        multipliers = unit_multipliers(len(ordered))
        made = self.outer(round, tuple(signed.contribution.hash() for signed in ordered), multipliers)
        result = OuterResult(made, bytes(32), digest("root", made), bytes(32))
        plan = kept_plan(self.rules, view, stage, round)
        seal = build_seal(self.rules, view, stage, round, ordered, multipliers, plan, result)
        named = seal.digest(DOMAIN)
        self._sent[named] = seal, ordered
        event = e.ProposalSeen(seal, turn, sign(named, player.member.key), player.member.account)
        self.tell_some(event, player.others())
        return True

    def send_complete(self, player: Player, votes: dict[bytes, dict[str, bytes]]) -> None:
        """Sends whatever proposal of the players has the votes, all of theirs among them."""
        stage, round = player.stage, player.round
        for named, (seal, listed) in list(self._sent.items()):
            if (seal.stage, seal.round) != (stage, round):
                continue
            signatures = dict(votes.get(named, {}))
            for other in self.players.values():
                if other.stage == stage:
                    signatures[other.member.account] = sign(named, other.member.key)
            makers = {signed.contribution.account: signed for signed in listed}
            founder = next((one for one in signatures if self.view.is_founder(one)), None)
            if not self.view.may_seal(stage, makers, signatures, int(self.now), founder is not None):
                continue
            of_seal, of_records = {}, {}
            for account, signed in makers.items():
                if account in signatures:
                    of_seal[account] = (signed.contribution.replica, signatures[account])
                else:
                    of_records[signed.contribution.replica] = signed.signature
            for account in ascending(signatures.keys() - makers.keys() - {founder}):
                slot = self.view.slot_of(account)
                of_seal[account] = (slot[0] if slot else 0, signatures[account])
            self.seal(seal, entries(of_seal, of_records, signatures[founder] if founder else None))

    def opens_at(self, stage: int, listed: Iterable[SignedContribution]) -> float:
        """From when on the ledger takes a seal of these, if a founder signs it."""
        makers = {signed.contribution.account for signed in listed}
        return self.view.opens_at(stage, makers, int(self.now), founder=True)

    def graced_at(self, stage: int) -> float:
        """When the grace of the stage's open round is over for who heard everything at once; a timeout after the
        opening where nobody can tell yet."""
        view, rules = self.view, self.rules
        opened, round = view.opened_at or self.now, view.open_round
        made = sorted((when, account) for (at, account), when in self.first_said.items() if at == round)
        heard: list[str] = []
        for when, account in made:
            heard.append(account)
            if view.votes(stage, heard, int(self.now)) >= view.needed(stage, int(opened)):
                return min(max(opened, when) + rules.straggler_grace, opened + rules.round_timeout)
        return opened + rules.round_timeout

    def gathered_at(self, stage: int) -> float:
        """When, in the stage's open round, all were here who are waited for; the end of the grace at the latest."""
        view, round, graced = self.view, self.view.open_round, self.graced_at(stage)
        assert round is not None
        makers = [view.maker(replica, stage) for replica in awaited(view, round)]
        enough = graced - self.rules.straggler_grace
        return min(graced, max([enough, *(self.first_said.get((round, str(one)), graced) for one in makers)]))

    # ---- the tally ----

    def _note(self, event: e.Event, everywhere: float) -> None:
        if isinstance(event, e.ContributionSeen):
            statement = event.signed.contribution
            self.said.setdefault((statement.round, statement.account), (event.signed, everywhere))
            self.first_said.setdefault((statement.round, statement.account), self.now)

    def _are_outvoted(self) -> bool:
        for stage in range(self.rules.stages):
            hostile = self.view.votes(stage, self.players, int(self.now))
            if 3 * hostile > self.view.total(stage, int(self.now)):
                return True
        return False

    def _spoil(self) -> None:
        for (round, account), (signed, _) in self.said.items():
            statement = signed.contribution
            if round >= self.view.next_round(statement.stage) and not may_count(self.view, statement):
                self.spoiled.add((round, account))

    def _count(self, sealed: chain.Sealed) -> None:
        """Honest work in time: an honest member's contribution, when every stage of its replica had published its own a
        proposal timeout before the end of the grace, and the ledger would have counted it."""
        stage, round = sealed.stage, sealed.round
        if round in self.outvoted:
            return
        graced, gathered = self.graced_at(stage), self.gathered_at(stage)
        waits = awaited(self.view, round)
        said: dict[int, dict[int, float]] = {}
        for (at, _), (signed, when) in self.said.items():
            if at == round:
                said.setdefault(signed.contribution.replica, {})[signed.contribution.stage] = when
        counted = {record.statement for record in sealed.records}
        for (at, account), (signed, _) in self.said.items():
            statement = signed.contribution
            if at != round or statement.stage != stage or account in self.players:
                continue
            times = said[statement.replica]
            latest = (graced if statement.replica in waits else gathered) - self.rules.proposal_timeout
            whole = len(times) == self.rules.stages and max(times.values()) <= latest
            mates = {
                one
                for (on, one), (other, _) in self.said.items()
                if on == round and other.contribution.replica == statement.replica
            }
            if whole and may_count(self.view, statement) and not any((round, mate) in self.spoiled for mate in mates):
                self.owed[stage, round] += 1
                if statement.hash() not in counted:
                    self.lost.setdefault((stage, round), []).append(account)

    def patience(self) -> float:
        """How long a round may take at most, in seconds (docs/decisions/0012)."""
        rules, hostile = self.rules, len(self.players)
        return 4 * rules.round_timeout + (3 * hostile + 3) * rules.proposal_timeout

    def finish_round(self) -> None:
        """Goes on until the round that is open now is sealed, as far as it is in time."""
        round = self.view.open_round
        self.run(lambda: self.view.open_round != round, self.patience())

    def blamed(self) -> list[tuple[str, str]]:
        """What honest members refused of honest members under a reason that marks misbehaviour, and who lost a slot."""
        honest = self.members.keys() - self.players.keys()
        made = [signed.contribution for (_, account), (signed, _) in self.said.items() if account in honest]
        theirs = honest | {one.hash().hex() for one in made} | {one.payload.hex() for one in made}
        refused = [
            (reason, source)
            for account in honest
            for reason, source in self.members[account].refused
            if reason in MISBEHAVIOUR and source.split(" ")[0] in theirs
        ]
        return refused + [("evicted", account) for account in self.evicted if account in honest]
