"""How many bytes went each way."""

import threading


class Meter:
    """Bytes, both ways. Thread-safe."""

    def __init__(self) -> None:
        self.sent = self.received = 0
        self._lock = threading.Lock()

    def add(self, sent: int = 0, received: int = 0) -> None:
        with self._lock:
            self.sent += sent
            self.received += received
