"""What members can do to a stage by the ledger's rules of weight: each kind of player at each share of it.

`python -m benchmarks.politics [--json FILE]` prints what each player gets, what is lost where a rule is left out, what
other constants would give, what chance does in small runs, and who can convict whom. The rules are those of
`benchmarks.weight`, the players those of `benchmarks.players`. Times are in round timeouts; an honest round takes a
quarter of one.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import players
from benchmarks.players import (
    DAY,
    GAS,
    SLOTS,
    Act,
    Founder,
    Played,
    birth,
    captor,
    contest,
    convictors,
    entered,
    evenness,
    grown,
    invents,
    newcomer,
    outage,
    small,
    there,
    worst,
)
from benchmarks.weight import Rules, Stage
from dlx.ledger.view.weights import FULL

SHARES = (1 / 10, 1 / 4, 1 / 3, 1 / 2)
OF_ACCOUNTS = (*SHARES, 2 / 3, 9 / 10)  # who does not work has as many accounts as it likes
ROUNDS = 512
OUTAGES = {"3 minutes": 180, "1 hour": 3600, "1 day": DAY}
MOST = 16384  # of horizon x replicas, by the ledger
WORKERS: dict[str, Act] = {
    "honest": players.works,
    "part-time: 2 rounds of 8": players.works_in_part,
    "slow: a quarter of the steps": players.works_slowly,
    "silent: neither works nor signs": players.keeps_silent,
    "blocker: works, signs last or never": players.blocks,
    "censor: a blocker that leaves signatures out": players.censors,
    "leaver: away in each second round": players.leaves,
    "hopper: leaves its weight, works on anew": players.hops,
    "colluders: half of them break replicas": players.breaks,
    "colluders: half of them break replicas in 6 rounds of 8": players.breaks_in_part,
    "breaker: works 2 rounds of 8, breaks replicas in the others": players.breaks_otherwise,
}
INVENTORS: dict[str, tuple[Callable[[Rules, int], Stage], Founder]] = {
    "noise until drawn": (entered, players.gone),
    "noise until drawn, a founder judges": (entered, there),
    "born many: noise from birth, a founder judges": (birth, there),
    "born many: the founder dies after 30 rounds": (birth, lambda number: number < 30),
    "born many: the founder dies after 60 rounds": (birth, lambda number: number < 60),
}
OVERSTATERS: dict[str, Founder] = {
    "overstates until drawn: works, states four times its steps": players.gone,
    "overstates until drawn, a founder judges": there,
}
_REAL = {"slow: a quarter of the steps": 1 / 4}
Row = dict[str, Any]


def main(
    seeds: Annotated[int, typer.Option(min=1, help="Where chance is in it.")] = 3,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Also write the rows there.")] = None,
) -> None:
    """Play all players, each rule left out, other constants, small runs and convictions. It takes a minute or two."""
    rules, chances = Rules(), range(seeds)
    tables = {
        "players": player_rows(rules, chances),
        "outages": outage_rows(rules),
        "captor of all slots at birth": [
            {"founder seals empty rounds": empties} | asdict(captor(rules, empties=empties))
            for empties in (False, True)
        ],
        "newcomer in an abandoned stage": [{"founder": who, "seals": newcomer(rules, who)} for who in (False, True)],
        "rules left out": without(rules),
        "constants": constants(rules),
        "weights": weight_rows(rules),
        "small runs": small_rows(rules, chances),
        "convictions": [{"members": slots} | asdict(convictors(rules, slots, chances)) for slots in range(2, 9)],
    }
    for name, rows in tables.items():
        sys.stdout.write(f"{name}\n\n{_table(rows)}\n\n")
    if json_file is not None:
        json_file.write_text(json.dumps({"rules": asdict(rules), **tables}, indent=1) + "\n")


def player_rows(rules: Rules, seeds: range) -> list[Row]:
    """A row a player and share of slots and compute."""
    rows = [
        _row(name, share, contest(grown(rules, round(share * SLOTS)), act, ROUNDS), _REAL.get(name, 1))
        for name, act in WORKERS.items()
        for share in SHARES
    ]
    for name, (start, founder) in INVENTORS.items():
        for share in OF_ACCOUNTS:
            stage = start(rules, round(share * SLOTS))
            played = [contest(stage, invents(seed, founder), ROUNDS, founder) for seed in seeds]
            rows.append(_row(name, share, worst(played), 0))
    for name, founder in OVERSTATERS.items():
        for share in SHARES:
            stage = entered(rules, round(share * SLOTS))
            played = [contest(stage, invents(seed, founder, times=4), ROUNDS, founder) for seed in seeds]
            rows.append(_row(name, share, worst(played), 1))
    for share in SHARES:
        mine = round(share * SLOTS)
        played = [contest(grown(rules, mine), invents(seed, there, mine // 2), ROUNDS, there) for seed in seeds]
        rows.append(_row("colluders: half of them send noise", share, worst(played), (mine // 2) / mine))
    return rows


def _row(name: str, share: float, got: Played, real: float) -> Row:
    """`real`: which part of a record of it is work."""
    return {"player": name, "share": share} | asdict(got) | {"work": got.work * real}


def outage_rows(rules: Rules) -> list[Row]:
    """What a part of the members gains while all others are gone: it evicts them and seals alone."""
    evicted = GAS["accuse"] + GAS["evict"]
    return [
        {"share": share, "others gone for": name}
        | asdict(outage(rules, share, lasts))
        | {"gas": round((1 - share) * SLOTS) * evicted}
        for share in SHARES
        for name, lasts in OUTAGES.items()
    ]


def without(rules: Rules) -> list[Row]:
    """What each rule prevents: a number with it and without it."""

    def born(rules: Rules) -> float | None:
        return contest(birth(rules, 40), invents(0, there), 256, there).alone_rounds

    def stripped(rules: Rules) -> float | None:
        return contest(grown(rules, 24), players.censors, ROUNDS).alone_rounds

    def hopped(rules: Rules) -> float | None:
        return contest(grown(rules, 15), players.hops, ROUNDS).most

    cases: list[tuple[str, Rules, str, Callable[[Rules], float | None]]] = [
        (
            "founders have a say in convictions while work has not earned enough",
            replace(rules, founders_convict=False),
            "rounds until noise on two thirds of the slots from birth seals alone",
            born,
        ),
        (
            "every maker gains in a late seal, whoever signed it",
            replace(rules, all_makers_gain=False),
            "rounds until a censor of two fifths seals alone",
            stripped,
        ),
        (
            "the weight of the absent fades with seals too",
            replace(rules, fades_with_seals=False),
            "part of the weight of a hopper that has a quarter of the compute",
            hopped,
        ),
        (
            "a seal needs a third of the total, however late",
            replace(rules, least=FULL),
            "timeouts of the others' absence until a tenth seals alone",
            lambda rules: outage(rules, 1 / 10, DAY).first,
        ),
        (
            "who comes back has what seals alone left of its weight",
            replace(rules, returns_slowly=False),
            "part of a tenth after a day without the others",
            lambda rules: outage(rules, 1 / 10, DAY).part,
        ),
        (
            "what fades is rounded by turns, not up",
            replace(rules, dithered=False),
            "sum of the weights of 64 members, horizon 256, as a part of all",
            lambda rules: evenness(replace(rules, horizon=256), 64).sum,
        ),
    ]
    return [
        {"rule": rule, "measured": measured, "with": play(rules), "without": play(other)}
        for rule, other, measured, play in cases
    ]


def constants(rules: Rules) -> list[Row]:
    """What other constants give: how soon the rest of an outage seals, and what a minority gains in one."""
    cases = (
        [("late", replace(rules, late=late)) for late in (1, 2, 4, 8)]
        + [("absent", replace(rules, absent=absent)) for absent in (16, 32, 64, 128)]
        + [("enough", replace(rules, enough=enough)) for enough in (FULL // 8, FULL // 4, FULL // 2, 3 * FULL // 4)]
        + [("least", replace(rules, least=least)) for least in (FULL, 4, 3)]
        + [("quorum", replace(rules, quorum=quorum)) for quorum in ((3, 5), (5, 8), (2, 3), (3, 4))]
    )
    rows = []
    for name, other in cases:
        half, third, tenth = (outage(other, share, DAY) for share in (1 / 2, 1 / 3, 1 / 10))
        hour, day = (outage(other, 1 / 4, lasts) for lasts in (3600, DAY))
        value = getattr(other, name)
        rows.append(
            {
                "constant": name,
                "value": f"{value[0]}/{value[1]}" if name == "quorum" else value,
                "in force": other == rules,
                "a round that 1/2 blocks": contest(grown(other, SLOTS // 2), players.blocks, 1).stops,
                "1/2 left: first seal": half.first,
                "on time": half.on_time,
                "1/3 left: first seal": third.first,
                "on time ": third.on_time,
                "1/4 in an hour: part": hour.part,
                "seals": hour.seals,
                "1/4 in a day: first seal": day.first,
                "exiles": day.exiles,
                "1/10 in a day: first seal": tenth.first,
            }
        )
    return rows


def weight_rows(rules: Rules) -> list[Row]:
    """Long-run weights of members that work alike, and of one among them that does a quarter of the steps."""
    return [
        {"horizon": horizon, "members": slots}
        | asdict(evenness(replace(rules, horizon=horizon), slots))
        | {"a quarter of the steps": evenness(replace(rules, horizon=horizon), slots, {"h0": 4}).least}
        for horizon in (8, 128, 256, 1024)
        for slots in (3, 8, 64)
        if horizon * slots <= MOST
    ]


def small_rows(rules: Rules, seeds: range) -> list[Row]:
    """Honest runs of few members by horizon and quorum: the worst of the seeds."""
    rows = []
    for horizon in (8, 128):
        for quorum in ((5, 8), (2, 3)):
            for slots in (2, 3, 4, 6, 8):
                other = replace(rules, horizon=horizon, quorum=quorum)
                played = [asdict(small(other, slots, seed)) for seed in seeds]
                row: Row = {"horizon": horizon, "quorum": f"{quorum[0]}/{quorum[1]}", "replicas": slots}
                rows.append(row | {name: max(each[name] for each in played) for name in played[0]})
    return rows


def _table(rows: list[Row]) -> str:
    """Markdown."""
    lines = [list(rows[0]), ["---"] * len(rows[0]), *[[_cell(value) for value in row.values()] for row in rows]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "never" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    typer.run(main)
