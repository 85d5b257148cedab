"""The view beside the contract on an EVM, through random lives of small runs: what they know is equal all along, and
the view foretells which transactions the contract takes."""

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from direct_chain import DirectChain
from eth_hash.auto import keccak
from ledger_run import NAME, check, config, seal_of, signatures_of, verdicts_of, work

from dlx.ledger.abi import ZERO_ACCOUNT
from dlx.ledger.client import seal_argument
from dlx.ledger.errors import Reverted
from dlx.ledger.events import Convicted, Dismissed, Sealed
from dlx.ledger.keys import account_of
from dlx.ledger.typed import ANY_STAGE, WITHHELD, SiteMember, conviction_entries, run_id
from dlx.ledger.view import runs
from dlx.ledger.view.recount import verify_conviction, verify_seal
from dlx.ledger.view.run_view import RunView

KEYS = {account_of(key): key for key in (keccak(b"member %d" % i) for i in range(8))}
ACCOUNTS = list(KEYS)
FOUNDERS = [ACCOUNTS[0], ACCOUNTS[-1]]  # one works, the other does not
SITES = [keccak(b"site %d" % i) for i in range(2)]
MIN, TIMEOUT, EVICTION = 10, 100, 60
CHECK_EVERY = 4  # steps: it asks the contract for all that it knows, and where they differ they go on to differ


MOODS = {
    "sites": "enlist enlist enlist slot slot slot leave leave leave move seal",
    "churn": "join join join leave move move dismiss reclaim seal seal seal",
    "busy": "join leave accuse" + " seal" * 20,
    "silent": "join accuse accuse accuse answer answer evict evict deal seal seal seal seal",
    "founded": "join join join leave move dismiss succeed succeed accuse evict seal seal seal",
    "judging": "join join move leave convict convict seal seal seal seal",
}


@pytest.fixture(scope="module")
def chain() -> DirectChain:
    return DirectChain(list(KEYS.values()))


