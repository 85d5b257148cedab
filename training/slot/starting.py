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
from dlx.training.models.weights import Shapes, Stored, WeightsError
from dlx.training.outer.payloads import Payload
from dlx.training.slot.change import Difference
from dlx.training.slot.orders import Start, Trouble, trouble_of


@torch.no_grad()
def take_up(group: Group, share: Share, start: Start) -> Trouble | None:
    """Every rank's part, a collective: None once all have their rows."""
    trouble = b""
    try:
        source = _opened(start, share.shapes)
        for name, shape in sorted(share.shapes.items()):
            mine, (rows, *columns) = share.piece(name)
            mine.copy_(torch.from_numpy(_read(source, name, shape, rows)[(slice(None), *columns)]))
    except (BlobError, CodecError, OSError, WeightsError) as error:
        trouble = msgspec.msgpack.encode(trouble_of(error))
    found = group.first(trouble)
    return msgspec.msgpack.decode(found, type=Trouble) if found else None


def _opened(start: Start, shapes: Shapes) -> Difference:
    own = start.own
    version = Stored(Path(start.version), shapes, finite=True)  # its bytes are sound
    payload = None if own is None else Payload(codec(start.codec), shapes, Path(own.path), own.plan)
    return Difference(version, payload, start.alpha)


def _read(source: Difference, name: str, shape: tuple[int, ...], rows: slice) -> np.ndarray:
    """Rows of a tensor: whole blocks are read."""
    width, block = math.prod(shape[1:]), source.block(name)
    low, high = rows.start * width, rows.stop * width
    begin, end = low // block * block, min(-(-high // block) * block, math.prod(shape))
    out = np.empty(max(0, end - begin), np.float32)
    if high > low:
        source.read_into(out, name, begin)
    return out[low - begin : high - begin].reshape(-1, *shape[1:])
