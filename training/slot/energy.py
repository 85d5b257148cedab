"""How much of its update a payload keeps: what the adaptive plan's rank is decided by.

Each contribution states it of u, what its encoder was given: the change with the residual and all that came back into
it. Of the change alone a codec may keep little and still fall behind nothing, or much while the residual grows from
round to round. Of u it is the part by which error feedback catches up. Of the tensors that a rank shortens, no others:
what else a codec leaves out no rank mends. Everybody who has change and payload finds it, and so does who audits.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from dlx.ground.constants import UNIT
from dlx.training.codecs.base import count, scratch, spans
from dlx.training.codecs.lowrank import factored
from dlx.training.models.weights import Shapes
from dlx.training.outer.payloads import Payload
from dlx.training.slot.change import Source

TOLERANCE = 1  # units: float64 sums in another order may round the other way


def kept_energy(shapes: Shapes, change: Source, payload: Payload, threads: int = 1) -> int:
    """The part of the squared norm that decoding the payload takes away of the change's tensors that it has as factors,
    UNIT = 1.0. It is all where there are none or they are zero, nothing where it leaves more than there was. Raises
    CodecError."""

    def squares(name: str) -> tuple[float, float]:
        whole = left = 0.0
        decoder = payload.decoder(name)
        for start, length in spans(count(shapes[name]), decoder.block):
            values, decoded = scratch("change", length), scratch("block", length)
            change.read_into(values, name, start)
            whole += _square(values)
            decoder.into(decoded, start)
            values -= decoded
            left += _square(values)
        return whole, left

    with ThreadPoolExecutor(threads, "kept") as pool:
        names = [name for name in sorted(shapes) if factored(name, shapes[name], payload.plan)]
        found = list(pool.map(squares, names))
    whole, left = (sum(one[at] for one in found) for at in (0, 1))
    return UNIT if whole == 0 else max(0, round(UNIT * (1 - left / whole)))


def _square(values: np.ndarray) -> float:
    wide = scratch("wide", len(values), np.float64)
    wide[...] = values
    return float(wide @ wide)
