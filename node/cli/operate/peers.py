"""`dlx-node peers`: whom the local node is connected to."""

from __future__ import annotations

import sys

from dlx.node.cli import options
from dlx.node.cli.operate.endpoint import read
from dlx.node.daemon.api.status import Peers


@options.of_folder()
def command(
    given: options.Given,
    json: options.JsonOption = False,
) -> None:
    """List the peers, how fast they answer and whether they agreed on chain, ledger and run."""
    folder, _ = options.folder(given)
    found = read(folder, "/v1/peers", Peers)
    if json:
        options.print_json(found)
    elif not found.peers:
        sys.stdout.write("no peers\n")
    else:
        rows = [
            [
                peer.peer_id,
                "yes" if peer.agreed else "no",
                f"{peer.connected_seconds:.0f} s",
                "" if peer.rtt_ms is None else f"{peer.rtt_ms:.1f} ms",
                " ".join(peer.addresses),
            ]
            for peer in found.peers
        ]
        options.print_table(["PEER", "AGREED", "CONNECTED", "ROUND TRIP", "ADDRESSES"], rows)
