"""What routers may forward to this node, on disk. Some do so for ever: after a kill, the next start has it ended."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from dlx.ground import durable
from dlx.node.home import logs
from dlx.p2p import pcp, upnp
from dlx.p2p.pcp import Gateway
from dlx.p2p.upnp import Router, RouterError

MOST = 8
log = logs.get(__name__)


@dataclass(frozen=True)
class Forwarding:
    """`external`: the router's port, by PCP that which was asked for first; `port`: of this machine, which had the IP
    address `router.own` then."""

    router: Router | Gateway
    external: int
    port: int


def with_newest(forwardings: Sequence[Forwarding], newest: Forwarding) -> list[Forwarding]:
    """MOST at most, the newest last. What is too much is forgotten: of networks that the machine has left for good, and
    first by PCP, as leases end by themselves."""
    longest_last = sorted(forwardings, key=lambda one: isinstance(one.router, Router))  # else the oldest first
    return [*longest_last, newest][-MOST:]


def read(path: Path) -> list[Forwarding]:
    """In the order that was written; none where the file is damaged, or there is none. Raises OSError."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=list[Forwarding])
        for one in found:
            match one.router:
                case Gateway() as gateway:
                    pcp.check(gateway)
                case Router() as router:
                    upnp.check(router)
            if not (0 < one.external < 1 << 16 and 0 < one.port < 1 << 16):
                raise ValueError("no port")
    except FileNotFoundError:
        return []
    except (ValueError, RecursionError, RouterError) as error:  # msgspec's errors are ValueErrors
        log.warning(f"{path} is damaged: what a router forwards still, nothing ends", error=str(error))
        return []
    return found[-MOST:]


def write(path: Path, forwardings: Sequence[Forwarding]) -> None:
    """Durably. Raises OSError."""
    if forwardings:
        durable.write_bytes(path, msgspec.json.encode(forwardings))
    else:
        path.unlink(missing_ok=True)
