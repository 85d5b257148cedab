"""What an audit found: how many checks of each kind passed, a line for each that did not, and what it could not say.

It stays small however long the run is: of checks that passed only their number is kept, and of each kind of finding the
first so many lines.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from dlx.node.home.diagnostics import exit_code

Verdict = Literal["PASS", "FAIL", "WARN", "SKIP"]
VERDICTS: tuple[Verdict, ...] = ("PASS", "FAIL", "WARN", "SKIP")
NOT_CHECKED = "not checked"
UNMET = 5  # the exit code where nothing is false, but less training was found honest than was required
_LISTED = 1000  # lines of each kind and verdict, and of notes


@dataclass(frozen=True)
class Check:
    """One question and its answer. `hash` is lowercase hex, None where the check speaks of no single hash."""

    level: int
    check: str
    verdict: Verdict
    round: int | None
    stage: int | None
    hash: str | None
    detail: str


@dataclass
class Training:
    """Level 3 in numbers of segments, each of all stages: the `replica_rounds` that seals count have `segments`, of
    which `drawn` were to be looked at. Those that were chosen are `honest`, `false`, `withheld` or
    `unknown`, each as the worst of its stages, and the first two of these `replayed`. In an `exact` run the honest
    ones gave the same bits."""

    replica_rounds: int = 0
    segments: int = 0
    drawn: int = 0
    replayed: int = 0
    honest: int = 0
    false: int = 0
    withheld: int = 0  # drawn, and not served in time
    unknown: int = 0  # nothing can be said of it, and nobody is to blame
    chosen: int | None = None  # of those drawn, to be looked at; None: level 3 was not asked for
    exact: bool = False
    required: int = 0  # segments to be found honest, and nothing else among what was drawn; 0: nothing is required

    @property
    def met(self) -> bool:
        """Whether what was required was found."""
        if not self.required:
            return True
        return self.honest == self.chosen == self.drawn and self.replayed >= self.required

    def __str__(self) -> str:
        if self.chosen is None:
            return NOT_CHECKED
        return self._found() + ("" if self.met else f"; not the {self.required} honest segments required")

    def _found(self) -> str:
        if not self.segments:
            return "nothing replayed"
        done = f"{self.replayed} of {self.segments} segments {'repeated' if self.exact else 'replayed'}"
        if not self.drawn:
            return f"{done}, none drawn"
        if not self.chosen:
            return f"{done}, none chosen"
        honest = "bit for bit" if self.exact else "honest"
        counts = {honest: self.honest, "false": self.false, "withheld": self.withheld, "unknown": self.unknown}
        found = {word: count for word, count in counts.items() if count}
        said = [f"all {honest}"] if list(found) == [honest] else [f"{count} {word}" for word, count in found.items()]
        unseen = self.segments - self.replayed
        return ", ".join([done, *said]) + (f"; {unseen} segments not looked at" if unseen else "")


@dataclass(frozen=True)
class Conclusion:
    """The verdict in its parts, because none stands for another: "PASS", "WARN", "FAIL" or "not checked" for the ledger
    (level 1) and the outer steps (level 2), and numbers for the training (level 3)."""

    ledger: str
    outer_steps: str
    training: str

    def __str__(self) -> str:
        return f"ledger {self.ledger}, outer steps {self.outer_steps}, training: {self.training}"


class _Lines:
    """Different lines in the order in which they came: the first so many, and how many more there were."""

    def __init__(self) -> None:
        self._lines: dict[str, None] = {}
        self._more = 0

    def add(self, line: str) -> None:
        if line in self._lines:
            return
        if len(self._lines) < _LISTED:
            self._lines[line] = None
        else:
            self._more += 1

    def all(self) -> list[str]:
        return [*self._lines, *([f"{self._more} more like these"] if self._more else [])]


@dataclass
class Report:
    """The checks of one audit; `checks` are those that are not PASS, in the order in which they were made."""

    run: bytes
    source: str = ""  # whose word is taken for the chain
    facts: dict[str, Any] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)
    training: Training = field(default_factory=Training)
    _rows: dict[tuple[int, str], Counter[Verdict]] = field(default_factory=dict)
    _not_established: _Lines = field(default_factory=_Lines)
    _notes: _Lines = field(default_factory=_Lines)

    def add(
        self,
        level: int,
        check: str,
        verdict: Verdict,
        detail: str = "",
        *,
        round: int | None = None,
        stage: int | None = None,
        hash: bytes | None = None,
    ) -> None:
        counted = self._rows.setdefault((level, check), Counter())
        counted[verdict] += 1
        if verdict != "PASS" and counted[verdict] <= _LISTED:
            digest = None if hash is None else hash.hex()
            self.checks.append(Check(level, check, verdict, round, stage, digest, detail))

    def note(self, what: str) -> None:
        """Something worth knowing that no verdict depends on."""
        self._notes.add(what)

    def cannot_establish(self, what: str) -> None:
        self._not_established.add(what)

    @property
    def notes(self) -> list[str]:
        return self._notes.all()

    @property
    def not_established(self) -> list[str]:
        return self._not_established.all()

    @property
    def failed(self) -> bool:
        """Whether anything contradicts itself: what is only missing does not fail."""
        return self.exit_code == 1

    @property
    def established(self) -> bool:
        """Whether all that was asked for holds: nothing contradicts itself, and nothing is missing or was skipped."""
        return self.exit_code == 0

    @property
    def exit_code(self) -> int:
        """What a command ends with that found this: see `diagnostics.exit_code`; UNMET where nothing is false, but
        not all of the training is there that was required."""
        code = exit_code([verdict for verdict, count in self.counts().items() if count])
        return code if self.training.met or code == 1 else UNMET

    @property
    def verdict(self) -> Conclusion:
        return Conclusion(self._of_level(1), self._of_level(2), str(self.training))

    def counts(self, level: int | None = None) -> dict[Verdict, int]:
        """How many checks (of one level) came to what."""
        rows = [counted for (at, _), counted in self._rows.items() if level is None or at == level]
        return {verdict: sum(counted[verdict] for counted in rows) for verdict in VERDICTS}

    def json(self) -> dict[str, Any]:
        """JSON-ready: "run", "verdict" (an object), "failed", "established", "training", "counts", "facts",
        "table" (a row for each kind of check), "checks" (those that are not PASS), "notes", "not_established"."""
        return {
            "run": "0x" + self.run.hex(),
            "source": self.source,
            "verdict": asdict(self.verdict),
            "failed": self.failed,
            "established": self.established,
            "training": asdict(self.training),
            "counts": self.counts(),
            "facts": self.facts,
            "table": [
                {"level": level, "check": name, **{verdict: counted[verdict] for verdict in VERDICTS}}
                for (level, name), counted in self._rows.items()
            ],
            "checks": [asdict(check) for check in self.checks],
            "notes": self.notes,
            "not_established": self.not_established,
        }

    def text(self) -> str:
        """A table with one row per kind of check, then every line that is not PASS, then what was not established."""
        width = max((len(name) for _, name in self._rows), default=5)
        lines = [self.source, f"audit of run 0x{self.run.hex()}"]
        lines += [f"  {key}: {value}" for key, value in self.facts.items()]
        lines += ["", "level  " + "check".ljust(width) + "".join(f"{verdict:>8}" for verdict in VERDICTS)]
        for (level, name), counted in sorted(self._rows.items(), key=lambda row: row[0][0]):
            cells = "".join(f"{counted[verdict] or '-':>8}" for verdict in VERDICTS)
            lines.append(f"{level:<7}{name.ljust(width)}{cells}")
        if self.checks:
            lines += ["", *map(_line, self.checks)]
            if unlisted := self._unlisted():
                lines.append(f"{unlisted} more lines like these: the table counts them")
        if self.notes:
            lines += ["", "notes:", *(f"  - {what}" for what in self.notes)]
        lines += ["", "not established:", *(f"  - {what}" for what in self.not_established)]
        lines += ["", f"verdict: {self.verdict}"]
        return "\n".join(lines)

    def _of_level(self, level: int) -> str:
        """FAIL if anything failed, else WARN if anything was warned of or skipped, else PASS."""
        counts = self.counts(level)
        if not any(counts.values()):
            return NOT_CHECKED
        return "FAIL" if counts["FAIL"] else "WARN" if counts["WARN"] or counts["SKIP"] else "PASS"

    def _unlisted(self) -> int:
        counts = self.counts()
        return sum(counts.values()) - counts["PASS"] - len(self.checks)


def _line(check: Check) -> str:
    where = "".join(
        f" {name} {value}" for name, value in (("round", check.round), ("stage", check.stage)) if value is not None
    )
    named = f" {check.hash}" if check.hash else ""
    return f"{check.verdict} level {check.level} {check.check}{where}{named}: {check.detail}"