class Life:
    """A run whose members do anything at any time."""

    def __init__(self, chain: DirectChain, seed: int, **settings: Any) -> None:
        self.chain, self.chance = chain, random.Random(seed)
        random.seed(seed)  # for the contents of contributions
        times = {"min_round_time": MIN, "round_timeout": TIMEOUT, "eviction_time": EVICTION, "rounds": 400}
        self.config = config(**{**times, "min_replicas": 1, **settings})
        self.run = run_id(chain.domain.chain_id, chain.ledger, ACCOUNTS[0], self.config.manifest)
        self.view = RunView(self.run, chain.domain)
        self.done: Counter[str] = Counter()
        self.events: list[Any] = []
        genesis = [bytes([1 + stage]) * 32 for stage in range(self.config.stages)]
        self.write(ACCOUNTS[0], "createRun", tuple(vars(self.config).values()), NAME, genesis, FOUNDERS)

    def write(self, account: str, function: str, *args: Any) -> None:
        for event in self.chain.write(KEYS[account], function, *args):
            if isinstance(event, Sealed):
                assert verify_seal(self.view, event) == []
            if isinstance(event, Convicted):
                assert {problem.check for problem in verify_conviction(self.view, event)} <= {"accused"}
            self.view.apply(event)
            self.events.append(event)
        self.done[function] += 1
        self.chain.now += self.chance.choice([0, 1, 1])

    def tries(self, account: str, function: str, *args: Any, foreseen: bool) -> None:
        """Sends it; the view must have known whether the contract takes it."""
        try:
            self.write(account, function, self.run, *args)
        except Reverted as error:
            assert not foreseen, f"{function}{args}: {error}"
            self.done[f"no {function}"] += 1
        else:
            assert foreseen, f"{function}{args} was taken"

    def check(self) -> None:
        check(self.view, lambda function, *args: self.chain.read(function, self.run, *args), ACCOUNTS, self.chain.now)
        for account in self.view.members():
            assert self.chain.read("isForfeit", self.run, account) == (self.view.is_forfeit(account),)

    def step(self, mood: str) -> None:
        view, chance, now = self.view, self.chance, self.chain.now
        me, other = chance.choice(ACCOUNTS), chance.choice(ACCOUNTS)
        choice = chance.choice(MOODS[mood].split())
        if chance.random() < 0.3 and any(map(view.may_deal, range(self.config.max_replicas))):
            choice = "deal"
        match choice:
            case "join":
                self.join(me)
            case "enlist":
                self.enlist(me, chance.choice([now - 1, now, now + 10 * TIMEOUT, now + 10 * TIMEOUT]))
            case "slot":
                self.slot_site(me)
            case "leave":
                self.tries(me, "leaveRun", foreseen=view.slot_of(me) is not None)
            case "move":
                able = [account for account in ACCOUNTS if view.may_move(account, now)]
                me = chance.choice(able or ACCOUNTS)
                self.tries(me, "moveDown", foreseen=view.may_move(me, now))
            case "deal":
                able = [replica for replica in range(self.config.max_replicas) if runs.is_dealable(view, replica)]
                replica = chance.choice(able or range(self.config.max_replicas))
                if not able or view.may_deal(replica):
                    self.tries(me, "deal", replica, foreseen=view.may_deal(replica))
            case "accuse":
                if view.open_round is not None and chance.random() < 0.5:
                    now = self.chain.now = max(now, view.opened_at + TIMEOUT + 1)
                able = [account for account in ACCOUNTS if view.may_accuse(me, account, now)]
                other = chance.choice(able or ACCOUNTS)
                self.tries(me, "accuse", other, foreseen=view.may_accuse(me, other, now))
            case "answer":
                me = chance.choice([*view.accusations, me])
                holds = view.slot_of(me) is not None
                if me in view.accusations or not holds:
                    self.tries(me, "answer", foreseen=holds)
            case "evict":
                if chance.random() < 0.7:
                    now = self.chain.now = now + EVICTION
                able = [account for account in ACCOUNTS if view.may_evict(account, now)]
                other = chance.choice(able or ACCOUNTS)
                self.tries(me, "evict", other, foreseen=view.may_evict(other, now))
            case "dismiss" | "succeed":
                able = [(by, one) for by in ACCOUNTS for one in ACCOUNTS if view.may_dismiss(by, one, now)]
                me, other = chance.choice(able or [(me, other)])
                foreseen = view.may_dismiss(me, other, now)
                successor = chance.choice(ACCOUNTS) if choice == "succeed" else ZERO_ACCOUNT
                self.tries(me, "dismiss", other, successor, foreseen=foreseen)
            case "reclaim":
                if chance.random() < 0.3:
                    now = self.chain.now = now + 8 * TIMEOUT
                able = [(by, one) for by in ACCOUNTS for one in ACCOUNTS if view.may_reclaim(by, one, now)]
                me, other = chance.choice(able or [(me, other)])
                self.tries(me, "reclaim", other, foreseen=view.may_reclaim(me, other, now))
            case "convict":
                self.convict(other)
            case "seal":
                stages = [s for s in range(self.config.stages) if view.next_round(s) == view.open_round]
                self.seal(chance.choice(stages), mood) if stages else self.join(me)

    def join(self, me: str) -> None:
        stage = self.chance.choice([ANY_STAGE, *range(self.config.stages)])
        try:
            self.write(me, "joinRun", self.run, stage)
        except Reverted as error:
            view = self.view
            holds = view.slot_of(me) is not None
            assert (error.name == "AlreadyHolding") == holds
            full = all(view.free_slot(s, me, self.chain.now) is None for s in range(self.config.stages))
            known = ("SealPending", "NoFreeSlot", "RunFinished", "IsConvicted")
            assert holds or full or error.name in known, error.name
            assert (error.name == "IsConvicted") == view.is_convicted(me)

    def enlist(self, me: str, until: int) -> None:
        """By one of two sites' keys, or by one that named another account: that is a third site."""
        named = me if self.chance.random() < 0.9 else self.chance.choice(ACCOUNTS)
        signature = SiteMember(self.run, named).sign(self.chain.domain, self.chance.choice(SITES))
        self.tries(me, "enlist", self.chance.choice([ANY_STAGE, 0]), until, signature, foreseen=True)

    def slot_site(self, me: str) -> None:
        """Mostly machines that could sit together; any others too."""
        view, chance, now = self.view, self.chance, self.chain.now
        stages, mates = range(self.config.stages), [one for one in ACCOUNTS if view.site_of(one) == view.site_of(me)]

        def choose() -> tuple[int, list[str]]:
            replica, able = chance.randrange(self.config.max_replicas), list(view.enlisted(view.site_of(me) or "", now))
            chance.shuffle(able)
            fill = iter([*able, *chance.choices(ACCOUNTS, k=len(stages))])
            return replica, [view.member_at(replica, stage) or next(fill) for stage in stages]

        site = view.site_of(me)
        tries = [choose() for _ in range(8)]
        able = [one for one in tries if site is not None and view.may_slot(site, *one, now)]
        replica, accounts = chance.choice(able or tries)
        if chance.random() < 0.1:
            accounts[0] = chance.choice(ACCOUNTS)
        me = chance.choice(mates) if chance.random() < 0.9 else chance.choice(ACCOUNTS)
        site = view.site_of(me)
        foreseen = site is not None and view.may_slot(site, replica, accounts, now)
        self.tries(me, "joinSite", replica, accounts, foreseen=foreseen)

    def convict(self, account: str) -> None:
        """By anybody, of anything, mostly by most who may."""
        view, chance = self.view, self.chance
        if chance.random() < 0.8:  # so that some stay
            account = chance.choice(ACCOUNTS[:3])
        stage = chance.randrange(self.config.stages)
        jury = view.jury(stage, account)
        signers = [one for one in ACCOUNTS if chance.random() < (0.9 if one in jury else 0.1)]
        chance.shuffle(signers)
        round = chance.randrange(view.next_round(stage) + 1)
        verdicts = [
            *verdicts_of(view, stage, round, account, signers, KEYS),
            *verdicts_of(view, stage, round, account, signers[:1], KEYS, finding=WITHHELD),  # twice, also
        ]
        if not verdicts:
            return
        about = verdicts[0].verdict.contribution
        entries = conviction_entries([one for one in verdicts if one.verdict.contribution == about], view.domain)
        foreseen = view.may_convict(stage, account, signers)
        self.tries(ACCOUNTS[0], "convict", *about[1:], entries, foreseen=foreseen)

    def seal(self, stage: int, mood: str) -> None:
        """Anybody signs anything; makers prove their records in either way, or not at all."""
        view, chance = self.view, self.chance
        lazy = ACCOUNTS[-2:]  # who never works
        replicas = range(self.config.max_replicas)
        able = {r: [a for a in ACCOUNTS if a not in lazy and view.admissible(a, stage, r)] for r in replicas}
        makers: dict[int, str] = {}
        for replica in replicas:
            choice = [a for a in able[replica] if a not in makers.values()]
            if choice and chance.random() < (0.4 if mood == "silent" else 0.9):
                makers[replica] = chance.choice(choice)
        wrong = chance.random() < 0.1  # then the member's signature may cover a record that another one made
        if wrong:
            makers[chance.choice(replicas)] = chance.choice(ACCOUNTS)
        likely = [a for a in ACCOUNTS if view.may_vote(a, stage, self.chain.now) or chance.random() < 0.2]
        signers = [a for a in likely if chance.random() < 0.9]
        chance.shuffle(signers)
        signers.sort(key=lambda account: account not in makers.values())
        founder = chance.choice([*FOUNDERS, *FOUNDERS, None, *ACCOUNTS[1:2]])  # the last is none
        wait = chance.choice([0, MIN, MIN, MIN, TIMEOUT, TIMEOUT + chance.randrange(5 * TIMEOUT)])
        if mood == "silent" and chance.random() < 0.05:
            wait = 33 * TIMEOUT
        self.chain.now = max(self.chain.now, view.opened_at + wait)
        counted = work(view, stage, makers, KEYS)
        seal = seal_of(view, stage, counted)
        signatures = signatures_of(view, seal, counted, signers, KEYS, founder)
        makes = [*makers.values()]
        foreseen = view.may_seal(stage, makes, signers, self.chain.now, founder in FOUNDERS)
        before = (
            view.weigh(stage, makes, signers, self.chain.now, founder in FOUNDERS),
            view.needed(stage, self.chain.now),
            self.chain.now - view.opened_at,
        )
        try:
            self.write(chance.choice(ACCOUNTS), "seal", seal_argument(seal, signatures))
        except Reverted as error:
            assert wrong or not foreseen, error.name
            self.done[f"no seal: {error.name}"] += 1
        else:
            assert wrong or foreseen, (wait, makes, signers, founder, before)
            sealed = view.sealed[stage, seal.round]
            assert wrong or sealed.accounts == tuple(makers[replica] for replica in sorted(makers))


