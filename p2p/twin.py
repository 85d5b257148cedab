"""Is our peer id at work elsewhere? A folder that was copied gives two processes one key, and both would sign by it."""

import secrets
from collections.abc import Sequence

from dlx.p2p.host import Host
from dlx.p2p.streams import StreamBroken

SECONDS = 5.0  # for all addresses together


async def is_elsewhere(host: Host, addresses: Sequence[str]) -> bool:
    """Whether another process answers by the host's peer id at these multiaddrs, which are its own.

    Nobody without its key can say so. It is asked by a host of this moment: where `host` knows that one, it met itself.
    """
    asks = Host(secrets.token_bytes(32), (), (), host.hello)
    async with asks.run():
        asks.known(host.peer_id, [address for address in addresses if "/p2p-circuit" not in address])
        try:
            await asks.connect(host.peer_id, SECONDS)
        except StreamBroken:
            return False
        return all(peer.peer_id != asks.peer_id for peer in host.peers())
