"""The round protocol of one slot as a state machine: `handle(event, now)` returns the actions that have become due.

It is level-triggered: an event changes what is known, then `_advance` asks for whatever that state calls for and is
not yet under way. So lost, repeated or reordered events cost time, never correctness, and the chain's seal is the only
truth about what was counted. Times are Unix seconds; the chain's `opened_at` is on the same clock.
"""

from collections import deque
from dataclasses import dataclass, field

from ledger.typed import SignatureError, SignedContribution, ascending, merkle_root
from ledger.view import RunView
from node.round import events as e
from node.round.book import Book, Proposal
from node.round.liveness import Liveness
from node.round.rules import (
    OuterResult,
    Rules,
    base_version,
    build_seal,
    expected_accounts,
    left_out,
    plan_of,
    proposers,
    records_hash,
    refusal,
    steps_before,
)

REGOSSIP_SECONDS = 2.0  # own statements are repeated until the round is sealed: gossip drops in silence
RETRY_SECONDS = 2.0
EMPTY_PATIENCE = 3  # round timeouts that a holder in a complete replica waits before it agrees to an empty seal
MAX_EARLY = 256  # contributions to rounds that our view of the ledger does not reach yet


@dataclass
class RoundMachine:
    """The protocol's state for `account`, which holds a slot of `stage`.

    `version` is the newest V[s,.] on disk and `oldest` the oldest in an unbroken line to it (None: nothing yet);
    `last_trained` and `own` (round -> own contribution) come from disk too.
    """

    rules: Rules
    account: str
    stage: int
    view: RunView
    version: int | None = None
    oldest: int | None = None
    last_trained: int = -1
    own: dict[int, SignedContribution] = field(default_factory=dict)
    diverged: str | None = None  # why this node has stopped contributing
    training: int | None = None
    block: int = 0

    def __post_init__(self) -> None:
        self._books: dict[int, Book] = {}
        self._early: deque[e.ContributionSeen] = deque(maxlen=MAX_EARLY)
        self._neighbours: dict[str, e.NeighbourWants] = {}
        self._floor = 0  # the replica's round: never train below it
        self._told: e.WantRound | None = None
        self._adopting: int | None = None
        self._busy: set[object] = set()  # actions under way, by what they are about
        self._not_before: dict[object, float] = {}
        self._liveness = Liveness(self.rules, self.account)
        self._since: float | None = None  # when this member began to take part
        for round in self.own:
            self._file_own(self.own[round])

    # ---- what others may ask ---------------------------------------------------------------------------------------

    @property
    def slot(self) -> tuple[int, int] | None:
        """(replica, stage) while the ledger says so."""
        return self.view.slot_of(self.account)

    @property
    def unsealed(self) -> int:
        """The lowest round of our stage without a seal."""
        return self.view.next_round(self.stage)

    def next_round(self) -> int:
        """The round that this holder would train next: the replica's round is the maximum over its holders."""
        reachable = self.oldest + self.rules.delay if self.oldest else 0
        return max(self.unsealed, self.last_trained + 1, self._floor, reachable)

    def known_round(self, round: int) -> tuple[int, int]:
        """(contributions held with their payloads, contributions expected) of a round."""
        book = self._books.get(round)
        return len(book.usable()) if book else 0, len(expected_accounts(self.view, self.stage))

    def waiting_for(self, now: float) -> str | None:
        """What the node waits for, in words; None while it trains."""
        if self.diverged:
            return f"nothing: stopped contributing, {self.diverged}"
        if self.view.finished:
            return "nothing: the run is finished"
        if self.training is not None:
            return None
        if self.slot is None:
            return "a slot"
        if self.view.open_round is None:
            missing = self.view.config.min_replicas - len(self.view.complete_replicas())
            return f"{max(missing, 1)} more complete replica(s) before round 0 opens"
        if self.slot[0] not in self.view.complete_replicas():
            return f"holders for the free seats of replica {self.slot[0]}"
        round = self.next_round()
        if round >= self.rules.rounds:
            return "the last seals"
        base = base_version(self.rules, round)
        if self.version is None or base > self.version:
            held, expected = self.known_round(self.unsealed)
            if self.unsealed > (-1 if self.version is None else self.version):
                return f"the weights of version {base}"
            needed, signed = self.view.quorum(self.stage), self._signed(self.unsealed)
            return (
                f"the seal of round {self.unsealed} ({held}/{expected} contributions, {signed}/{needed} signatures"
                f"{', too few members cooperate' if now > self._overdue_at() else ''})"
            )
        return f"the neighbours of replica {self.slot[0]} to start round {round}"

    # ---- events ----------------------------------------------------------------------------------------------------

    def handle(self, event: e.Event, now: float) -> list[e.Action]:
        """Takes one event and returns the actions that are due now."""
        out: list[e.Action] = []
        self._since = now if self._since is None else self._since
        match event:
            case e.LedgerSeen():
                self._see_ledger(event, now, out)
            case e.ContributionSeen():
                self._see_contribution(event, now, out)
            case e.PayloadReady():
                self._busy.discard(("payload", event.payload))
                for book in self._books.values():
                    book.ready[event.payload] = event.size
            case e.PayloadRefused():
                self._busy.discard(("payload", event.payload))
                for book in self._books.values():
                    book.refused.add(event.payload)
                out.append(e.Reject(event.reason, event.payload.hex()))
            case e.PayloadMissing():
                self._busy.discard(("payload", event.payload))
                self._not_before["payload", event.payload] = now + RETRY_SECONDS
            case e.ProposalSeen():
                self._see_proposal(event, now, out)
            case e.AttestationSeen():
                self._see_attestation(event, now, out)
            case e.ReportSeen():
                self._see_report(event, now, out)
            case e.OuterComputed():
                self._busy.discard(("outer", event.round, event.listed))
                if event.round in self._books:
                    self._books[event.round].outer[event.listed] = OuterResult(event.weights, event.momentum)
            case e.OuterFailed():
                self._busy.discard(("outer", event.round, event.listed))
                self._not_before["outer", event.round, event.listed] = now + RETRY_SECONDS
            case e.SealSigned():
                self._busy.discard(("sign", event.digest))
                self._see_own_signature(event, out)
            case e.VersionAdopted():
                self._adopting = None
                if self.version is None or event.version != self.version + 1:
                    self.oldest = event.version
                self.version = event.version
            case e.VersionDiffers():
                self._adopting = None
                self.diverged = f"version {event.version} differs from its seal: {event.detail}"
            case e.VersionUnavailable():
                self._adopting = None
                self._not_before["adopt"] = now + RETRY_SECONDS
                self._not_before["jump"] = now  # the next try takes the newest version that a start needs, by hash
            case e.NeighbourWants():
                self._neighbours[event.link] = event
                if event.round is None:
                    self._told = None
            case e.RoundTrained():
                self.training = None
                self._busy.discard("abandon")  # it was asked for too late
                self.last_trained = max(self.last_trained, event.signed.contribution.round)
                self.own[event.signed.contribution.round] = event.signed
                self._file_own(event.signed)
            case e.RoundAbandoned():
                self.training = None
                self._busy.discard("abandon")
                self._not_before["start"] = now + 0.5
            case e.TransactionEnded():
                self._busy.discard(_subject(event.action))
                self._not_before[_subject(event.action)] = now + RETRY_SECONDS  # also mined: the view may lag behind
            case e.Tick():
                pass
        self._advance(now, out)
        return out

    def _see_ledger(self, event: e.LedgerSeen, now: float, out: list[e.Action]) -> None:
        before = self.view
        self.view, self.block = event.view, event.block
        if self.version is not None:  # a reorg may have taken seals back, or put others in their place
            while self.version > 0 and not self._same_version(before, self.version):
                self.version -= 1
            self.oldest = min(self.oldest or 0, self.version)
        for round in [round for round in self._books if round < self.unsealed - 1]:
            del self._books[round]
        past = [key for key, due in self._not_before.items() if due <= now and key != "jump"]
        for key in past:
            del self._not_before[key]
        early = list(self._early)
        self._early.clear()
        for contribution in early:
            self._see_contribution(contribution, now, out)

    def _same_version(self, before: RunView, version: int) -> bool:
        if version > self.unsealed:
            return False
        if version > before.next_round(self.stage):
            return True
        return before.weights(self.stage, version) == self.view.weights(self.stage, version) and before.momentum(
            self.stage, version
        ) == self.view.momentum(self.stage, version)

    def _see_contribution(self, event: e.ContributionSeen, now: float, out: list[e.Action]) -> None:
        statement = event.signed.contribution
        if statement.run == self.rules.run and statement.stage < self.rules.stages:
            unsealed = self.view.next_round(statement.stage)
            if statement.round < unsealed:
                return  # late, not wrong: its seal has decided
            member = event.signer == statement.account and self._holds_slot(event.signed)
            if member and unsealed + self.rules.delay < statement.round < self.rules.rounds:
                self._early.append(event)
                return
        reason = refusal(self.rules, self.view, event.signed, event.signer)
        if reason is not None:
            out.append(e.Reject(reason, event.peer))
            return
        self._liveness.heard(event.signer, now)
        if statement.stage != self.stage:
            return
        verdict, first = self._book(statement.round).add(event.signed)
        if verdict == "conflict" and first is not None:
            out += [e.KeepEvidence(first, event.signed), e.Reject("equivocation", event.peer)]
        elif verdict == "duplicate":
            out.append(e.Reject("equivocation", event.peer))

    def _see_proposal(self, event: e.ProposalSeen, now: float, out: list[e.Action]) -> None:
        if self._refuse_signer(event.signer, event.seal.stage, event.signature.hex()[:16], out):
            return
        self._hear(event.signer, event.seal.stage, event.seal.round, now)
        if event.seal.stage != self.stage or event.seal.round != self.unsealed:
            return
        order = proposers(self.rules, self.view, self.stage, event.seal.round, event.attempt)
        elapsed = max(0.0, now - (self.view.opened_at or now))
        if order[0] != event.signer or event.attempt > elapsed / self.rules.proposal_timeout + 2:
            out.append(e.Reject("not_the_proposer", event.signer))
            return
        if len(event.listed) != len(event.record_signatures):
            out.append(e.Reject("wrong_listing", event.signer))
            return
        if merkle_root(event.listed) != event.seal.contributions_root:  # anybody may have made the unsigned list
            out.append(e.Reject("wrong_listing", event.signer))
            return
        digest = event.seal.digest(self.rules.domain)
        book = self._book(event.seal.round)
        proposal = Proposal(event.seal, event.listed, event.record_signatures, event.attempt, event.signer)
        known = all(identity in book.contributions for identity in proposal.listed)
        if known and records_hash(self._records(book, proposal)) != proposal.seal.contributions_hash:
            out.append(e.Reject("wrong_listing", event.signer))  # the seal does not cover these signatures
            return
        if book.propose(digest, proposal):
            book.sign(digest, event.signer, event.signature)
        else:
            out.append(e.Reject("too_many_proposals", event.signer))

    def _see_attestation(self, event: e.AttestationSeen, now: float, out: list[e.Action]) -> None:
        if self._refuse_signer(event.signer, event.stage, event.digest.hex()[:16], out):
            return
        if self._liveness.is_news(event.signer, event.digest):  # its round is not signed: a repetition says nothing
            self._hear(event.signer, event.stage, event.round, now)
        if event.stage != self.stage or event.round != self.unsealed:
            return
        self._book(event.round).sign(event.digest, event.signer, event.signature)

    def _see_report(self, event: e.ReportSeen, now: float, out: list[e.Action]) -> None:
        if self._refuse_signer(event.signer, event.stage, "report", out):
            return
        self._hear(event.signer, event.stage, event.round, now)
        if event.stage != self.stage or event.round != self.unsealed:
            return
        book = self._book(event.round)
        book.reports[event.signer] = frozenset(event.holding)
        for identity in event.missing:
            signed = book.contributions.get(identity)
            if signed is not None and self._due(("help", identity), now, RETRY_SECONDS):
                out.append(e.GossipContribution(signed))

    def _see_own_signature(self, event: e.SealSigned, out: list[e.Action]) -> None:
        book = self._books.get(self.unsealed)
        if book is None or event.digest not in book.proposals:
            return
        book.signatures.setdefault(event.digest, {})[self.account] = event.signature  # however many there are

    def _refuse_signer(self, signer: str, stage: int, what: str, out: list[e.Action]) -> bool:
        if signer == self.account:
            return True  # somebody repeats our own words to us
        slot = self.view.slot_of(signer)
        if slot is None or slot[1] != stage:
            out.append(e.Reject("not_a_member", f"{signer} ({what})"))
            return True
        return False

    def _hear(self, signer: str, stage: int, round: int, now: float) -> None:
        """Statements about sealed rounds prove nothing: anybody may repeat those of a member that is gone."""
        if round >= self.view.next_round(stage):
            self._liveness.heard(signer, now)

    # ---- what is due ------------------------------------------------------------------------------------------------

    def _advance(self, now: float, out: list[e.Action]) -> None:
        self._adopt(now, out)
        if self.slot is None or self.slot[1] != self.stage:
            self._abandon("the slot is no longer ours", out)
            return
        if self.diverged is None:
            self._train(now, out)
            self._fetch(now, out)
            self._seal(now, out)
        for action in self._liveness.due(self.view, self.block, now):
            self._transact(action, now, out)

    def _adopt(self, now: float, out: list[e.Action]) -> None:
        newest = self.unsealed
        if self._adopting is not None or self.diverged or now < self._not_before.get("adopt", 0):
            return
        if self.version is not None and self.version >= newest:
            return
        jump = self.version is None or newest - self.version > 3 or self._not_before.pop("jump", None) is not None
        target: int = base_version(self.rules, newest) if jump else (self.version or 0) + 1
        if self.version is not None:
            target = max(target, self.version + 1)
        self._adopting = target
        out.append(e.AdoptVersion(target))

    def _train(self, now: float, out: list[e.Action]) -> None:
        assert self.slot is not None
        replica = self.slot[0]
        wants = [self._neighbours.get(link) for link in self._links()]
        # Nobody can honestly be further than this; a neighbour that lies holds us up only for as long as it is there.
        furthest = min(self.rules.rounds, (self.view.open_round or 0) + self.rules.delay + 2)
        named = [want.round for want in wants if want is not None and want.round is not None]
        self._floor = max(self._floor, min(max(named, default=0), furthest))
        if self.training is not None:
            if any(want is None or want.round is None for want in wants):
                self._abandon("a neighbour's pipe is gone", out)
            elif any(want.round > self.training + 1 for want in wants if want and want.round is not None):
                self._abandon("a neighbour is at a later round", out)
            return
        round = self.next_round()
        complete = replica in self.view.complete_replicas() and self.view.open_round is not None
        if round >= self.rules.rounds or not complete:
            return
        base = base_version(self.rules, round)
        startable = (
            self.version is not None
            and self.oldest is not None
            and self.oldest <= base <= self.version
            and round <= self.unsealed + self.rules.delay
            and now >= self._not_before.get("start", 0)
        )
        told = e.WantRound(round, startable)
        if told != self._told and all(want is not None and want.round is not None for want in wants):
            if self._told is not None and self._told.ready and self._told.round > self.last_trained:
                self._told = None
                out.append(e.ResetPipes(f"the replica goes on at round {round}"))
                return
            self._told = told
            out.append(told)
        if startable and all(want is not None and want.round == round and want.ready for want in wants):
            self.training = round
            payloads = {r: signed.contribution.payload for r, signed in self.own.items()}
            plan = plan_of(self.rules, self.view, self.stage, round)
            folded = left_out(self.rules, self.view, self.stage, payloads, round)
            out.append(e.StartRound(round, base, plan, steps_before(self.rules, self.view, round), folded))

    def _abandon(self, reason: str, out: list[e.Action]) -> None:
        if self.training is not None and "abandon" not in self._busy:
            self._busy.add("abandon")
            self._told = None
            out.append(e.AbandonRound(self.training, reason))

    def _fetch(self, now: float, out: list[e.Action]) -> None:
        for book in self._books.values():
            if book.round < self.unsealed:
                continue
            for signed in book.contributions.values():
                payload = signed.contribution.payload
                key = ("payload", payload)
                if payload in book.ready or payload in book.refused or key in self._busy:
                    continue
                if now >= self._not_before.get(key, 0):
                    self._busy.add(key)
                    out.append(e.FetchPayload(signed))

    def _seal(self, now: float, out: list[e.Action]) -> None:
        for recent in (self.unsealed, self.unsealed + 1):
            if recent in self.own and self._due(("gossip", recent), now, REGOSSIP_SECONDS):
                out.append(e.GossipContribution(self.own[recent]))
        round, opened_at = self.view.open_round, self.view.opened_at
        if round is None or opened_at is None or round != self.unsealed:
            return
        book = self._book(round)
        stuck = now > self._overdue_at() or (
            book.ready_since is not None and now > book.ready_since + self.rules.proposal_timeout
        )
        if stuck and self._due("report", now, self.rules.proposal_timeout / 2):  # also says: I am alive
            out.append(e.GossipReport(round, book.holding(), ()))
        if self.version != round:
            return
        usable = book.usable()
        graced = now >= opened_at + self.rules.straggler_grace
        if book.ready_since is None and (graced or set(expected_accounts(self.view, self.stage)) <= set(usable)):
            book.ready_since = now
        if book.ready_since is not None:
            attempt = int((now - book.ready_since) / self.rules.proposal_timeout)
            self._propose(book, usable, attempt, now, out)
        for digest, proposal in list(book.proposals.items()):
            if any(not self._holds_slot(book.contributions.get(identity)) for identity in proposal.listed):
                del book.proposals[digest]  # the ledger refuses accounts that have lost their slot: propose again
                continue
            self._attest(book, digest, proposal, usable, graced, now, out)
            self._send(book, digest, proposal, now, out)

    def _propose(self, book: Book, usable: dict[str, bytes], attempt: int, now: float, out: list[e.Action]) -> None:
        mine = any(p.signer == self.account and p.attempt == attempt for p in book.proposals.values())
        if mine or proposers(self.rules, self.view, self.stage, book.round, attempt)[0] != self.account:
            return
        chosen = {a: one for a, one in usable.items() if self._holds_slot(book.contributions[one])}
        if attempt:  # from the second attempt on: only what a quorum of members reports holding
            reports = {**book.reports, self.account: frozenset(book.holding())}
            quorum = self.view.quorum(self.stage)
            chosen = {a: one for a, one in chosen.items() if sum(one in held for held in reports.values()) >= quorum}
        listed = tuple(chosen[account] for account in ascending(set(chosen)))
        if not listed and not self._may_be_empty(book.round, now):
            return
        result = self._outer(book, listed, now, out)
        if result is not None:
            records = book.listing(listed)
            seal = build_seal(self.rules, self.view, self.stage, book.round, records, result)
            digest = seal.digest(self.rules.domain)
            known = book.proposals.get(digest)
            if known is None or known.attempt < attempt:  # the same seal again: the later attempt's turn is ours
                signatures = tuple(signed.signature for signed in records)
                book.proposals[digest] = Proposal(seal, listed, signatures, attempt, self.account)

    def _attest(
        self,
        book: Book,
        digest: bytes,
        proposal: Proposal,
        usable: dict[str, bytes],
        graced: bool,
        now: float,
        out: list[e.Action],
    ) -> None:
        signature = book.signatures.get(digest, {}).get(self.account)
        if signature is not None:
            if self._due(("attest", digest), now, REGOSSIP_SECONDS):
                mine = proposal.signer == self.account
                out.append(
                    e.GossipProposal(
                        proposal.seal, proposal.listed, proposal.record_signatures, proposal.attempt, signature
                    )
                    if mine
                    else e.GossipAttestation(book.round, digest, signature)
                )
            return
        missing = tuple(identity for identity in proposal.listed if not book.is_ready(identity))
        if missing:
            if self._due(("missing", digest), now, REGOSSIP_SECONDS):
                out.append(e.GossipReport(book.round, book.holding(), missing))
            return
        listed = self._records(book, proposal)
        accounts = tuple(signed.contribution.account for signed in listed)
        if accounts != ascending(set(accounts)) or len(listed) < len(proposal.listed):
            del book.proposals[digest]
            out.append(e.Reject("wrong_seal", proposal.signer))
            return
        held = {account for account, one in usable.items() if self._holds_slot(book.contributions[one])}
        if not graced and not held <= set(accounts):
            return  # it leaves out something we hold: before the grace ends, wait for a fuller one
        if not listed and not self._may_be_empty(book.round, now):
            return
        result = self._outer(book, proposal.listed, now, out)
        if result is None or ("sign", digest) in self._busy:
            return
        if proposal.seal == build_seal(self.rules, self.view, self.stage, book.round, listed, result):
            self._busy.add(("sign", digest))
            out.append(e.SignSeal(proposal.seal))
        else:
            del book.proposals[digest]
            out.append(e.Reject("wrong_seal", proposal.signer))

    def _send(self, book: Book, digest: bytes, proposal: Proposal, now: float, out: list[e.Action]) -> None:
        holders = set(self.view.holders(self.stage))
        signatures = {a: s for a, s in book.signatures.get(digest, {}).items() if a in holders}
        if self.account not in signatures or self._counting(signatures) < self.view.quorum(self.stage):
            return
        records = self._records(book, proposal)
        if len(records) < len(proposal.listed):
            return  # somebody repeats our own vote of before a restart
        since = book.quorum_since.setdefault(digest, now)
        order = proposers(self.rules, self.view, self.stage, book.round, proposal.attempt)
        patience = order.index(self.account) * self.rules.proposal_timeout  # the proposer first, then the next in order
        if now >= since + patience:
            ordered = tuple((account, signatures[account]) for account in ascending(set(signatures)))
            self._transact(e.SendSeal(proposal.seal, records, ordered), now, out)

    # ---- helpers ----------------------------------------------------------------------------------------------------

    def _outer(self, book: Book, listed: tuple[bytes, ...], now: float, out: list[e.Action]) -> OuterResult | None:
        if not listed:  # an empty seal leaves weights and momentum as they are
            return OuterResult(self.view.weights(self.stage, book.round), self.view.momentum(self.stage, book.round))
        key = ("outer", book.round, listed)
        if listed not in book.outer and key not in self._busy and now >= self._not_before.get(key, 0):
            self._busy.add(key)
            out.append(e.ComputeOuter(book.round, book.listing(listed)))
        return book.outer.get(listed)

    def _records(self, book: Book, proposal: Proposal) -> tuple[SignedContribution, ...]:
        """The listed contributions with the proposal's signatures; those not held or not so signed are left out."""
        found = []
        for identity, signature in zip(proposal.listed, proposal.record_signatures, strict=True):
            held = book.contributions.get(identity)
            if held is None:
                continue
            signed = held if held.signature == signature else SignedContribution(held.contribution, signature)
            try:
                if signed is not held:
                    signed.verify(self.rules.domain)
                found.append(signed)
            except SignatureError:
                continue
        return tuple(found)

    def _transact(self, action: e.Action, now: float, out: list[e.Action]) -> None:
        key = _subject(action)
        if key not in self._busy and now >= self._not_before.get(key, 0):
            self._busy.add(key)
            out.append(action)

    def _due(self, key: object, now: float, every: float) -> bool:
        if now < self._not_before.get(key, 0):
            return False
        self._not_before[key] = now + every
        return True

    def _book(self, round: int) -> Book:
        return self._books.setdefault(round, Book(round))

    def _may_be_empty(self, round: int, now: float) -> bool:
        """An empty seal wastes everybody's round: not before the timeout, which counts anew for who has just started
        (perhaps everybody has), and not while we may still contribute."""
        hopeless = self.slot is None or self.slot[0] not in self.view.complete_replicas()
        patience = 1 if hopeless else EMPTY_PATIENCE
        since = max(self.view.opened_at or 0, self._since or 0)
        return now >= since + patience * self.rules.round_timeout and self.training != round

    def _holds_slot(self, signed: SignedContribution | None) -> bool:
        """Whether a listed account still holds the slot it contributed from; unknown contributions may."""
        if signed is None:
            return True
        statement = signed.contribution
        return self.view.slot_of(statement.account) == (statement.replica, statement.stage)

    def _file_own(self, signed: SignedContribution) -> None:
        if signed.contribution.round >= self.unsealed:
            book = self._book(signed.contribution.round)
            book.add(signed)
            book.ready[signed.contribution.payload] = signed.contribution.payload_size

    def _links(self) -> list[str]:
        return ["previous"] * (self.stage > 0) + ["next"] * (self.stage < self.rules.stages - 1)

    def _counting(self, signatures: dict[str, bytes]) -> int:
        active = set(self.view.active(self.stage))
        return len(set(signatures) & active) if active else len(signatures)

    def _signed(self, round: int) -> int:
        book = self._books.get(round)
        return max((self._counting(s) for s in book.signatures.values()), default=0) if book else 0

    def _overdue_at(self) -> float:
        return (self.view.opened_at or 0) + self.rules.round_timeout


def _subject(action: e.Action) -> object:
    """What a transaction is about: one at a time for each."""
    match action:
        case e.SendSeal(seal=seal):
            return "seal", seal.round
        case e.SendAccuse(account=account) | e.SendEvict(account=account):
            return type(action), account
    return type(action)
