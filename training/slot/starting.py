"""How the ranks of one machine take up what a round starts from: each reads its own rows, all at the same time."""

import math
from pathlib import Path

import msgspec
import numpy as np
import torch

from dlx.ground.blobs import BlobError
from dlx.training.codecs import CodecError, codec
from dlx.training.inner.ranks.group import Group
from dlx.training.inner.ranks.share import Share
from dlx.training.models.weights import Shapes, Stored, WeightsError, Zeros
from dlx.training.outer.payloads import Payload
from dlx.training.slot.change import Difference, Start
from dlx.training.slot.orders import Made, Sources, TakeUp, Trouble, trouble_of


def opened(sources: Sources, shapes: Shapes, device: str | None = None) -> Start:
    """What a round starts from. `device`: where payloads are decoded; None: in main memory. Raises BlobError,
    CodecError, OSError, WeightsError."""
    chosen = codec(sources.codec, device)

    def payload(made: Made | None) -> Payload | None:
        return None if made is None else Payload(chosen, shapes, Path(made.path), made.plan)

    version = Stored(Path(sources.version), shapes, finite=True)  # its bytes are sound
    before = Zeros(shapes) if sources.before is None else Stored(Path(sources.before), shapes)
    base = Difference(version, payload(sources.own), sources.alpha)
    return Start(base, Difference(before, payload(sources.newest)), sources.ahead)


@torch.no_grad()
def take_up(group: Group, share: Share, order: TakeUp) -> Trouble | None:
    """Every rank's part, a collective: None once all have their rows."""
    trouble = b""
    try:
        source = opened(order.sources, share.shapes)
        for name, shape in sorted(share.shapes.items()):
            mine, (rows, *columns) = share.piece(name)
            mine.copy_(torch.from_numpy(_read(source, name, shape, rows)[(slice(None), *columns)]))
    except (BlobError, CodecError, OSError, WeightsError) as error:
        trouble = msgspec.msgpack.encode(trouble_of(error))
    found = group.first(trouble)
    return msgspec.msgpack.decode(found, type=Trouble) if found else None


def _read(source: Start, name: str, shape: tuple[int, ...], rows: slice) -> np.ndarray:
    """Rows of a tensor: whole blocks are read."""
    width, block = math.prod(shape[1:]), source.block(name)
    low, high = rows.start * width, rows.stop * width
    begin, end = low // block * block, min(-(-high // block) * block, math.prod(shape))
    out = np.empty(max(0, end - begin), np.float32)
    if high > low:
        source.read_into(out, name, begin)
    return out[low - begin : high - begin].reshape(-1, *shape[1:])
