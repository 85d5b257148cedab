"""What a slot keeps in its directory: `slot.json`, the optimiser state that the next round starts from, and the last
change with its payload. The two give the residual, and are canonical files and a blob, named by their sha256. In
`rounds/` is what audits may ask for (see slot.undecided).

Weights have W bytes, an optimiser state has O (AdamW: 2 W, Muon: W and a little, Shampoo: several W). With n segments a
round and a segment's received tensors of B, a round takes n (W + O + B) + W there. Each round is kept until its draw is
known.
"""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct

from dlx.ground import durable
from dlx.ground.blobs import LOST, BlobError
from dlx.ground.untrusted import decode_json
from dlx.training.codecs import Codec, CodecError
from dlx.training.models import weights
from dlx.training.outer.payloads import Payload
from dlx.training.recipe.manifest import Manifest, manifest_hash
from dlx.training.recipe.recipe import Plan
from dlx.training.slot.rounds import Trained
from dlx.training.slot.trace import Trace
from dlx.training.slot.undecided import Undecided, most_undecided

FORMAT = 6  # of slot.json; raised when an older dlx-node could not go on from what this one writes

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
    last: Trained  # the newest finished round; its state files are the slot's state
    own: tuple[Own, ...]  # whose seals no trained round has looked at yet, oldest first; at most delay + 1


class SlotFiles:
    """The directory of a slot of `stage`; made when missing."""

    def __init__(self, manifest: Manifest, stage: int, directory: Path, blobs: Path) -> None:
        self._manifest, self._stage, self._directory = manifest_hash(manifest), stage, directory
        self._blobs = blobs
        self._most_undecided = most_undecided(manifest)
        self.undecided = Undecided(directory)
        directory.mkdir(parents=True, exist_ok=True)

    def load(self) -> State | None:
        """The committed state, None before the first. Raises SlotError; a newer format's is left as it is.

        Raises OSError for trouble that is not the file's."""
        if not self._file.exists():
            return None
        try:
            data = self._file.read_bytes()
            found = decode_json(data, _Numbered).format
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
            state = decode_json(data, State)
        except msgspec.MsgspecError as error:
            raise self.damaged(f"slot.json: {error}") from error
        except OSError as error:
            if error.errno not in LOST:  # a full or busy machine's
                raise
            raise self.damaged(f"slot.json: {error}") from error
        if (state.manifest, state.stage) != (self._manifest, self._stage):
            raise SlotError(f"{self._directory} holds the state of another run or stage (stage {state.stage})")
        return state

    def commit(
        self, before: State | None, trained: Trained, trace: Trace, still_open: tuple[Own, ...], plan: Plan
    ) -> State:
        """Make the round the slot's state, in one rename; all its files are in its folder of `undecided`, its payload
        is among the blobs."""
        folder = self.undecided.folder(trained.round)
        for source, target, digests in (
            (self._directory, folder, (trained.optimiser_before, trained.change_before, trained.payload_before)),
            (folder, self._directory, (trained.optimiser_after, trained.change)),
            (self._blobs, self._directory, (trained.payload,)),
        ):
            for digest in digests:
                with contextlib.suppress(FileNotFoundError):  # a state of zeros has no file
                    durable.share(source / digest.hex(), target / digest.hex())
        for target in (folder, self._directory):
            durable.sync_directory(target)
        self.undecided.finish(trained, trace)
        own = (*still_open, Own(trained.round, trained.payload, plan))
        state = State(format=FORMAT, manifest=self._manifest, stage=self._stage, last=trained, own=own)
        durable.write_bytes(self._file, msgspec.json.encode(state))
        return state

    def open(self, digest: bytes, shapes: weights.Shapes) -> weights.Stored:
        """Tensors that the state names, all of whose bytes are sound. Raises SlotError, also while it is read."""
        return _Kept(self, self.path(digest), shapes, digest)

    def open_payload(self, chosen: Codec, shapes: weights.Shapes, own: Own) -> Payload:
        """The one that the newest round made. Raises SlotError."""
        with _blaming(self):
            return Payload(chosen, shapes, self.path(own.payload), own.plan)

    def path(self, digest: bytes) -> Path:
        """Of a file that the state names."""
        return self._directory / digest.hex()

    def clean(self, state: State | None) -> None:
        """Remove what the state does not need, and rounds that wait for their draw beyond the newest few."""
        self.undecided.clean(state.last.round if state else None, self._most_undecided)
        last = state.last if state else None
        kept = {one.hex() for one in (last.optimiser_after, last.change, last.payload)} if last else set()
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


class _Kept(weights.Stored):
    """A file of the slot's own: who damaged it is not the network."""

    def __init__(self, files: SlotFiles, path: Path, shapes: weights.Shapes, digest: bytes) -> None:
        self._files = files
        with _blaming(files):
            super().__init__(path, shapes, sha256=digest, once=True)
            self.verify()

    def read_into(self, out: np.ndarray, name: str, start: int = 0) -> None:
        with _blaming(self._files):
            super().read_into(out, name, start)


@contextlib.contextmanager
def _blaming(files: SlotFiles) -> Iterator[None]:
    try:
        yield
    except (BlobError, CodecError, weights.WeightsError) as error:
        raise files.damaged(str(error)) from error
