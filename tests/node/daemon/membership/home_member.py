"""A member in a process of its own, for `test_homes`: its libp2p host, and what learns whether it can be reached.

A folder stands for the ledger: NAME.json has what each has registered. NAME.said is what it says of itself. NAME.end
ends it.
"""

import json
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import trio

from dlx.ground import durable
from dlx.ground.blobs import BlobStore
from dlx.node.daemon.chain.clock import ChainClock
from dlx.node.daemon.chain.follower import Follower
from dlx.node.daemon.membership.reachability import Reachability
from dlx.node.daemon.membership.router import RouterPort
from dlx.p2p.dialback import DialBack
from dlx.p2p.exchange import BlobExchange
from dlx.p2p.host import Host
from dlx.p2p.relay.carrier import Carrier
from dlx.p2p.relay.punch import Punch
from dlx.p2p.relay.reservations import Reservations
from tests.p2p.network import HELLO

BYTES = 4_000_000  # of a blob that each has for the others


async def main(name: str, ledger: Path) -> None:
    listen = ["/ip4/0.0.0.0/tcp/4650", "/ip6/::/tcp/4650"]
    host = Host(name.encode().rjust(32, b"k"), listen, [], HELLO)
    store = BlobStore(ledger / f"{name}.blobs")
    exchange, dial_back = BlobExchange(host, store), DialBack(host)
    Punch(host, dial_back)
    nobody: Any = None
    follower = Follower(nobody, HELLO.run, ChainClock())
    router = RouterPort(host.peer_id, asks=True, record=ledger / f"{name}.forwardings")
    reachability = Reachability(host, dial_back, follower, Carrier(host, 50e6), Reservations(host), router)
    blob, fetched = store.put(os.urandom(BYTES)).hex(), dict[str, float]()

    def read() -> dict[str, Any]:
        return {path.stem: json.loads(path.read_bytes()) for path in ledger.glob("*.json")}

    async def fetch(other: str, name_: str, peer: str) -> None:
        began = time.monotonic()
        await exchange.fetch(bytes.fromhex(name_), BYTES, [peer])
        fetched[other] = time.monotonic() - began

    async with host.run(), trio.open_nursery() as nursery:
        host.announce(())  # else others learn private addresses before it is known that they help nobody
        nursery.start_soon(reachability.run, lambda: None)
        nursery.start_soon(router.run, lambda: None)
        while True:
            named = read()
            addresses: Any = reachability.addresses.value
            members = {one["peer"]: tuple(one["addresses"]) for one in named.values()} | {host.peer_id: ()}
            seen: Any = SimpleNamespace(peers=lambda members=members: members)
            follower.seen.set(seen)
            host.meet(members)
            own = {"peer": host.peer_id, "addresses": addresses or (), "blob": blob}
            durable.write_bytes(ledger / f"{name}.json", json.dumps(own).encode())
            for other, one in named.items():
                if other != name and other not in fetched and one["peer"] in host.agreed():
                    fetched[other] = -1.0
                    nursery.start_soon(fetch, other, one["blob"], one["peer"])
            peers = {peer.peer_id: peer.relay for peer in host.peers() if peer.agreed}
            said = {
                "reachable": str(reachability),
                "peers": {other: peers[one["peer"]] for other, one in named.items() if one["peer"] in peers},
                "fetched": fetched,
                "relayed": host.traffic()["relayed"][0],
                "cpu": time.process_time(),
            }
            durable.write_bytes(ledger / f"{name}.said", json.dumps(said).encode())
            if (ledger / f"{name}.end").exists():
                break
            await trio.sleep(0.3)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main, sys.argv[1], Path(sys.argv[2]))
