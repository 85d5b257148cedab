"""HTTP answers that are whole by a deadline, however slowly their bytes come, and counted."""

import http.client
import io
import socket
import time
from functools import partial
from typing import Any

from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from dlx.ground.meter import Meter


class WholeAnswers(HTTPAdapter):
    """For a requests.Session: its read timeout is the time for headers and body together. A socket's own begins anew
    with each byte, so that a server which drips them would hold a request for ever.

    `meter` counts requests and answers with their headers, as they are before TLS.
    """

    def __init__(self, meter: Meter) -> None:
        self._pools = _pools(meter)
        super().__init__()

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        super().init_poolmanager(*args, **options)
        self.poolmanager.pool_classes_by_scheme = self._pools

    def proxy_manager_for(self, *args: Any, **options: Any) -> Any:
        manager = super().proxy_manager_for(*args, **options)
        manager.pool_classes_by_scheme = self._pools
        return manager


class _Response(http.client.HTTPResponse):
    def __init__(self, meter: Meter, sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        deadline = time.monotonic() + (sock.gettimeout() or 0.0)
        self.fp = io.BufferedReader(_UntilDeadline(self.fp.detach(), sock, deadline, meter))


class _UntilDeadline(io.RawIOBase):
    """A socket's bytes. Raises TimeoutError after the deadline."""

    def __init__(self, source: Any, sock: socket.socket, deadline: float, meter: Meter) -> None:
        self._source, self._sock, self._deadline, self._meter = source, sock, deadline, meter

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the answer was not whole in time")
        self._sock.settimeout(left)
        size: int | None = self._source.readinto(buffer)
        self._meter.add(received=size or 0)
        return size

    def close(self) -> None:
        self._source.close()
        super().close()


def _pools(meter: Meter) -> dict[str, Any]:
    """The classes of connections that a session makes, by scheme."""

    class Connection(HTTPConnection):
        response_class = partial(_Response, meter)  # type: ignore[assignment]

        def send(self, data: Any) -> None:
            super().send(data)
            meter.add(sent=len(data))

    class SecureConnection(HTTPSConnection):
        response_class = partial(_Response, meter)  # type: ignore[assignment]

        def send(self, data: Any) -> None:
            super().send(data)
            meter.add(sent=len(data))

    class Pool(HTTPConnectionPool):
        ConnectionCls = Connection

    class SecurePool(HTTPSConnectionPool):
        ConnectionCls = SecureConnection

    return {"http": Pool, "https": SecurePool}
