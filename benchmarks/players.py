"""Kinds of members of a stage, and games in which they play against honest ones by `benchmarks.weight`'s rules.

Accounts of the player are named x..., those of the others h.... Times that a game tells are in round timeouts.
"""

import json
import random
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from benchmarks.weight import (
    EVICTION,
    SHORTEST,
    TIMEOUT,
    Rules,
    Stage,
    convicted,
    convicts,
    credits_of,
    dismissible,
    joined,
    left,
    seal,
    takes,
    total,
    vacuum,
    weight_of,
)
from dlx.ledger.view.weights import FULL, SEAL_PAY

ROUND = 30  # seconds that an honest round takes
SLOTS = 60
STEPS = 16
DRAWN = 1 / 16  # how often a contribution is drawn for a check
WINDOW = 64  # rounds after an epoch until its pay can be claimed
FOREVER = 1 << 40
DAY = 86400
GAS = json.loads((Path(__file__).parent.parent / "contracts" / "gas.json").read_text())
ACCOUNT = 104_000 + GAS["joinRun"]  # with its registration


def ours(accounts: Iterable[str]) -> list[str]:
    """The player's."""
    return [account for account in accounts if account.startswith("x")]


def others(accounts: Iterable[str]) -> list[str]:
    """All but the player's."""
    return [account for account in accounts if not account.startswith("x")]


def part(stage: Stage) -> float:
    """The player's part of the weight."""
    half = stage.rules.absent
    return weight_of(stage, ours({**stage.weights, **stage.gone}), half) / total(stage, half)


def birth(rules: Rules, mine: int, slots: int = SLOTS) -> Stage:
    """A stage before its first seal; `mine` of its slots are the player's."""
    return Stage(rules, weights={f"{'x' if number < mine else 'h'}{number}": 0 for number in range(slots)})


