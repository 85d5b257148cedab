"""What each rank of a shared stage does at a segment's and at a round's end with the tensors that it owns.

A tensor comes whole to its owner, which writes it, or encodes its change, at its places in files that rank 0 has made.
So the bytes are those of one process, whatever the number of ranks. States are written by the ranks of rank 0's machine
alone, which has the files; a change is encoded by the ranks of all machines (see `encoded`).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np
import torch

from dlx.ground.blobs import BlobError
from dlx.training.codecs import CodecError
from dlx.training.inner.ranks.group import Group
from dlx.training.inner.ranks.owners import owners, turns
from dlx.training.inner.ranks.share import Share
from dlx.training.models.weights import WeightsError, array, layout
from dlx.training.slot.encoded import Afar, Encoder, Ingredients, Placed
from dlx.training.slot.orders import Fill, Trouble, trouble_of


def fill(
    group: Group,
    share: Share,
    work: Fill,
    device: str | None,
    written: Callable[[Sequence[str]], None] = lambda names: None,
) -> Trouble | None:
    """Every rank's part, a collective: None once all is done. `written` is told the names as they are in the files."""
    with ExitStack() as stack:
        mine = _Owned(group, share, work, device, stack)
        encoders = group.beside if work.encoding is None else group.size
        for shapes, ranks, put in (
            (share.optimiser_shapes, group.beside, mine.put_moment),
            (share.shapes, encoders, mine.put_weight),
        ):
            owner = owners(shapes, ranks)
            for names in turns(owner):
                tensors = {name: share.collect(name, owner[name]) for name in names}
                afar = [name for name in names if group.rank == 0 and owner[name] >= group.beside]
                for name in afar:
                    mine.hand_out(name, owner[name])
                for name, tensor in tensors.items():
                    if tensor is not None:
                        put(name, array(tensor))
                for name in afar:
                    mine.take_back(name, owner[name])
                if found := group.first(mine.trouble):
                    return msgspec.msgpack.decode(found, type=Trouble)
                written(names)
    return None


class _Owned:
    """Puts what a rank owns where it belongs; opens what it takes when it is needed, until the end of `stack`.

    `trouble` is what has gone wrong, encoded: all ranks go on to the end of the turn, and send what others wait for.
    """

    def __init__(self, group: Group, share: Share, work: Fill, device: str | None, stack: ExitStack) -> None:
        self._group, self._shapes, self._optimiser_shapes = group, share.shapes, share.optimiser_shapes
        self._work, self._device, self._stack = work, device, stack
        self.trouble = b""

    def put_moment(self, name: str, values: np.ndarray) -> None:
        with self._noting():
            self._moments.put(name, values)

    def put_weight(self, name: str, values: np.ndarray) -> None:
        if self._group.rank >= self._group.beside:
            self._encode_afar(name, values)
            return
        with self._noting():
            if self._work.encoding is None:
                self._weights.put(name, values)
            else:
                self._encoder.encode(name, values)

    def hand_out(self, name: str, owner: int) -> None:
        """Rank 0's: what a rank of another machine makes the change of."""
        ingredients = self._ingredients.empty(name)
        with self._noting():
            self._encoder.read_into(ingredients, name)
        for values in ingredients:
            self._group.send(torch.from_numpy(values), owner)

    def take_back(self, name: str, owner: int) -> None:
        """Rank 0's: the change, and the part of the payload."""
        made = self._ingredients.made(name)
        for values in made:
            self._group.receive(torch.from_numpy(values), owner)
        with self._noting():
            self._encoder.put(name, *made)

    def _encode_afar(self, name: str, end: np.ndarray) -> None:
        ingredients, made = self._ingredients.empty(name), self._ingredients.made(name)
        for values in ingredients:
            self._group.receive(torch.from_numpy(values), 0)
        with self._noting():
            self._afar.encode(name, end, ingredients, *made)
        for values in made:
            self._group.send(torch.from_numpy(values), 0)

    @contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except (BlobError, CodecError, OSError, WeightsError) as error:
            self.trouble = self.trouble or msgspec.msgpack.encode(trouble_of(error))

    @cached_property
    def _moments(self) -> Placed:
        return Placed(Path(self._work.optimiser), layout(self._optimiser_shapes).starts, self._stack)

    @cached_property
    def _weights(self) -> Placed:
        assert self._work.weights is not None
        return Placed(Path(self._work.weights), layout(self._shapes).starts, self._stack)

    @cached_property
    def _ingredients(self) -> Ingredients:
        assert self._work.encoding is not None
        return Ingredients(self._work.encoding, self._shapes)

    @cached_property
    def _encoder(self) -> Encoder:
        assert self._work.encoding is not None
        return Encoder(self._work.encoding, self._shapes, self._device, self._stack)

    @cached_property
    def _afar(self) -> Afar:
        assert self._work.encoding is not None
        return Afar(self._work.encoding, self._shapes, self._device)
