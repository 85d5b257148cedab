"""Tells the service manager that started us how we are (systemd's `Type=notify`); without one, nobody."""

import os
import socket


def notify(state: str) -> None:
    """Such as "READY=1" or "STOPPING=1". What nobody hears is no failure."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        try:
            channel.sendto(state.encode(), "\0" + address[1:] if address.startswith("@") else address)
        except OSError:
            pass