ALL = ("churn", "busy", "silent", "busy", "judging")
LIVES = (
    (1, {}, ALL),
    (3, {"stages": 1, "max_replicas": 4}, ALL),
    (2, {"max_replicas": 4, "quorum_numerator": 3, "quorum_denominator": 5}, ALL),
    (4, {"max_replicas": 4}, ("sites", "sites", "silent")),
    (8, {"stages": 1, "max_replicas": 4}, ALL),
    (7, {"max_replicas": 3}, ("founded", "founded", "busy")),
)


@pytest.mark.slow
def test_the_view_knows_what_the_contract_knows(chain):
    kinds: Counter[str] = Counter()
    for seed, settings, moods in LIVES:
        life = live(chain, seed, settings, steps=100, moods=moods)
        kinds.update(type(event).__name__ for event in life.events)
        kinds["reserved"] += sum(getattr(event, "return_until", 0) > 0 for event in life.events)
        kinds["succeeded"] += sum(getattr(event, "until", 0) > 0 for event in life.events if type(event) is Dismissed)
        kinds["forfeit"] += sum(getattr(event, "forfeit", False) for event in life.events)
        kinds["empty"] += sum(getattr(event, "count", 1) == 0 for event in life.events)
    seen = (
        "RunCreated RunOpened Joined SiteEnlisted SitePlaced Left Moved Dealt Accused Answered Evicted Convicted Sealed"
        " Dismissed reserved succeeded forfeit empty"
    )
    assert set(seen.split()) <= set(+kinds), kinds


