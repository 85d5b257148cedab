"""What an audit found: one line per check, and what it could not establish."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Verdict = Literal["PASS", "FAIL", "WARN", "SKIP"]
VERDICTS: tuple[Verdict, ...] = ("PASS", "FAIL", "WARN", "SKIP")


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
class Report:
    """The checks of one audit in the order they were made."""

    run: bytes
    facts: dict[str, Any] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)
    not_established: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

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
        self.checks.append(Check(level, check, verdict, round, stage, None if hash is None else hash.hex(), detail))

    def note(self, what: str) -> None:
        """Something worth knowing that no verdict depends on."""
        if what not in self.notes:
            self.notes.append(what)

    def cannot_establish(self, what: str) -> None:
        if what not in self.not_established:
            self.not_established.append(what)

    @property
    def verdict(self) -> Verdict:
        """FAIL if anything failed, else WARN if anything was warned of or skipped, else PASS."""
        counts = self.counts()
        if counts["FAIL"]:
            return "FAIL"
        return "WARN" if counts["WARN"] or counts["SKIP"] else "PASS"

    def counts(self) -> dict[str, int]:
        counted = Counter(check.verdict for check in self.checks)
        return {verdict: counted[verdict] for verdict in VERDICTS}

    def json(self) -> dict[str, Any]:
        """JSON-ready: "run", "verdict", "counts", "facts", "checks" (a list), "notes", "not_established"."""
        return {
            "run": "0x" + self.run.hex(),
            "verdict": self.verdict,
            "counts": self.counts(),
            "facts": self.facts,
            "checks": [asdict(check) for check in self.checks],
            "notes": list(self.notes),
            "not_established": list(self.not_established),
        }

    def text(self) -> str:
        """A table with one row per kind of check, then every line that is not PASS, then what was not established."""
        rows: dict[tuple[int, str], Counter[str]] = {}
        for check in self.checks:
            rows.setdefault((check.level, check.check), Counter())[check.verdict] += 1
        width = max((len(name) for _, name in rows), default=5)
        lines = [f"audit of run 0x{self.run.hex()}"]
        lines += [f"  {key}: {value}" for key, value in self.facts.items()]
        lines += ["", "level  " + "check".ljust(width) + "".join(f"{verdict:>8}" for verdict in VERDICTS)]
        for (level, name), counted in sorted(rows.items(), key=lambda row: row[0][0]):
            cells = "".join(f"{counted[verdict] or '-':>8}" for verdict in VERDICTS)
            lines.append(f"{level:<7}{name.ljust(width)}{cells}")
        notable = [_line(check) for check in self.checks if check.verdict != "PASS"]
        if notable:
            lines += ["", *notable]
        if self.notes:
            lines += ["", "notes:", *(f"  - {what}" for what in self.notes)]
        lines += ["", "not established:", *(f"  - {what}" for what in self.not_established)]
        lines += ["", f"verdict: {self.verdict}"]
        return "\n".join(lines)


def _line(check: Check) -> str:
    where = "".join(
        f" {name} {value}" for name, value in (("round", check.round), ("stage", check.stage)) if value is not None
    )
    named = f" {check.hash}" if check.hash else ""
    return f"{check.verdict} {check.check}{where}{named}: {check.detail}"
