"""Asks the node that runs in a data folder over its loopback HTTP endpoint."""

from __future__ import annotations

import json
from typing import TypeVar

import msgspec

from dlx.node.home.datadir import DataDir
from dlx.node.home.errors import Failure, NotReady

_T = TypeVar("_T")
_SECONDS = 5
_BYTES = 4 * 1024 * 1024


def read(folder: DataDir, path: str, kind: type[_T]) -> _T:
    """GET `path` from the folder's node. Raises NotReady where none runs, Failure where it answers nonsense."""
    import http.client  # slow to import, and this module is loaded for every --help
    import urllib.error
    import urllib.request

    try:
        url = json.loads(folder.http_address.read_text())["url"]
        if not isinstance(url, str):
            raise ValueError(url)
    except (OSError, ValueError, KeyError, TypeError):
        raise _no_node(folder) from None
    # No proxy: the endpoint is on this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url + path, timeout=_SECONDS) as response:
            body = response.read(_BYTES)
    except (ConnectionError, urllib.error.URLError) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, ConnectionRefusedError):
            raise _no_node(folder) from None
        raise Failure(f"the node at {url} does not answer properly: {reason}") from None
    except (OSError, http.client.HTTPException) as error:
        raise Failure(f"the node at {url} does not answer within {_SECONDS} s: {error!r}") from None
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise Failure(f"what answers at {url} is no dlx-node of this version: {error}") from None


def _no_node(folder: DataDir) -> NotReady:
    return NotReady(f"no node runs in {folder.root}: start it with `dlx-node start`, or name its --datadir")