@pytest.mark.slow
def test_slots_that_stand_still_are_reclaimed_as_the_view_foresees(chain):
    """At every moment, of every member, by everybody."""
    life = Life(chain, 5, stages=1, max_replicas=3)
    view, members, late = life.view, ACCOUNTS[1:4], ACCOUNTS[4:6]

    def reclaims() -> list[tuple[str, str]]:
        found = [(by, one) for by in ACCOUNTS for one in ACCOUNTS if view.may_reclaim(by, one, chain.now)]
        for by in ACCOUNTS:
            for one in ACCOUNTS:
                if (by, one) not in found:
                    life.tries(by, "reclaim", one, foreseen=False)
        return found

    def round(who: Sequence[str]) -> None:
        chain.now = max(chain.now, view.opened_at + 5 * TIMEOUT)
        counted = work(view, 0, {view.member(one).replica: one for one in who}, KEYS)
        seal = seal_of(view, 0, counted)
        entries = signatures_of(view, seal, counted, who, KEYS, FOUNDERS[0] if view.vacuum(0, chain.now) else None)
        life.write(ACCOUNTS[0], "seal", seal_argument(seal, entries))

    for one in members:
        life.write(one, "joinRun", life.run, 0)
    for _ in range(8):
        round(members)
    for one in members:
        life.write(one, "leaveRun", life.run)
    chain.now += 1
    for one in late:
        life.write(one, "joinRun", life.run, 0)
    chain.now = view.opened_at + 9 * TIMEOUT
    assert reclaims() == [], "a slot is free"
    life.write(ACCOUNTS[6], "joinRun", life.run, 0)
    assert {by for by, _ in reclaims()} == {*members}
    chain.now = view.opened_at + 8 * TIMEOUT
    assert reclaims() == [], "too early"
    chain.now = view.opened_at + 8 * TIMEOUT + 1
    for _ in range(3):
        by, one = reclaims()[0]
        life.tries(by, "reclaim", one, foreseen=True)
        life.check()
    assert reclaims() == []
    assert life.done["reclaim"] == 3
    round(members)