def grown(rules: Rules, mine: int, slots: int = SLOTS) -> Stage:
    """A stage whose members have worked alike for long."""
    stage = birth(rules, mine, slots)
    return replace(stage, weights=dict.fromkeys(stage.weights, FULL // slots))


def entered(rules: Rules, mine: int, slots: int = SLOTS) -> Stage:
    """A stage in which the others have worked alike for long, and the player has just taken its slots."""
    stage = birth(rules, mine, slots)
    weight = FULL // (slots - mine)
    return replace(stage, weights={account: weight * account.startswith("h") for account in stage.weights})


def earliest(
    stage: Stage, signers: Collection[str], makers: Collection[str], founder: bool, shortest: int = ROUND
) -> int:
    """Seconds from the opening until the ledger takes a seal of these, `shortest` or more; FOREVER: it never does."""

    def taken(wait: int) -> bool:
        return takes(replace(stage, now=stage.opened + wait), signers, makers, founder)

    low = max(shortest, stage.now - stage.opened)
    if taken(low):
        return low
    high = low + TIMEOUT
    while not taken(high):
        high = low + 2 * (high - low)
        if high > 4096 * TIMEOUT:
            return FOREVER
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if taken(middle) else (middle, high)
    return high


class Move(NamedTuple):
    """What the player does in a round: who contributes how many steps, and who signs at once. The others of its
    accounts sign at the last moment or never. `prevented` is how many honest records it keeps out, of others in each
    round, as deals have it. A censor sends late seals itself, with as few signatures as it can."""

    steps: dict[str, int]
    early: list[str]
    prevented: int = 0
    censors: bool = False
    gas: int = 0


Act = Callable[[Stage, int], tuple[Stage, Move]]
Founder = Callable[[int], bool]


def there(number: int) -> bool:
    """A founder that signs in every round."""
    return True


def gone(number: int) -> bool:
    """A founder that never signs."""
    return False


def works(stage: Stage, number: int) -> tuple[Stage, Move]:
    """What an honest member does."""
    mine = ours(stage.weights)
    return stage, Move(dict.fromkeys(mine, STEPS), mine)


def works_in_part(stage: Stage, number: int) -> tuple[Stage, Move]:
    """In two rounds of eight."""
    return works(stage, number) if number % 8 < 2 else (stage, Move({}, []))


def works_slowly(stage: Stage, number: int) -> tuple[Stage, Move]:
    """What an honest member of a slow machine does: a quarter of the steps."""
    mine = ours(stage.weights)
    return stage, Move(dict.fromkeys(mine, STEPS // 4), mine)


def keeps_silent(stage: Stage, number: int) -> tuple[Stage, Move]:
    """Neither works nor signs; it answers where that helps, so it keeps its slots for 8 seals and 16 more."""
    gas = GAS["answer"] * len(ours(stage.weights)) if stage.seals == 8 else 0
    if stage.seals >= 24:
        for account in ours(stage.weights):
            stage = left(stage, account)
    return stage, Move({}, [], gas=gas)


def blocks(stage: Stage, number: int) -> tuple[Stage, Move]:
    """Works, and signs at the last moment or never."""
    return stage, Move(dict.fromkeys(ours(stage.weights), STEPS), [])


def censors(stage: Stage, number: int) -> tuple[Stage, Move]:
    """Likewise, and sends late seals itself."""
    return stage, Move(dict.fromkeys(ours(stage.weights), STEPS), [], censors=True)


def leaves(stage: Stage, number: int) -> tuple[Stage, Move]:
    """In each second round it leaves when the round has begun; it is back for the next."""
    if number % 2:
        mine = ours(stage.weights)
        for account in mine:
            stage = left(stage, account)
        return stage, Move({}, [], gas=GAS["leaveRun"] * len(mine))
    back = ours(stage.gone)
    for account in back:
        stage = joined(stage, account)
    stage, move = works(stage, number)
    return stage, move._replace(gas=GAS["joinRun"] * len(back))


def hops(stage: Stage, number: int) -> tuple[Stage, Move]:
    """Leaves after each 64 rounds and works on with fresh accounts: what it left counts beside what it earns."""
    gas = 0
    if number % 64 == 63:
        for account in ours(stage.weights):
            stage = joined(left(stage, account), f"x{number}-{account}")
            gas += GAS["leaveRun"] + ACCOUNT
    stage, move = works(stage, number)
    return stage, move._replace(gas=gas)


def breaks(stage: Stage, number: int) -> tuple[Stage, Move]:
    """In a run of two stages half of its slots work; each other one keeps a replica from being counted."""
    mine = ours(stage.weights)
    working = mine[: len(mine) // 2]
    return stage, Move(dict.fromkeys(working, STEPS), mine, prevented=len(mine) - len(working))


def breaks_in_part(stage: Stage, number: int) -> tuple[Stage, Move]:
    """Likewise, but in two rounds of eight all work, so that none of its slots is ever forfeit."""
    return works(stage, number) if number % 8 < 2 else breaks(stage, number)


def breaks_otherwise(stage: Stage, number: int) -> tuple[Stage, Move]:
    """In a run of two stages all its slots work in two rounds of eight. In the others each keeps a replica from being
    counted, half of them one of this stage's others."""
    if number % 8 < 2:
        return works(stage, number)
    return stage, Move({}, ours(stage.weights), prevented=len(ours(stage.weights)))


def invents(seed: int, founder: Founder, working: int = 0, times: int = 1) -> Act:
    """Sends noise until it is drawn, is convicted if it can be, and comes back with a new account at once. The first
    `working` of its accounts work, and convict none of its own. Of steps it states so many `times` what others do."""
    chance, drawn, made = random.Random(seed), set[str](), 0

    def act(stage: Stage, number: int) -> tuple[Stage, Move]:
        nonlocal made
        before = made
        for account in ours(stage.weights)[working:]:
            if number and chance.random() < DRAWN:
                drawn.add(account)
            if account in drawn and convicts(stage, account, others(stage.weights), founder(number)):
                made += 1
                stage = joined(convicted(stage, account), f"xx{made}")
        stage, move = works(stage, number)
        steps = {account: times * taken for account, taken in move.steps.items()}
        return stage, move._replace(steps=steps, gas=ACCOUNT * (made - before))

    return act


@dataclass(frozen=True)
class Played:
    """What a player got. `part`, `most`: its part of the weight at the end, and the largest. `alone`, `alone_rounds`:
    when it could first seal alone. `exiles`: the round from which it could convict the others. `stops`: the longest
    round (None: for ever). `slows`: how many times as long the rounds took. `pay`: its part of all pay that could be
    claimed. `work`: its records as a part of all that honest members would have made. `gas`: in all."""

    part: float
    most: float
    alone: float | None
    alone_rounds: int | None
    exiles: int | None
    stops: float | None
    slows: float | None
    pay: float
    work: float
    gas: float


def contest(stage: Stage, act: Act, rounds: int, founder: Founder = gone) -> Played:
    """Play so many rounds of the stage; the others do what they should. Records of noise count as work here."""
    slots, started, seals = len(stage.weights), stage.now, stage.seals
    most, longest, gas, records, played = 0.0, 0, 0, 0, 0
    alone = alone_rounds = exiles = None
    pay: dict[tuple[str, int], int] = {}
    for number in range(rounds):
        before, played = set(stage.weights), number + 1
        stage, move = act(stage, number)
        gas, most = gas + move.gas, max(most, part(stage))
        _take_back(pay, before - set(stage.weights) - set(stage.gone), number)
        honest, mine = others(stage.weights), ours({**stage.weights, **stage.gone})
        prevented = {honest[(number + other) % len(honest)] for other in range(move.prevented)}
        steps = {account: STEPS for account in honest if account not in prevented} | move.steps
        signers = [*honest, *move.early]
        wait, own = earliest(stage, signers, steps, founder(number)), earliest(stage, mine, mine, False)
        if alone is None and own <= wait and own < FOREVER:
            alone, alone_rounds = (stage.now - started + own) / TIMEOUT, number
        if exiles is None and honest and convicts(stage, honest[0], mine, False):
            exiles = number
        longest = max(longest, wait)
        if wait == FOREVER:
            break
        if move.censors and wait > TIMEOUT:
            wait, signers = _fewest(stage, steps, wait)
        for maker, credit in credits_of(steps, stage.seals, stage.rules.horizon).items() if steps else ():
            pay[maker, number // 16] = pay.get((maker, number // 16), 0) + credit.pay
        records += len(ours(steps))
        stage = seal(replace(stage, now=stage.opened + wait), steps, signers)
    payable = max(0, played - WINDOW) // 16
    pot = SEAL_PAY * min(stage.seals - seals, 16 * payable)
    paid = sum(gain for (maker, epoch), gain in pay.items() if maker.startswith("x") and epoch < payable)
    return Played(
        part=part(stage),
        most=most,
        alone=alone,
        alone_rounds=alone_rounds,
        exiles=exiles,
        stops=None if longest == FOREVER else longest / TIMEOUT,
        slows=None if longest == FOREVER else (stage.now - started) / (played * ROUND),
        pay=paid / pot if pot else 0,
        work=records / (slots * played),
        gas=gas,
    )


def _take_back(pay: dict[tuple[str, int], int], accounts: Iterable[str], number: int) -> None:
    """Who was convicted loses what it could not claim yet."""
    for account in accounts:
        for epoch in range(max(0, (number - WINDOW) // 16), number // 16 + 1):
            pay.pop((account, epoch), None)


def _fewest(stage: Stage, makers: Collection[str], wait: int) -> tuple[int, list[str]]:
    """When the player can send a late seal, and with whose signatures: as few as the ledger takes at the timeout."""
    soon, honest, mine = replace(stage, now=stage.opened + TIMEOUT + 1), others(stage.weights), ours(stage.weights)
    for count in range(len(honest) + 1):
        if takes(soon, mine + honest[:count], makers, False):
            return TIMEOUT + 1, mine + honest[:count]
    return wait, mine + honest


def worst(played: list[Played]) -> Played:
    """Of several seeds what is best for the player; pay, work and gas are means."""

    def longest(times: list[float | None]) -> float | None:
        known = [time for time in times if time is not None]
        return max(known) if len(known) == len(times) else None

    earliest_alone = min(played, key=lambda each: FOREVER if each.alone is None else each.alone)
    return replace(
        earliest_alone,
        part=max(each.part for each in played),
        most=max(each.most for each in played),
        exiles=min((each.exiles for each in played if each.exiles is not None), default=None),
        stops=longest([each.stops for each in played]),
        slows=longest([each.slows for each in played]),
        pay=sum(each.pay for each in played) / len(played),
        work=sum(each.work for each in played) / len(played),
        gas=sum(each.gas for each in played) / len(played),
    )


@dataclass(frozen=True)
class Outage:
    """What a part of a stage got while the others were gone. `first`: when it first sealed alone; `on_time`: when its
    seals were no longer late; `exiles`: when it could convict the others. `seals`: how many it made, at most 8
    horizons. `part`: of the weight, once all are back."""

    first: float | None
    on_time: float | None
    exiles: float | None
    seals: int
    part: float


def outage(rules: Rules, share: float, lasts: int) -> Outage:
    """All but `share` of the weight are gone for so many seconds. The rest evicts them, and seals as soon and as often
    as the ledger allows; then they come back."""
    mine = round(share * FULL)
    stage = Stage(rules, weights={"x": mine} | {f"h{number}": (FULL - mine) // 5 for number in range(5)})
    first: float | None = None
    on_time: float | None = None
    exiles: float | None = None
    while stage.seals < 8 * rules.horizon:
        wait = earliest(stage, ["x"], ["x"], False, SHORTEST)
        if wait > TIMEOUT + EVICTION and others(stage.weights):
            stage = replace(stage, now=stage.opened + TIMEOUT + EVICTION)
            for account in others(stage.weights):
                stage = left(stage, account)
            wait = earliest(stage, ["x"], ["x"], False, SHORTEST)
        at = min(lasts, stage.opened + wait)
        exiles = at if exiles is None and convicts(replace(stage, now=at), "h0", ["x"], False) else exiles
        if stage.opened + wait > lasts:
            break
        stage = seal(replace(stage, now=at), {"x": STEPS}, ["x"])
        first = at if first is None else first
        on_time = at if on_time is None and wait < TIMEOUT else on_time
    seals, stage = stage.seals, replace(stage, now=lasts)
    for account in others(stage.gone):
        stage = joined(stage, account)
    first, on_time, exiles = (None if time is None else time / TIMEOUT for time in (first, on_time, exiles))
    return Outage(first, on_time, exiles, seals, part(stage))


@dataclass(frozen=True)
class Held:
    """A stage whose slots are all taken at birth. `seals`: the non-empty seals until a founder can no longer free every
    slot, and `empties`: the empty ones by then. `alone`: the non-empty ones until no founder is needed. `timeouts`: how
    long that takes."""

    seals: int
    empties: int
    alone: int
    timeouts: float


def captor(rules: Rules, every: int = 30, empties: bool = False) -> Held:
    """All slots are the player's. It lets one round through in so many timeouts, with a founder's signature, and seals
    no other. `empties`: whether the founder seals empty rounds alone meanwhile, as soon as the ledger takes them. It
    frees no slot here: what counts is until when it could."""
    stage, mine, worked = birth(rules, SLOTS), [f"x{number}" for number in range(SLOTS)], 0
    held, alone = stage, None
    while vacuum(stage, rules.absent):
        if alone is None and takes(replace(stage, now=stage.opened + ROUND), mine, mine, False):
            alone = stage
        at = max(stage.opened + ROUND, worked + every * TIMEOUT)
        empty = stage.opened + earliest(stage, [], [], True) if empties else FOREVER
        if empty < at:
            stage = seal(replace(stage, now=empty), {}, [])
        else:
            stage, worked = seal(replace(stage, now=at), dict.fromkeys(mine, STEPS), mine), at
        held = stage if all(dismissible(stage, account) for account in mine) else held
    alone = alone or stage
    return Held(held.seals + 1, held.rounds - held.seals, alone.seals, alone.now / TIMEOUT)


def newcomer(rules: Rules, founder: bool) -> bool:
    """Whether somebody new can ever seal in a stage that all others left a day ago."""
    stage = grown(rules, 0)
    for account in list(stage.weights):
        stage = left(stage, account)
    stage = joined(replace(stage, now=DAY, opened=DAY), "x")
    return earliest(stage, ["x"], ["x"], founder) < FOREVER


@dataclass(frozen=True)
class Small:
    """An honest run of few members. `slows`: how many times as long it took; `longest`: its longest round; `late`: the
    part of its rounds that were late; `spread`: most weight of a member over least. Then one member dies: `after` how
    long rounds are on time again, and the `worst` until then."""

    slows: float
    longest: float
    late: float
    spread: float
    after: float
    worst: float


def small(rules: Rules, slots: int, seed: int, missed: float = 0.02, rounds: int = 1000) -> Small:
    """Each of two or more members misses a round now and then; then one of them dies for good."""
    stage, waits = grown(rules, 0, slots), list[int]()
    for here in _present(stage, random.Random(seed), missed, rounds):
        waits.append(earliest(stage, here, here, False))
        stage = seal(replace(stage, now=stage.opened + waits[-1]), dict.fromkeys(here, STEPS), here)
    spread = max(stage.weights.values()) / min(stage.weights.values())
    rest, died, after = sorted(stage.weights)[1:], stage.now, [0]
    while after[-1] != ROUND:
        after.append(earliest(stage, rest, rest, False))
        stage = seal(replace(stage, now=stage.opened + after[-1]), dict.fromkeys(rest, STEPS), rest)
    return Small(
        slows=sum(waits) / (rounds * ROUND),
        longest=max(waits) / TIMEOUT,
        late=sum(wait > ROUND for wait in waits) / rounds,
        spread=spread,
        after=(stage.now - died) / TIMEOUT,
        worst=max(after) / TIMEOUT,
    )


def _present(stage: Stage, chance: random.Random, missed: float, rounds: int) -> Iterable[list[str]]:
    members = list(stage.weights)
    for _ in range(rounds):
        yield [account for account in members if chance.random() >= missed] or members


@dataclass(frozen=True)
class Convictors:
    """Of members that work alike but for chance: the fewest who ever could convict another one, and the fewest of whom
    any could at any time. None: nobody."""

    some: int | None
    any: int | None


def convictors(rules: Rules, slots: int, seeds: Iterable[int], missed: float = 0.02) -> Convictors:
    """Look at each 50th of a thousand rounds in which members miss one now and then."""
    some, every = slots, 0
    for seed in seeds:
        stage = grown(rules, 0, slots)
        for number, here in enumerate(_present(stage, random.Random(seed), missed, 1000)):
            stage = seal(stage, dict.fromkeys(here, STEPS), here)
            for accused in stage.weights if number % 50 == 0 else ():
                rest = [account for account in stage.weights if account != accused]
                could = [
                    [convicts(stage, accused, signers, False) for signers in combinations(rest, size)]
                    for size in range(1, slots)
                ]
                some = min([size for size, able in enumerate(could, 1) if any(able)] + [some])
                every = max(every, min([size for size, able in enumerate(could, 1) if all(able)] + [slots]))
    return Convictors(some if some < slots else None, every if every < slots else None)


@dataclass(frozen=True)
class Evenness:
    """Long-run weights: their sum as a part of FULL, the least and the most as parts of the mean."""

    sum: float
    least: float
    most: float


def evenness(rules: Rules, slots: int, steps: dict[str, int] | None = None) -> Evenness:
    """After 8 horizons, averaged over as many. `steps`: who does fewer than all."""
    stage = birth(rules, 0, slots)
    taken, sums, rounds = dict.fromkeys(stage.weights, STEPS) | (steps or {}), [0] * slots, 8 * rules.horizon
    for number in range(2 * rounds):
        stage = seal(stage, taken, taken)
        if number >= rounds:
            sums = [before + weight for before, weight in zip(sums, stage.weights.values(), strict=True)]
    mean = sum(sums) / slots
    return Evenness(sum(sums) / rounds / FULL, min(sums) / mean, max(sums) / mean)
