"""Ports for what tests stop and start again at the same address."""

import random
import socket


def lasting_port() -> int:
    """A free one that the system gives to nobody who asks for any (those begin at 32768 or later): it stays free while
    nobody listens there."""
    for port in random.sample(range(20_000, 32_000), 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise OSError("no port from 20000 to 31999 is free")
