"""Rounds whose draw is not known yet: `<slot>/rounds/<round>/` has everything that a replay of any segment needs.

When the draw is known, what it names goes to the public blobs and the rest is removed (`decide`). The training process
writes a round's folder before it makes the round its state, and never looks into a finished one again: what the slot
itself needs to go on lies beside the folder. So another process may decide, at any time and twice.
"""

import contextlib
import shutil
from collections.abc import Collection
from pathlib import Path

import msgspec
from msgspec import Struct

from dlx.ground import durable
from dlx.training.recipe.recipe import Recipe
from dlx.training.slot.rounds import Trained
from dlx.training.slot.trace import Trace, handed_over

_FINISHED = "round"  # the file that makes a folder a finished round


class Finished(Struct, frozen=True, forbid_unknown_fields=True):
    """A finished round as its folder has it."""

    trained: Trained
    trace: Trace

    def handed_over(self, segments: Collection[int], ahead: float) -> frozenset[bytes]:
        """Names of the files that are public where these segments are drawn, each once. Raises IndexError."""
        each = (handed_over(self.trace, segment, self.trained, ahead) for segment in segments)
        return frozenset(name for wanted in each for name in wanted.values())


def most_undecided(recipe: Recipe) -> int:
    """How many rounds a slot keeps for a draw; of more the oldest go.

    A seal takes a block at least, so while a round's draw is `confirmations` + `draw_after` blocks away its slot can
    finish as many later ones, and `delay` more. The others are for blocks that the node hears of late.
    """
    return recipe.outer.delay + recipe.confirmations + recipe.audit.draw_after + 4


class Undecided:
    """Of the slot in that directory. All methods raise OSError."""

    def __init__(self, slot: Path) -> None:
        self._folder = slot / "rounds"

    # ---- the node's part, in whatever process

    def rounds(self) -> list[int]:
        """The finished ones, ascending."""
        return sorted(round for round in self._numbers() if (self.folder(round) / _FINISHED).exists())

    def find(self, round: int) -> Finished | None:
        """What there is of the round; None for one that is not here (any more), or damaged."""
        try:
            return msgspec.msgpack.decode((self.folder(round) / _FINISHED).read_bytes(), type=Finished)
        except (FileNotFoundError, msgspec.MsgspecError):
            return None

    def decide(self, round: int, segments: Collection[int], blobs: Path, ahead: float = 0.0) -> frozenset[bytes]:
        """Hand what belongs to the drawn `segments` to the folder `blobs`, and remove the rest; none may be drawn.

        `ahead`: as `handed_over` takes it. Returns the names of what is in `blobs` now, durably (a state of zeros has
        no file). Doing it again is harmless; of a round that is not here any more nothing is returned. Raises
        IndexError for another segment than the round has, before anything is changed.
        """
        found: frozenset[bytes] = frozenset()
        finished = self.find(round) if segments else None
        if finished is not None:
            wanted = finished.handed_over(segments, ahead)
            found = frozenset(name for name in wanted if self._hand_over(round, name.hex(), blobs))
            durable.sync_directory(blobs)
        self._remove(round)
        return found

    def size(self) -> int:
        """Bytes that all of it takes on the disk, where nothing is shared with the slot's own state."""
        total = 0
        for path in self._folder.rglob("*"):
            with contextlib.suppress(FileNotFoundError):  # another process decides
                total += path.stat().st_size if path.is_file() else 0
        return total

    # ---- the training process's part

    def folder(self, round: int) -> Path:
        return self._folder / str(round)

    def begin(self, round: int) -> Path:
        """An empty folder for the round's files."""
        self._remove(round)
        folder = self.folder(round)
        folder.mkdir(parents=True)
        return folder

    def finish(self, trained: Trained, trace: Trace) -> None:
        """The round's files are all in its folder: now it is a finished one, durably."""
        durable.write_bytes(self.folder(trained.round) / _FINISHED, msgspec.msgpack.encode(Finished(trained, trace)))
        durable.sync_directory(self._folder)

    def clean(self, last: int | None, limit: int) -> None:
        """Remove what a broken-off or later round than `last` has left, and all but the newest `limit` rounds."""
        finished = [] if last is None else [round for round in self.rounds() if round <= last]
        for round in set(self._numbers()) - set(finished[-limit:]):
            self._remove(round)

    def _numbers(self) -> list[int]:
        if not self._folder.exists():
            return []
        return [int(path.name) for path in self._folder.iterdir() if path.name.isdecimal()]

    def _hand_over(self, round: int, name: str, blobs: Path) -> bool:
        """Whether the file is in `blobs` now."""
        target = blobs / name
        try:
            durable.share(self.folder(round) / name, target)
        except FileNotFoundError:
            return target.exists()  # handed over before, or there never was one
        return True

    def _remove(self, round: int) -> None:
        shutil.rmtree(self.folder(round), ignore_errors=True)