@pytest.mark.slow
def test_a_stage_that_seals_what_its_members_made_up_goes_to_successors_as_the_view_foresees(chain):
    """The stage that stands still is another one. At every moment, by everybody."""
    life = Life(chain, 6, stages=2, max_replicas=3, horizon=128)
    view, honest, captors, successors = life.view, ACCOUNTS[1:3], ACCOUNTS[3:5], ACCOUNTS[5:7]
    founder = FOUNDERS[-1]

    def seal(stage: int, who: Sequence[str]) -> None:
        chain.now = max(chain.now, view.opened_at + 12 * TIMEOUT)
        counted = work(view, stage, {view.member(one).replica: one for one in who}, KEYS)
        sealed = seal_of(view, stage, counted)
        signers = [*who, *(one for one in view.members_in(stage) if one not in who)]
        life.write(founder, "seal", seal_argument(sealed, signatures_of(view, sealed, counted, signers, KEYS, founder)))

    def able(function: str, *more: str) -> list[tuple[str, str]]:
        """Whom the view lets do it to whom; the ledger refuses all others."""
        may = getattr(view, f"may_{function}")
        pairs = [(by, one) for by in ACCOUNTS for one in ACCOUNTS]
        for by, one in pairs:
            if not may(by, one, chain.now):
                life.tries(by, function, one, *more, foreseen=False)
        return [pair for pair in pairs if may(*pair, chain.now)]

    for stage, members in enumerate((honest, captors)):
        for one in members:
            life.write(one, "joinRun", life.run, stage)
    for _ in range(18):
        seal(0, honest)
        seal(1, captors)
    for count in range(32):
        if count % 8 == 7:  # before that most of the stage's weight was the founders'
            assert {one for _, one in able("dismiss", successors[0])} == {*honest}
        seal(0, [])
        seal(1, captors)
    assert {one for _, one in able("dismiss", successors[0])} == {*honest, *captors}
    for captor, successor in zip(captors, successors, strict=True):
        life.tries(founder, "dismiss", captor, successor, foreseen=True)
        life.check()
    chain.now += 1
    for one in successors:
        life.write(one, "joinRun", life.run, 1)
        life.check()
    life.write(ACCOUNTS[0], "joinRun", life.run, 1)  # the last slot
    for _ in range(2):
        chain.now += 10 * TIMEOUT
        assert able("reclaim") == []
    seal(0, honest)
    seal(1, [])
    chain.now = view.opened_at + 9 * TIMEOUT
    assert {by for by, _ in able("reclaim")} == {*captors}, "no stage stands still"


def live(chain: DirectChain, seed: int, settings: dict[str, Any], steps: int, moods: tuple[str, ...] = ALL) -> Life:
    life = Life(chain, seed, **settings)
    for step in range(steps):
        life.step(moods[step // 20 % len(moods)])
        if step % CHECK_EVERY == CHECK_EVERY - 1:
            life.check()
    return life
