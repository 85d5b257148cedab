"""Who can be reached where, from the registry's events."""

from dataclasses import dataclass, replace

from dlx.ledger.events import AddressesChanged, Event, NodeDeregistered, NodeRegistered


@dataclass(frozen=True)
class RegisteredNode:
    """An account's libp2p peer id (39 bytes) and addresses, as registered: the addresses are anybody's text."""

    peer_id: bytes
    multiaddrs: tuple[str, ...] = ()


class NodeTable:
    """The registered nodes after the events applied so far."""

    def __init__(self) -> None:
        self.nodes: dict[str, RegisteredNode] = {}

    def apply(self, event: Event) -> None:
        """Takes the next event; those of runs change nothing."""
        match event:
            case NodeRegistered():
                self.nodes[event.account] = RegisteredNode(event.peer_id)
            case AddressesChanged() if event.account in self.nodes:
                self.nodes[event.account] = replace(self.nodes[event.account], multiaddrs=event.multiaddrs)
            case NodeDeregistered():
                self.nodes.pop(event.account, None)

    def copy(self) -> "NodeTable":
        """One that later events do not change."""
        copied = NodeTable()
        copied.nodes = dict(self.nodes)
        return copied

    def account_of(self, peer_id: bytes) -> str | None:
        """The account that registered the peer id."""
        return next((account for account, node in self.nodes.items() if node.peer_id == peer_id), None)
