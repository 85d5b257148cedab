"""Files in places that are no peers: folders, servers of HTTP, buckets of S3, the hub.

Secrets come from the environment alone, never from an address. An address that a stranger named leads to public hosts
only, by https, and its file takes no more time than its reader grants. How long a file may be is known before it is
read: no byte more is. Nothing that comes is believed here: its reader compares hashes.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from http.client import HTTPSConnection
from io import BufferedReader, RawIOBase
from ipaddress import ip_address
from pathlib import Path
from typing import Any, BinaryIO, TypeVar
from urllib.parse import quote, unquote, urljoin, urlsplit

import requests
from requests.utils import DEFAULT_CA_BUNDLE_PATH, requote_uri

from dlx.ground.durable import naming
from dlx.ground.untrusted import printable
from dlx.node.home.errors import Failure, UsageFailure
from dlx.node.home.extras import require
from dlx.training.recipe.huggingface import first_line

TOKEN = "DLX_PUSH_TOKEN"  # in the environment: sent as Authorization: Bearer with each PUT and DELETE
SCHEMES = ("file", "http", "https", "s3", "hf")
_TIMEOUT = (20, 120)  # seconds, to connect and between two pieces
_ASK = 2.0  # seconds after which a stranger's file asks whether it goes on
_PIECE = 64 * 1024  # bytes after which progress shows
_HOPS = 5  # redirects of a stranger's that are followed, less one
_REDIRECTS = (301, 302, 303, 307, 308)
_GONE = (404, 410)
T = TypeVar("T")


class Absent(Failure):
    """The place answers, and has no such file."""


def address(text: str, option: str) -> str:
    """A folder's path as a URI, or the URI itself without a slash at its end. Raises UsageFailure."""
    uri = text if "://" in text else Path(text).absolute().as_uri()
    parts = urlsplit(uri if scheme(uri) in SCHEMES else "")
    if not parts.scheme or parts.query or parts.fragment:
        raise UsageFailure(f"{option}: expected a folder, or an address of {', '.join(SCHEMES)} without ? and #")
    if parts.scheme == "file" and parts.netloc:
        raise UsageFailure(f"{option}: expected a folder of this machine, as file:///FOLDER")
    if "@" in parts.netloc:
        raise UsageFailure(f"{option}: an address holds no user and no password: {TOKEN} in the environment does")
    if parts.scheme == "hf" and not (parts.netloc and parts.path.strip("/")):
        raise UsageFailure(f"{option}: expected hf://OWNER/REPOSITORY")
    if parts.scheme == "s3":
        require("s3")
    return uri.rstrip("/")


def writable(text: str, option: str) -> str:
    """The `address` to which files may go. Raises UsageFailure also where the token would go over the net as plain
    text."""
    uri = address(text, option)
    if uri.startswith("http:") and os.environ.get(TOKEN) and not _is_this_machine(urlsplit(uri).hostname or ""):
        raise UsageFailure(f"{option}: {TOKEN} would go there as plain text: name an address of https")
    return uri


def scheme(uri: str) -> str:
    """Of an address; empty where it is none that could be shown and asked."""
    try:
        return urlsplit(uri).scheme if uri.isprintable() else ""
    except ValueError:
        return ""


def local(uri: str) -> Path:
    """A file or folder of this machine, by its URI."""
    return Path(unquote(urlsplit(uri).path) or "/")


def put(path: Path, uri: str) -> None:
    """Copy a file into the place, under its own name; what had the name is replaced. Raises Failure, and whatever a
    client library brings about: see `explained`."""
    if uri.startswith("http"):
        with path.open("rb") as file:  # sent once: a redirect would need it again
            is_empty = not os.fstat(file.fileno()).st_size  # that goes without its length otherwise
            _asked("PUT", f"{uri}/{quote(path.name)}", data=b"" if is_empty else file)
    elif uri.startswith("file:"):
        folder = local(uri)
        folder.mkdir(parents=True, exist_ok=True)
        draft = folder / f".{path.name}.{secrets.token_hex(4)}.tmp"
        shutil.copyfile(path, draft)
        os.replace(draft, folder / path.name)
    else:
        from fsspec import filesystem

        filesystem(urlsplit(uri).scheme).put_file(str(path), f"{uri}/{path.name}")


def remove(uri: str) -> None:
    """Have a file no more in its place; nothing happens where it is not there. Raises as `put`."""
    try:
        if uri.startswith("http"):
            _asked("DELETE", uri)
        elif uri.startswith("file:"):
            local(uri).unlink()
        else:
            from fsspec import filesystem

            filesystem(urlsplit(uri).scheme).rm_file(uri)
    except (Absent, FileNotFoundError):
        pass


def fetch(
    uri: str,
    into: Path,
    sizes: range,
    stranger_s: float | None,
    moved: Callable[[int], None] = lambda count: None,
) -> None:
    """A file of so many bytes; where that fails there is none. Raises Absent where the place has none, Failure for any
    other, of which no more is read, or where the place does not give it; OSError of our disk.

    `stranger_s`: the seconds that it may take where a stranger named the address; None: the user did. `moved` is told
    the bytes that came, of a stranger's file every 2 s also that none did; what it raises ends it."""
    try:
        with naming(into), into.open("wb") as file:
            if into.is_file():  # so that whoever measures the folder counts what is still to come
                file.truncate(sizes.start)
            _copy(uri, file, sizes, stranger_s, moved)
    except BaseException:
        into.unlink(missing_ok=True)
        raise


