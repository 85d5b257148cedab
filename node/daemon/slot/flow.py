"""What comes over one pipe, judged as it comes: whole messages, piece by piece, and none that nobody waits for."""

from collections import Counter
from collections.abc import Mapping

from dlx.p2p.frames import TENSOR_PIECE, PipeTensor
from dlx.p2p.wire import WireError
from dlx.training.inner.traffic import Incoming


class Flow:
    """So what a neighbour can have us hold is bounded by what we asked it for, however fast it is."""

    def __init__(self, incoming: Mapping[str, Incoming]) -> None:
        self._incoming = incoming
        self._came, self._sent = Counter[str](), Counter[str]()  # whole messages by kind
        self._begun: tuple[int, str, int, int] | None = None  # a message whose end is to come
        self._offset = 0  # of its next piece

    def sent(self, piece: PipeTensor) -> None:
        if piece.is_last:
            self._sent[piece.kind] += 1

    def came(self, piece: PipeTensor) -> None:
        """Raises WireError("flow") for what no honest neighbour sends."""
        kind, message = piece.kind, (piece.round, piece.kind, piece.step, piece.micro)
        rule = self._incoming.get(kind)
        if rule is None:
            raise WireError("flow", f"no {kind!r} is sent this way")
        if piece.total not in rule.sizes:
            raise WireError("flow", f"{kind} of {piece.total} bytes, not {' or '.join(map(str, rule.sizes))}")
        if self._begun not in (None, message):
            raise WireError("flow", f"{kind} in the middle of another message")
        if self._begun is None and self._came[kind] >= self._sent[rule.after] + rule.ahead:
            raise WireError("flow", f"more of {kind} than was asked for")
        if piece.offset != self._offset or len(piece.data) != min(TENSOR_PIECE, piece.total - self._offset):
            raise WireError("flow", f"{kind}: {len(piece.data)} bytes at {piece.offset}, not those at {self._offset}")
        if piece.is_last:
            self._begun, self._offset = None, 0
            self._came[kind] += 1
        else:
            self._begun, self._offset = message, self._offset + TENSOR_PIECE
