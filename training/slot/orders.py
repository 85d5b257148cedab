"""What rank 0 has the ranks of a shared stage do for its slot, in its own words, and what may come in the way."""

from typing import Literal

from msgspec import Struct

from dlx.ground.blobs import Damaged
from dlx.training.codecs import CodecError
from dlx.training.models.weights import WeightsError
from dlx.training.recipe.recipe import Plan


class Made(Struct, frozen=True):
    """A payload of the slot's own."""

    path: str
    plan: Plan


class Sources(Struct, frozen=True):
    """What a round starts from, files that rank 0 has verified."""

    codec: str
    version: str
    own: Made | None  # in the start
    alpha: float
    before: str | None  # the last change, which `newest` encodes; None: there is none
    newest: Made | None  # the last payload
    ahead: float


class Encoding(Struct, frozen=True):
    """What a round's change is made of, and where it goes."""

    sources: Sources
    plan: Plan
    folded: tuple[Made, ...]
    payload: str
    change: str


class TakeUp(Struct, frozen=True, tag="take up"):
    """Take up what a round starts from, of files that all can read: each rank its own rows."""

    sources: Sources


class Fill(Struct, frozen=True, tag="fill"):
    """Write the optimiser state to this file, and the weights to another, or with an encoding the change."""

    optimiser: str
    weights: str | None = None
    encoding: Encoding | None = None


class Trouble(Struct, frozen=True):
    """Why some rank could not, and so all have stopped."""

    kind: Literal["codec", "damaged", "file", "weights"]
    reason: str
    blob: bytes = b""

    @property
    def error(self) -> Exception:
        match self.kind:
            case "codec":
                return CodecError(self.reason)
            case "damaged":
                return Damaged(self.blob, self.reason)
            case "file":
                return OSError(self.reason)
            case "weights":
                return WeightsError(self.reason)


def trouble_of(error: Exception) -> Trouble:
    match error:
        case Damaged():
            return Trouble("damaged", error.reason, error.blob)
        case CodecError():
            return Trouble("codec", str(error))
        case WeightsError():
            return Trouble("weights", str(error))
        case _:
            return Trouble("file", str(error))
