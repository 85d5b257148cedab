"""Peers that agreed with us, on disk: whom to dial while the chain does not answer."""

import logging
import math
from pathlib import Path
from typing import Annotated

import msgspec
from libp2p.peer.id import ID
from msgspec import Meta
from multiaddr import Multiaddr

from dlx.ground import durable
from dlx.p2p.addresses import ADDRESSES_PER_PEER, AddressError, parse_peer_id, usable

VERSION = 1
PEERS = 256
ADDRESS_LIMIT = 256  # characters
FILE_LIMIT = 2 * 1024 * 1024  # bytes; 256 peers with 16 addresses of 256 bytes fit

log = logging.getLogger(__name__)


class KnownPeer(msgspec.Struct, frozen=True):
    peer_id: Annotated[str, Meta(max_length=128)]
    addresses: Annotated[
        tuple[Annotated[str, Meta(max_length=ADDRESS_LIMIT)], ...], Meta(max_length=ADDRESSES_PER_PEER)
    ]
    agreed: Annotated[float, Meta(ge=0)]  # unix time of the last hello
    named: bool  # by the ledger or the operator, not only found in the DHT


class _File(msgspec.Struct, frozen=True):
    version: int
    peers: Annotated[tuple[KnownPeer, ...], Meta(max_length=PEERS)]


class _Head(msgspec.Struct):
    version: int


class PeerStore:
    """One small file. What is not as it should be is left out: it only saves looking for peers again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._peers: dict[str, KnownPeer] = {}
        self._newer = False
        try:
            self._read()
        except FileNotFoundError:
            pass
        except (OSError, msgspec.MsgspecError, ValueError) as error:
            log.warning("%s is left out, as it cannot be read: %s", path, error)

    def peers(self) -> list[tuple[ID, list[Multiaddr]]]:
        """Those with an address that can be dialled; first whom the ledger named, then whom we met last."""
        found = []
        for known in self._peers.values():
            peer = parse_peer_id(known.peer_id)
            addresses = usable(known.addresses, peer)
            if addresses:
                found.append((peer, addresses))
        return found

    def named(self) -> frozenset[str]:
        """Peer ids of those whom the ledger or the operator named."""
        return frozenset(known.peer_id for known in self._peers.values() if known.named)

    def agreed(self, peer: ID, addresses: list[Multiaddr], named: bool, when: float) -> None:
        """A peer that agreed with us, last at the unix time `when`. Beyond PEERS the last in line is forgotten."""
        texts = [text for text in map(str, addresses) if len(text) <= ADDRESS_LIMIT]
        self._keep([*self._peers.values(), KnownPeer(str(peer), tuple(texts[:ADDRESSES_PER_PEER]), when, named)])

    def save(self) -> None:
        """Durable on return. Raises OSError. A file of a newer version stays as it is."""
        if not self._newer:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            durable.write_bytes(self._path, msgspec.json.encode(_File(VERSION, tuple(self._peers.values()))))

    def _read(self) -> None:
        with open(self._path, "rb") as file:
            data = file.read(FILE_LIMIT + 1)
        if len(data) > FILE_LIMIT:
            raise ValueError(f"it has more than {FILE_LIMIT} bytes")
        version = msgspec.json.decode(data, type=_Head).version
        if version != VERSION:
            self._newer = version > VERSION
            raise ValueError(f"its version is {version}, not {VERSION}")
        found = msgspec.json.decode(data, type=_File).peers
        self._keep([peer for peer in found if _is_peer_id(peer.peer_id) and math.isfinite(peer.agreed)])

    def _keep(self, peers: list[KnownPeer]) -> None:
        latest = {peer.peer_id: peer for peer in peers}
        line = sorted(latest.values(), key=lambda peer: (not peer.named, -peer.agreed))
        self._peers = {peer.peer_id: peer for peer in line[:PEERS]}


def _is_peer_id(text: str) -> bool:
    try:
        parse_peer_id(text)
    except AddressError:
        return False
    return True
