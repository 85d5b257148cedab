"""A real run on the embedded chain, usually of 4 replicas x 2 stages, some of whose members lie, and what became of
it."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from dlx.ledger.events import Convicted, Evicted, Sealed
from dlx.ledger.view.weights import FULL
from dlx.node.audit.verdict_store import read_verdicts
from dlx.node.home.keys import identity
from dlx.node.round.challenges.verdicts import Finding, ReportedVerdict
from dlx.training.recipe.recipe import Precision
from tests.attacks import acts
from tests.attacks.acts import prove
from tests.attacks.lies import Lie
from tests.e2e.devnets import Timing, ToughDevnet, Watched, draft

INNER_STEPS = 10
MIN_ROUND_TIME = 4  # seconds: leaves the machine time to check everything that is drawn
_CONFIG = 'network = "devnet"\naudit_share = 1.0\n'  # whoever measures has everything checked that is drawn
TIMING = Timing(grace=8, proposal=2, timeout=20, eviction=20)
MARKS = {  # reasons of refusal that mark a lie, and not a race
    "equivocation", "bad_payload", "wrong_previous", "wrong_start", "payload_root", "payload_size", "wrong_seal",
    "wrong_base", "bad_signature", "wrong_plan", "wrong_steps", "too_many_resets",
}  # fmt: skip


@dataclass
class Outcome:
    """Rounds are counted from the first; None: it did not happen. The honest are never to be blamed."""

    liars: int = 1  # replicas
    rounds: int = 0  # that every stage sealed
    late: int = 0  # of these, after their timeout
    replica_rounds: int = 0  # counted work of honest replicas
    honest_missing: int = 0  # of all that they could have had counted
    liars_counted: int = 0  # replica-rounds of liars that were counted
    liars_multiplier: int = 0  # the largest that a seal gave one of them
    liars_weight: float = 0.0  # in the end, in the stage with most: of all that work can earn
    refused: Counter[str] = field(default_factory=Counter)  # reason -> refusals by honest members
    verdicts: Counter[str] = field(default_factory=Counter)  # finding on liars' work -> honest members' verdicts
    honest_checked: int = 0  # segments of honest members' contributions that an honest member checked
    blamed: int = 0  # honest members that others found false or withholding, or that lost their slots
    noticed: int | None = None  # the first round of a liar that an honest member found false or withheld
    reasons: Counter[str] = field(default_factory=Counter)  # of these verdicts
    lost: int = 0  # liars that were evicted or convicted
    back: int = 0  # of these, with a slot in the end
    convicted: int = 0  # liars
    acts: int = 0  # how often the liars noted that they lied

    def row(self) -> dict[str, Any]:
        """For a table: who notices, after how many rounds, what follows."""
        marks = [f"{reason} ({count})" for reason, count in self.refused.most_common() if reason in MARKS]
        noticed = [f"{word} verdicts" for word in ("false", "withheld") if self.verdicts[word]]
        noticed += ["attesters: " + ", ".join(marks)] if marks else []
        possible = self.replica_rounds + self.honest_missing
        follows = [f"{self.lost} slot{'s' * (self.lost > 1)} lost"] if self.lost else []
        follows += [f"{self.back} taken again, {self.convicted} convicted"] if self.back else []
        follows += [f"{self.late} of {self.rounds} rounds late"] if self.late else []
        follows += [
            f"counted in {self.liars_counted} of {self.rounds * self.liars} {'replica-' * (self.liars > 1)}rounds",
            f"{self.liars_weight:.1%} of the weight in the end",
        ]
        return {
            "noticed_by": "; ".join(noticed) or "nobody",
            "after": "" if self.noticed is None else f"round {self.noticed}",
            "follows": ", ".join(follows),
            "rounds": self.rounds,
            "honest_counted": round(self.replica_rounds / possible, 3) if possible else None,
            "liars_counted": self.liars_counted,
            "liars_multiplier": self.liars_multiplier,
            "liars_weight": round(self.liars_weight, 3),
            "honest_checked": self.honest_checked,
            "blamed": self.blamed,
            "refused": dict(self.refused),
            "verdicts": dict(self.verdicts),
            "reasons": dict(self.reasons.most_common(5)),
            "late": self.late,
            "lost": self.lost,
            "back": self.back,
            "convicted": self.convicted,
            "acts": self.acts,
        }


class Arena:
    """`with Arena(folder, share) as arena: arena.play(lie, rounds)`: a run that honest members of three replicas (or of
    `honest`) keep going, into which liars come as more, one lie after the other, under new accounts each time. It has
    `room` for so many replicas.

    In float32 its rounds are one segment; in bfloat16 they are three, each drawn with probability `share`.
    """

    def __init__(
        self,
        root: Path,
        share: float,
        honest: int = 3,
        precision: Precision = "float32",
        delay: int = 1,
        stages: int = 2,
        room: int = 4,
    ) -> None:
        self._stages = stages
        text = f'precision = "{precision}"\n' + draft(
            100_000, INNER_STEPS, TIMING, honest, stages, delay=delay, room=room
        )
        text += f"min_round_time = {MIN_ROUND_TIME}\n\n[audit]\nshare = {share}\n"
        self._devnet = ToughDevnet.create(root, 100_000, honest, stages, lambda line: None, text, 0.2)
        self._honest = list(self._devnet.names)
        self._checked: set[tuple[bytes, int]] = set()
        self._refused: dict[str, Counter[str]] = {}  # so far, by honest node

    def __enter__(self) -> Self:
        for name in self._honest:
            self._devnet.folder(name).config.write_text(_CONFIG)
        try:
            self._devnet.start()
            self._watched = Watched(self._devnet)
            self._watched.until_all_count()
            self._accounts = {status.account for status in self._watched.everybody().values()}
        except BaseException:
            self._devnet.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._devnet.stop()

    def play(self, lie: Lie, rounds: int) -> Outcome:
        """Until so many more rounds are sealed, or every liar was convicted and nothing of theirs is left to check.

        Raises NeverLied for liars that did honest work only.
        """
        watched, devnet = self._watched, self._devnet
        names = [f"{lie.name}-{number}" for number in range(self._stages * lie.liars)]
        for name in names:
            folder = devnet.folder(name)
            folder.create()
            identity.create(folder, lambda: "", insecure_devnet=True)
            folder.config.write_text(_CONFIG)
            devnet.may_end.add(name)  # a convicted node does
            devnet.start_node(name, ("tests.attacks.liar", lie.name))
        everybody = len(self._honest) + len(names)
        watched.until("the liars' slots", lambda: len(watched.read().members()) == everybody)
        liars, first = set(watched.read().members()) - self._accounts, watched.sealed_rounds()
        try:
            watched.until("the end", lambda: watched.sealed_rounds() >= first + rounds or self._convicted(liars))
            found = replace(self._outcome(liars, first), liars=lie.liars)
            noted = {name: acts.read(devnet.folder(name).root) for name in names}
            prove(lie, noted)
            return replace(found, acts=sum(map(len, noted.values())))
        finally:
            devnet.end(names)
            watched.until("free slots", lambda: len(watched.read().members()) == len(self._honest))

    def _convicted(self, liars: set[str]) -> bool:
        return liars <= {one.account for one in self._watched.of(Convicted)}

    def _outcome(self, liars: set[str], first: int) -> Outcome:
        watched, view, found = self._watched, self._watched.read(), Outcome()
        team = len(self._honest) // self._stages
        stages, rounds, ends = range(self._stages), range(first, watched.sealed_rounds()), dict[int, int]()
        for seal in watched.of(Sealed):
            ends[seal.round] = max(ends.get(seal.round, 0), seal.at.time)
        for round in rounds:
            counted_in = [set(view.sealed[stage, round].accounts) for stage in stages]
            counted = min(len(accounts - liars) for accounts in counted_in)
            found.rounds += 1
            found.late += ends[round] - ends.get(round - 1, ends[round]) > view.config.round_timeout
            found.replica_rounds += counted
            found.honest_missing += team - counted
            found.liars_counted += max(len(accounts & liars) for accounts in counted_in)
        sealed = [view.sealed[stage, round] for stage in stages for round in rounds]
        records = [pair for one in sealed for pair in zip(one.accounts, one.records, strict=True)]
        found.liars_multiplier = max((record.multiplier for maker, record in records if maker in liars), default=0)
        held = (sum(view.weight_of(one, 0) for one in liars & {*view.members_in(stage)}) for stage in stages)
        found.liars_weight = max(held) / FULL
        refused = {name: Counter(watched.status(name).rejected) for name in self._honest}
        for name, counts in refused.items():
            found.refused += counts - self._refused.get(name, Counter())
        self._refused = refused
        verdicts = _verdicts(watched, self._honest)
        for verdict in verdicts:
            self._judge(found, verdict, liars, first)
        checked = {one.report.key for one in verdicts if one.account in self._accounts} - self._checked
        self._checked |= checked
        found.honest_checked = len(checked)
        convicted = {one.account for one in watched.of(Convicted)}
        lost = convicted | {one.account for one in watched.of(Evicted)}
        found.blamed += len(lost & self._accounts)
        found.lost, found.convicted = len(lost & liars), len(convicted & liars)
        found.back = len(lost & liars & set(view.members()))
        return found

    def _judge(self, found: Outcome, verdict: ReportedVerdict, liars: set[str], first: int) -> None:
        """Counts an honest member's verdict."""
        guilty, round = verdict.finding is not Finding.HONEST, verdict.report.round
        if verdict.checker not in self._accounts:
            return
        if verdict.account in self._accounts:
            found.blamed += guilty and round >= first
        if verdict.account not in liars:
            return
        found.verdicts[verdict.finding.word] += 1
        if guilty:
            found.noticed = round - first if found.noticed is None else min(found.noticed, round - first)
            found.reasons.update(_kind(reason) for reason in verdict.report.reasons)


def _kind(reason: str) -> str:
    """Without the figures."""
    return re.sub(r"[0-9][0-9.e+-]*", "#", reason)


def _verdicts(watched: Watched, names: list[str]) -> list[ReportedVerdict]:
    """Those that honest nodes have kept, each once."""
    run, found = watched.view.run, {}
    for name in names:
        for path in watched.devnet.folder(name).state.glob("*/verdicts.sqlite"):
            for one in read_verdicts(path, run, watched.view.domain):
                found[one.report.key, one.checker] = one
    return list(found.values())
