"""Agreement on protocols, with a bound on the length of a name.

The library takes a name of any length, from anybody, before anything is encrypted.
"""

from collections.abc import Sequence
from typing import Protocol

from libp2p.abc import IMultiselectCommunicator
from libp2p.custom_types import StreamHandlerFn, TProtocol
from libp2p.exceptions import ParseError
from libp2p.io.exceptions import IOException
from libp2p.protocol_muxer.exceptions import MultiselectCommunicatorError
from libp2p.protocol_muxer.multiselect import DEFAULT_NEGOTIATE_TIMEOUT, Multiselect
from libp2p.protocol_muxer.multiselect_client import MultiselectClient
from libp2p.protocol_muxer.multiselect_communicator import MultiselectCommunicator
from libp2p.utils.varint import read_varint_prefixed_bytes_limited

from dlx.p2p.layout import LIBP2P_VERSION, GuardError

NAME_LIMIT = 1024  # bytes of a protocol's name


class Negotiating(Protocol):
    """Whatever of the library's agrees on protocols: a host, and what chooses between transports or muxers."""

    multiselect: Multiselect
    multiselect_client: MultiselectClient


def bound_names(negotiating: Negotiating) -> None:
    """Have it read no longer names; before it agrees on anything."""
    negotiating.multiselect = _Answering(negotiating.multiselect.handlers)
    negotiating.multiselect_client = _Asking()


class _Answering(Multiselect):
    async def negotiate(
        self, communicator: IMultiselectCommunicator, negotiate_timeout: int = DEFAULT_NEGOTIATE_TIMEOUT
    ) -> tuple[TProtocol | None, StreamHandlerFn | None]:
        return await super().negotiate(_bounded(communicator), negotiate_timeout)


class _Asking(MultiselectClient):
    async def select_one_of(
        self,
        protocols: Sequence[TProtocol],
        communicator: IMultiselectCommunicator,
        negotiate_timeout: int = DEFAULT_NEGOTIATE_TIMEOUT,
    ) -> TProtocol:
        return await super().select_one_of(protocols, _bounded(communicator), negotiate_timeout)


class _BoundedCommunicator(MultiselectCommunicator):
    async def read(self) -> str:
        try:
            message = await read_varint_prefixed_bytes_limited(self.read_writer, NAME_LIMIT)
        except (ParseError, IOException) as error:
            raise MultiselectCommunicatorError("no protocol's name") from error
        if not message.endswith(b"\n"):
            raise MultiselectCommunicatorError("a protocol's name without its end")
        return message[:-1].decode()


def _bounded(communicator: IMultiselectCommunicator) -> MultiselectCommunicator:
    if not isinstance(communicator, MultiselectCommunicator):
        raise GuardError(f"libp2p's layers have changed: {communicator!r}; install {LIBP2P_VERSION}")
    return _BoundedCommunicator(communicator.read_writer)
