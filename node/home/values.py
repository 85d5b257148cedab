"""What text means as the value of a setting, and why a value cannot be: None where it can."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from dlx.ledger.abi import checksum
from dlx.training.models.placement import MOST_RANKS, MOST_THREADS, wrong_device

_MOST_ETHER = _MOST_GWEI = 1_000_000
_MOST_PLACES = 16  # URLs or multiaddrs in one setting


def split(text: str) -> list[str]:
    """The parts of a list that commas or blanks separate."""
    return text.replace(",", " ").split()


def split_all(given: Any) -> Any:
    """The parts of a text, or of each text of a list."""
    if not isinstance(given, str | list):
        return given
    texts = [given] if isinstance(given, str) else given
    return [part for text in texts for part in (split(text) if isinstance(text, str) else [text])]


def size(given: Any) -> Any:
    """The number of bytes that "20GB" or "1.5 TiB" means; -1 for a text that means none."""
    if not isinstance(given, str):
        return given
    found = re.fullmatch(r"(\d{1,12}(?:\.\d{1,6})?) ?(?:([kKMGT])(i?))?B?", given.strip(), re.ASCII)
    if found is None:
        return -1
    number, letter, binary = found.groups()
    power = " KMGT".index(letter.upper()) if letter else 0
    return int(float(number) * (1024 if binary else 1000) ** power)


def size_or_off(given: Any) -> Any:
    """As `size`; 0 for off."""
    return 0 if str(given).lower() in ("off", "false") else size(given)


def size_text(count: int) -> str:
    """A number of bytes as `size` takes it, with a unit where that is exact."""
    units = ((1 << 30, "GiB"), (10**9, "GB"), (1 << 20, "MiB"), (10**6, "MB"))
    return next((f"{count // unit}{name}" for unit, name in units if count and count % unit == 0), str(count))


def number_or_word(given: Any) -> Any:
    is_number = isinstance(given, str) and re.fullmatch(r"\d{1,9}", given, re.ASCII)
    return int(given) if is_number else given


def checkpointing(given: Any) -> Any:
    """The setting was a switch once, and old files say true or false."""
    return (
        {"true": "layers", "false": "none"}.get(str(given).lower(), given) if isinstance(given, bool | str) else given
    )


def is_loopback(host: str) -> bool:
    """Whether a host name or address can only be reached from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def within(low: float, high: float, expected: str) -> Callable[[Any], str | None]:
    return lambda number: None if low <= number <= high else f"expected {expected}"


wrong_size = within(0, 2**63 - 1, "a number of bytes, or text such as 20GB or 512MiB")
wrong_count = within(1, MOST_RANKS, f"a number from 1 to {MOST_RANKS}")
wrong_chain = within(1, 2**63 - 1, "a positive number")
wrong_port = within(0, 65535, "a port from 0 to 65535")
wrong_timeout = within(1, 600, "seconds, from 1 to 600")
wrong_share = within(0, 1, "a number from 0 to 1")
wrong_tip = within(0, _MOST_GWEI, f"gwei, from 0 to {_MOST_GWEI:,}")
wrong_budget = within(0, _MOST_ETHER, f"ETH, from 0 to {_MOST_ETHER:,}")


def wrong_fee(gwei: float) -> str | None:
    return None if 0 < gwei <= _MOST_GWEI else f"expected gwei, above 0 and at most {_MOST_GWEI:,}"


def wrong_threads(count: int | str) -> str | None:
    fine = count == "auto" or (isinstance(count, int) and 0 < count <= MOST_THREADS)
    return None if fine else f"expected auto, or a number from 1 to {MOST_THREADS}"


def wrong_devices(devices: tuple[str, ...]) -> str | None:
    return next(filter(None, map(wrong_device, devices)), None)


def wrong_network(name: str) -> str | None:
    plain = name.replace("-", "").replace("_", "").isalnum() and name.isascii() and len(name) <= 32
    return None if plain else "expected letters, digits, - and _ only, at most 32"


def wrong_host(host: str) -> str | None:
    return None if is_loopback(host) else "expected a loopback address such as 127.0.0.1"


def wrong_urls(urls: tuple[str, ...]) -> str | None:
    fine = 0 < len(urls) <= _MOST_PLACES and all(map(_is_url, urls))
    return None if fine else f"expected 1 to {_MOST_PLACES} URLs that begin with http://, https://, ws:// or wss://"


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return bool(parts.scheme in ("http", "https", "ws", "wss") and parts.hostname and parts.port != 0)
    except ValueError:
        return False


def wrong_mailbox(text: str) -> str | None:
    """A place to publish to, or to read: a folder or an address."""
    parts = urlsplit(text) if "://" in text else None
    if parts is None or parts.scheme == "file":
        return None
    plain = not (parts.query or parts.fragment or "@" in parts.netloc)
    if parts.scheme in ("http", "https", "s3") and parts.netloc and plain:
        return None
    return "expected a folder, or an address of https, http or s3 without user, ? and #"


def wrong_mailbox_url(url: str) -> str | None:
    """As members have it on the ledger."""
    plain = url.isascii() and url.isprintable() and len(url) <= 256 and not set(url) & set("?#@ \\")
    if url and not (url.startswith("https://") and plain):
        return "expected an address of https of at most 256 characters of ASCII without ?, #, @, \\ and blanks"
    return wrong_mailbox(url)


def wrong_mailboxes(texts: tuple[str, ...]) -> str | None:
    if len(texts) > _MOST_PLACES:
        return f"expected at most {_MOST_PLACES}"
    return next((wrong for text in texts if (wrong := wrong_mailbox(text))), None)


def wrong_account(address: str) -> str | None:
    """Of the form of EIP-55: letters of both cases are a checksum, those of one are none."""
    if re.fullmatch(r"0x[0-9a-fA-F]{40}", address, re.ASCII) is None:
        return "expected an address of 0x and 40 hex digits"
    digits = address[2:]
    if digits in (digits.lower(), digits.upper()) or checksum(bytes.fromhex(digits)) == address:
        return None
    return "the address has a wrong checksum: a digit was changed, or the case of a letter; copy it again"


def wrong_contract(address: str) -> str | None:
    """As `wrong_account`; empty where there is none."""
    return wrong_account(address) if address else None


def wrong_multiaddrs(addresses: tuple[str, ...]) -> str | None:
    if len(addresses) > _MOST_PLACES or any(len(address) > 256 for address in addresses):
        return f"expected at most {_MOST_PLACES} multiaddrs of at most 256 characters"
    if not all(map(_is_multiaddr, addresses)):
        return "expected multiaddrs such as /ip4/203.0.113.7/tcp/4001"
    return None


def wrong_listen(addresses: tuple[str, ...]) -> str | None:
    return wrong_multiaddrs(addresses) or (None if addresses else "expected at least one")


def wrong_bootstrap(addresses: tuple[str, ...]) -> str | None:
    if wrong := wrong_multiaddrs(addresses):
        return wrong
    named = all("/p2p/" in address for address in addresses)
    return None if named else "expected multiaddrs that end in /p2p/ and the peer's id"


def _is_multiaddr(text: str) -> bool:
    """Of plain TCP, as `p2p.addresses` takes them, which is slow to import."""
    found = re.fullmatch(r"/(ip4|ip6|dns[46]?)/([^/]+)/tcp/(\d{1,5})(/p2p/[^/]+)?", text, re.ASCII)
    if found is None or int(found[3]) > 65535:
        return False
    try:
        return found[1].startswith("dns") or ipaddress.ip_address(found[2]).version == int(found[1][2])
    except ValueError:
        return False
