"""The verdicts that nodes of this folder have heard: each signature is verified once, however often a page asks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from dlx.ledger.typed import Domain
from dlx.node.audit.verdict_store import FILE, MOST, listed_in
from dlx.node.round.challenges.verdicts import ReportedVerdict, VerdictError

_MOST = 4096  # verdicts of a folder that are read for a page
_KEPT = 4 * _MOST


class Heard:
    """Of all runs. For one thread at a time."""

    def __init__(self, folders: Sequence[Path], domain: Domain) -> None:
        self._folders, self._domain = folders, domain
        self._read: dict[tuple[bytes, bytes], ReportedVerdict | None] = {}

    def about(self, run: bytes, rounds: range, whole: bool = False) -> list[ReportedVerdict]:
        """The verdicts on work of these rounds, each once; of very many the oldest, unless all are wanted (`whole`)."""
        most = MOST if whole else _MOST
        found = dict.fromkeys(
            one for path in self._stores(run) for one in self._of(path, run, rounds, most) if one.report.round in rounds
        )
        return sorted(found, key=lambda one: (one.report.round, one.report.stage, one.report.replica, one.checker))

    def _stores(self, run: bytes) -> Iterable[Path]:
        paths = (blobs.parent / "state" / run.hex()[:16] / FILE for blobs in self._folders)
        return (path for path in paths if path.is_file())

    def _of(self, path: Path, run: bytes, rounds: range, most: int) -> Iterable[ReportedVerdict]:
        try:
            listed = listed_in(path, rounds.start, most)
        except OSError:
            return
        if len(self._read) > _KEPT:
            self._read.clear()
        for key in listed:
            if key not in self._read:
                try:
                    self._read[key] = ReportedVerdict.read(*key, run, self._domain)
                except VerdictError:  # the disk's fault
                    self._read[key] = None
            if (verdict := self._read[key]) is not None:
                yield verdict
