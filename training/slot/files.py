"""What a slot keeps in its directory: `slot.json`, and beside it the tensors that it names.

The tensors are canonical files named by their sha256. Some stay because an auditor may ask for them:

- of the last KEPT_ROUNDS rounds the residual and the optimiser state before and after, and the weights after;
- of the last delay + 1 of these also weights and optimiser state between the segments. A round's samples are drawn from
  a block after its seal, and when a round is sealed the slot has finished at most `delay` later ones: so an auditor has
  at least until the end of the round that the slot trains next.

With weights of W bytes, an optimiser state of O (AdamW: 2 W, Muon: W and a little) and n segments a round, that is
KEPT_ROUNDS * (2 W + O) + W + O + (delay + 1) * (n - 1) * (W + O) bytes, and n * (W + O) + W more while the next round
is trained. The weights at a round's start are not kept: anyone can compute them.
"""

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct
from torch import Tensor

from dlx.ground import durable
from dlx.ground.blobs import LOST, Damaged
from dlx.training.models import weights
from dlx.training.recipe.manifest import Manifest, manifest_hash
from dlx.training.recipe.recipe import Plan
from dlx.training.slot.records import Trained

KEPT_ROUNDS = 3
FORMAT = 2  # of slot.json; raised when an older dlx-node could not go on from what this one writes

_STATE_FILE = re.compile(r"[0-9a-f]{64}|\..*\.tmp")  # also what a kill left half written


class SlotError(RuntimeError):
    """The slot's stored state is damaged or another slot's, or a round was asked for that it cannot train."""


class Own(Struct, frozen=True, forbid_unknown_fields=True):
    """A payload of this slot."""

    round: int
    payload: bytes
    plan: Plan


class _Numbered(Struct):
    format: int = 1  # the first files had no number


class State(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    format: int = 1
    manifest: bytes
    stage: int
    recent: tuple[Trained, ...]  # the last rounds, newest last; its state files are the slot's state
    own: tuple[Own, ...]  # whose seals no trained round has looked at yet, oldest first; at most delay + 1


class SlotFiles:
    """The directory of a slot of `stage`; made when missing."""

    def __init__(self, manifest: Manifest, stage: int, directory: Path) -> None:
        self._manifest, self._stage, self._directory = manifest_hash(manifest), stage, directory
        self._whole_rounds = manifest.outer.delay + 1
        directory.mkdir(parents=True, exist_ok=True)

    def load(self) -> State | None:
        """The committed state, None before the first. Raises SlotError; a newer format's is left as it is.

        Raises OSError for trouble that is not the file's."""
        if not self._file.exists():
            return None
        try:
            data = self._file.read_bytes()
            found = msgspec.json.decode(data, type=_Numbered).format
            if found > FORMAT:
                raise SlotError(
                    f"{self._file} was written by a newer dlx-node (format {found}, this one knows {FORMAT}): use that "
                    "one; nothing was changed"
                )
            if found < FORMAT:
                raise SlotError(
                    f"{self._file} was written by an older dlx-node (format {found}, this one knows {FORMAT}): "
                    f"remove {self._directory} to start the slot from zero"
                )
            state = msgspec.json.decode(data, type=State)
        except msgspec.MsgspecError as error:
            raise self.damaged(f"slot.json: {error}") from error
        except OSError as error:
            if error.errno not in LOST:  # a full or busy machine's
                raise
            raise self.damaged(f"slot.json: {error}") from error
        if (state.manifest, state.stage) != (self._manifest, self._stage) or not state.recent:
            raise SlotError(f"{self._directory} holds the state of another run or stage (stage {state.stage})")
        return state

    def commit(self, before: State | None, trained: Trained, still_open: tuple[Own, ...], plan: Plan) -> State:
        """Make the round the slot's state, in one rename; whatever it names has been written before."""
        recent = (*(before.recent if before else ()), trained)[-KEPT_ROUNDS:]
        own = (*still_open, Own(trained.round, trained.payload, plan))
        state = State(format=FORMAT, manifest=self._manifest, stage=self._stage, recent=recent, own=own)
        durable.write_bytes(self._file, msgspec.json.encode(state))
        return state

    def write(self, tensors: Mapping[str, Tensor]) -> bytes:
        """The tensors' hash; they are on disk then, and stay if the next state names them."""
        return weights.write_blob(tensors, self._directory)

    def read(self, digest: bytes, shapes: weights.Shapes) -> dict[str, Tensor]:
        """Tensors that the state names. Raises SlotError."""
        try:
            return weights.read(self._directory / digest.hex(), shapes, sha256=digest)
        except (Damaged, weights.WeightsError) as error:
            raise self.damaged(str(error)) from error

    def remove_all_but(self, state: State | None) -> None:
        """Remove the files that are not kept of the state's rounds."""
        recent = state.recent if state else ()
        between = [one for trained in recent[-self._whole_rounds :] for one in trained.between]
        digests = [digest for one in between for digest in (one.weights, one.optimiser)]
        kept = {digest.hex() for digest in (*digests, *(digest for one in recent for digest in _ends(one)))}
        for path in self._directory.iterdir():
            if _STATE_FILE.fullmatch(path.name) and path.name not in kept:
                with contextlib.suppress(OSError):  # tried again after the next round
                    path.unlink()

    def damaged(self, reason: str) -> SlotError:
        """To be raised."""
        return SlotError(f"the slot's state is damaged ({reason}); remove {self._directory} to start it from zero")

    @property
    def _file(self) -> Path:
        return self._directory / "slot.json"


def _ends(trained: Trained) -> tuple[bytes, ...]:
    before, after = (
        (trained.optimiser_before, trained.residual_before),
        (trained.optimiser_after, trained.residual_after),
    )
    return *before, trained.weights_after, *after
