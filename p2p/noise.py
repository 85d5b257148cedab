"""Noise without a task switch for each frame: of one message nearly always, and done at once by what is above.

The library takes a lock, and with it a round of the scheduler, in each of its layers for each frame. What it still sees
are handshakes, and the frames that open, close or reset a stream.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Any

import trio
from libp2p.abc import IRawConnection, ISecureConn
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.peer.id import ID
from libp2p.security.noise.io import MAX_PLAINTEXT_LENGTH
from libp2p.security.noise.transport import Transport
from libp2p.security.secure_session import SecureSession
from libp2p.stream_muxer.yamux.yamux import HEADER_SIZE, TYPE_DATA, YAMUX_HEADER_FORMAT

from dlx.p2p.layout import LIBP2P_VERSION, GuardError
from dlx.p2p.transport import MeteredStream

Take = Callable[[memoryview], int]  # does what whole frames at the beginning say; the bytes of those
_LENGTH = struct.Struct(">H")


class LeanNoise(Transport):
    """The library's handshakes, which end with channels of ours."""

    async def secure_inbound(self, conn: IRawConnection) -> ISecureConn:
        return LeanChannel(await super().secure_inbound(conn))

    async def secure_outbound(self, conn: IRawConnection, peer_id: ID) -> ISecureConn:
        return LeanChannel(await super().secure_outbound(conn, peer_id))


class LeanChannel(SecureSession):
    """What follows the library's session once a handshake is over: the same until `begin`, then under Yamux."""

    _take: Take | None = None

    def __init__(self, session: ISecureConn) -> None:
        if not isinstance(session, SecureSession) or session.high_watermark:
            raise GuardError(f"libp2p's layers have changed: {session!r}; install {LIBP2P_VERSION}")
        super().__init__(
            local_peer=session.local_peer,
            local_private_key=session.local_private_key,
            remote_peer=session.remote_peer,
            remote_permanent_pubkey=session.remote_permanent_pubkey,
            is_initiator=session.is_initiator,
            conn=session.conn,
        )

    def begin(self, tcp: MeteredStream, take: Take) -> None:
        states: Any = self.conn.noise_state.noise_protocol  # type: ignore[attr-defined]
        self._encrypt = states.cipher_state_encrypt.encrypt_with_ad
        self._decrypt = states.cipher_state_decrypt.decrypt_with_ad
        self._tcp, self._take = tcp, take
        self._rest = memoryview(self._drain(None))  # decrypted, and not taken yet
        self._body = 0  # bytes of it, or to come, that belong to a header which the library has read

    async def read(self, n: int | None = None) -> bytes:
        """The next header that `take` leaves, or what the last one announced. Raises ConnectionClosedError."""
        if self._take is None:  # the muxer is still to be agreed on
            return await super().read(n)
        assert n, "the muxer knows how much it wants"
        if not self._body:
            await self._next_header()
        found = bytearray()
        while True:
            part = self._rest[: n - len(found)]
            found += part
            self._rest = self._rest[len(part) :]
            if len(found) == n:
                break
            self._rest = await self._message()
        if self._body:
            self._body -= n
        else:
            _, kind, _, _, length = struct.unpack(YAMUX_HEADER_FORMAT, found)
            self._body = length if kind == TYPE_DATA else 0
        return bytes(found)

    async def write(self, data: bytes) -> None:
        """Raises ConnectionClosedError."""
        if self._take is None:
            return await super().write(data)
        step = MAX_PLAINTEXT_LENGTH
        await self.write_frames([data[start : start + step] for start in range(0, len(data), step)])

    async def write_frames(self, frames: Sequence[bytes]) -> None:
        """Each as one message, together. Raises ConnectionClosedError."""
        parts: list[bytes] = []
        for frame in frames:
            message = self._encrypt(None, frame)
            parts += (_LENGTH.pack(len(message)), message)
        await self._tcp.write_parts(parts)

    async def _next_header(self) -> None:
        """Until one is at hand that somebody else has to see."""
        assert self._take is not None
        while True:
            self._rest = self._rest[self._take(self._rest) :]
            if len(self._rest) >= HEADER_SIZE:
                return
            more = await self._message()
            self._rest = memoryview(bytes(self._rest) + more) if self._rest else more

    async def _message(self) -> memoryview:
        encrypted = await self._tcp.packet()
        try:
            message = memoryview(self._decrypt(None, encrypted))
        except Exception as error:  # of the library under Noise
            raise ConnectionClosedError(f"not a message of the peer's: {error!r}") from error
        self._tcp.heard_at = trio.current_time()
        return message
