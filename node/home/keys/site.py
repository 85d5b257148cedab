"""A site's key: names the accounts of its machines on the ledger. The operator copies its file to each of them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from coincurve import PrivateKey

from dlx.ground import durable
from dlx.ledger.keys import account_of
from dlx.ledger.typed import Domain, SiteMember
from dlx.node.home.datadir import DataDir, check_private
from dlx.node.home.errors import Failure, UsageFailure
from dlx.node.home.program import line

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}", re.ASCII)


@dataclass(frozen=True)
class Site:
    """`name` is the operator's own; the ledger knows the address."""

    name: str
    address: str
    _secret: bytes = field(repr=False)

    def named(self, domain: Domain, run: bytes, account: str) -> bytes:
        """The signature that makes the account one of the site's."""
        return SiteMember(run, account).sign(domain, self._secret)


def key_file(datadir: DataDir, name: str) -> Path:
    """Raises UsageFailure for a name that is none."""
    if not _NAME.fullmatch(name):
        raise UsageFailure(f"--site {name}: expected 1 to 32 letters, digits, - and _, the first no sign")
    return datadir.sites / f"{name}.key"


def make(datadir: DataDir, name: str) -> Site:
    """A new site's key in the folder; an existing one is never replaced."""
    path = key_file(datadir, name)
    if path.exists():
        raise Failure(f"{path} is there already: a site has one key")
    path.parent.mkdir(mode=0o700, exist_ok=True)
    durable.create(path, PrivateKey().secret.hex().encode() + b"\n")
    return load(datadir, name)


def load(datadir: DataDir, name: str) -> Site:
    """The site whose key lies in the folder. Raises Failure where it is absent, damaged or readable by others."""
    path = key_file(datadir, name)
    if not path.exists():
        raise Failure(
            f"{path} is missing: copy it from a machine of the site, or make the first with "
            f"`{line('keys', 'make-site', name, folder=datadir.root)}`"
        )
    check_private(path)
    try:
        secret = bytes.fromhex(path.read_text().strip())
        if len(secret) != 32:
            raise ValueError("a key has 32 bytes")
        return Site(name, account_of(secret), secret)
    except ValueError:
        raise Failure(f"{path} is damaged: copy it again from another machine of the site") from None
