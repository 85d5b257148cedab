"""libp2p host, gossip, blob exchange and pipes. Knows no tensor, no ledger."""
