"""What both ends of a pipe recorded of it, signed: so who publishes another trace than it agreed on has signed both."""

from dlx.ledger.typed import Agreement, Domain, SignatureError, recover
from dlx.node.home.keys.slashing_protection import SlashingProtection
from dlx.p2p.frames import PipeTensor
from dlx.p2p.wire import WireError

RECORD = 32  # bytes


class Agreements:
    """Of one slot, (replica, stage). Links are "previous" and "next"; pieces are of the kinds AGREE."""

    def __init__(self, signer: SlashingProtection, domain: Domain, run: bytes, slot: tuple[int, int]) -> None:
        self._signer, self._domain, self._run, (self._replica, self._stage) = signer, domain, run, slot

    def signed(self, link: str, piece: PipeTensor) -> PipeTensor:
        """What the training process recorded, as it goes to the neighbour. Waits for the disk. Raises Contradiction,
        OSError."""
        agreement = self._agreement(link, piece.round, bytes(piece.data))
        data = memoryview(agreement.recorded + self._signer.sign_agreement(agreement))
        return PipeTensor(piece.round, piece.kind, piece.step, piece.micro, len(data), 0, data)

    def require(self, link: str, piece: PipeTensor, member: str | None) -> None:
        """Raises WireError unless `member` signed what it says that it recorded."""
        recorded, signature = bytes(piece.data[:RECORD]), bytes(piece.data[RECORD:])
        try:
            signer = recover(self._agreement(link, piece.round, recorded).digest(self._domain), signature)
        except SignatureError:
            signer = None
        if signer is None or signer != member:
            raise WireError("agreement", "what it recorded of the pipe is not signed by its member")

    def _agreement(self, link: str, round: int, recorded: bytes) -> Agreement:
        return Agreement(self._run, round, self._replica, self._stage - (link == "previous"), recorded)