def _copy(uri: str, file: BinaryIO, sizes: range, stranger_s: float | None, moved: Callable[[int], None]) -> None:
    reader = _reader(uri) if stranger_s is None else _public(uri, stranger_s, moved)
    most, count = sizes.stop - 1, 0
    with ExitStack() as stack:
        with explained(uri):
            read = stack.enter_context(reader)
        while True:
            with explained(uri):
                piece = read(min(_PIECE, most - count + 1))
            if not piece:
                break
            count += len(piece)
            if count > most:
                raise Failure(f"{uri}: expected {_bytes(sizes)}, got more")
            file.write(piece)
            moved(len(piece))
    if count not in sizes:
        raise Failure(f"{uri}: expected {_bytes(sizes)}, got {count:,}")


@contextmanager
def explained(uri: str) -> Iterator[None]:
    """Whatever a client library of S3 or the hub brings about becomes a Failure of one line."""
    try:
        yield
    except Failure:
        raise
    except Exception as error:
        raise Failure(f"{uri}: {printable(first_line(error)) or type(error).__name__}") from None


def _bytes(sizes: range) -> str:
    return f"{'' if len(sizes) == 1 else 'at most '}{sizes.stop - 1:,} bytes"


def _is_this_machine(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _asked(method: str, url: str, **given: Any) -> None:
    token = os.environ.get(TOKEN)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    answer = requests.request(method, url, headers=headers, timeout=_TIMEOUT, allow_redirects=False, **given)
    if not 200 <= answer.status_code < 300:
        raise _refused(url, answer.status_code, answer.reason)


def _refused(url: str, status: int, reason: str | None) -> Failure:
    return (Absent if status in _GONE else Failure)(f"{url}: {status} {printable(reason or '')[:80]}")


@contextmanager
def _reader(uri: str) -> Iterator[Callable[[int], bytes]]:
    if uri.startswith("http"):
        with requests.get(uri, stream=True, timeout=_TIMEOUT, headers={"Accept-Encoding": "identity"}) as answer:
            if answer.status_code != 200:
                raise _refused(uri, answer.status_code, answer.reason)
            yield answer.raw.read
        return
    try:
        if uri.startswith("file:"):
            opened: Any = local(uri).open("rb")
        else:
            from fsspec import filesystem

            # one place: "::" in it does not lead on to another
            opened = filesystem(urlsplit(uri).scheme).open(uri, "rb")
    except FileNotFoundError:
        raise Absent(f"{uri}: no such file") from None
    with opened as file:
        yield file.read


@contextmanager
def _public(uri: str, seconds: float, moved: Callable[[int], None]) -> Iterator[Callable[[int], bytes]]:
    """What https gives at a stranger's address and where that leads. After so many seconds it ends there, also where
    it comes byte by byte. Nothing of the user's goes along: no proxy, no .netrc, no cookie."""
    authorities = os.environ.get("REQUESTS_CA_BUNDLE") or DEFAULT_CA_BUNDLE_PATH  # as for all other addresses
    until, context = time.monotonic() + seconds, ssl.create_default_context(cafile=authorities)
    at, asked_at = uri, time.monotonic()

    def go_on() -> None:
        """Or raise: a read of many bytes does not come back for long."""
        nonlocal asked_at
        now = time.monotonic()
        if now >= until:
            raise Failure(f"{uri}: took longer than {seconds:.0f} s")
        if now >= asked_at + _ASK:
            asked_at = now
            moved(0)

    for _ in range(_HOPS):
        parts = urlsplit(requote_uri(at))
        host, port = parts.hostname or "", parts.port or 443
        if parts.scheme != "https" or not host:
            raise Failure(f"{uri}: leads to another address than of https, which is not followed")
        with (
            _connected(host, port, until, go_on) as plain,
            context.wrap_socket(plain, server_hostname=host, do_handshake_on_connect=False) as secure,
        ):
            secure.settimeout(_ASK)
            _patiently(secure.do_handshake, go_on)
            link: Any = HTTPSConnection(host, port, context=context)
            link.sock = _Line(secure, go_on)
            path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            link.request("GET", path, headers={"Accept-Encoding": "identity"})
            with link.getresponse() as answer:
                if answer.status == 200:
                    yield answer.read
                    return
                if answer.status not in _REDIRECTS:
                    raise _refused(uri, answer.status, answer.reason)
                at = urljoin(at, answer.headers.get("Location", ""))
    raise Failure(f"{uri}: leads on and on")


def _connected(host: str, port: int, until: float, go_on: Callable[[], None]) -> socket.socket:
    """To the host's first address that answers; to none that is not public, also where a public name is said to be
    there."""
    problem = OSError(f"{host}: no address")
    for *_, at in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        if not ip_address(at[0]).is_global:
            raise Failure(f"{host} is at {at[0]}, which is no public address")
        go_on()
        try:
            left = max(0.001, until - time.monotonic())
            return socket.create_connection((str(at[0]), port), min(_TIMEOUT[0], left))
        except OSError as error:
            problem = error
    raise problem


class _Line(RawIOBase):
    """What `http.client` needs of a connection. `go_on()` raises between two short waits where it shall end."""

    def __init__(self, line: ssl.SSLSocket, go_on: Callable[[], None]) -> None:
        self._line, self._go_on = line, go_on

    def sendall(self, data: bytes) -> None:
        self._line.sendall(data)

    def makefile(self, mode: str) -> BufferedReader:
        return BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._go_on()
        return _patiently(partial(self._line.recv_into, buffer), self._go_on)

    def close(self) -> None:
        """The connection's owner does, once all is read."""


def _patiently(work: Callable[[], T], go_on: Callable[[], None]) -> T:
    while True:
        try:
            return work()
        except TimeoutError:
            go_on()
