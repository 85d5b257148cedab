"""One line that takes a machine into a run: where its chain and ledger are, whom to dial first, and an invitation.

It is one word of letters, digits, `-` and `_`, so that it survives chats and shells: `dlx1-`, then base64url without
padding of a msgpack list and four bytes of its sha256. It holds no secret: an invitation is of use only to the account
or site that it names.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from dlx.ground import durable, handwritten
from dlx.ground.limits import cores
from dlx.ledger.abi import WORD, ZERO_ACCOUNT, account_bytes, checksum
from dlx.ledger.keys import SIGNATURE_SIZE
from dlx.ledger.typed import Invitation
from dlx.node.home import values
from dlx.node.home.errors import Failure, UsageFailure
from dlx.node.home.program import program
from dlx.node.home.settings import DEFAULTS

PREFIX = "dlx1-"
_MOST_TEXT = 8192
_MOST_BYTES = 65_536  # of a file with a line, and a proof below it
_CHECK = 4  # bytes of the sha256: against a letter that was lost or changed on the way, not against people


class _Body(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    chain_id: int
    ledger: bytes
    run: bytes
    rpc_url: list[str]
    bootstrap: list[str]
    guest: bytes  # empty: no invitation
    of_site: bool
    issued: int
    expiry: int
    signature: bytes


@dataclass(frozen=True)
class SignedInvitation:
    invitation: Invitation
    signature: bytes


@dataclass(frozen=True)
class Listed:
    """What shows that an account is in the run's list: see AccountList."""

    proof: tuple[bytes, ...]


@dataclass(frozen=True)
class JoinLine:
    chain_id: int
    ledger: str
    run: bytes
    rpc_url: tuple[str, ...]
    bootstrap: tuple[str, ...]
    invited: SignedInvitation | None = None

    def encode(self) -> str:
        """The line. Raises ValueError for what none can hold."""
        made, signature = (self.invited.invitation, self.invited.signature) if self.invited else (None, b"")
        body = _Body(
            self.chain_id,
            account_bytes(self.ledger),
            self.run,
            list(self.rpc_url),
            list(self.bootstrap),
            account_bytes(made.guest) if made else b"",
            made is not None and made.account == ZERO_ACCOUNT,
            made.issued if made else 0,
            made.expiry if made else 0,
            signature,
        )
        data = msgspec.msgpack.encode(body)
        text = PREFIX + base64.urlsafe_b64encode(data + _checksum(data)).rstrip(b"=").decode()
        if decode(text) != self:
            raise ValueError(f"no line can hold {self}")
        return text


def decode(text: str) -> JoinLine:
    """What a line says, whoever wrote it; a byte order mark before it, as of a file, is no part of it. Raises
    UsageFailure for what is none."""
    text = text.removeprefix("\ufeff")
    if not text.startswith(PREFIX) or len(text) > _MOST_TEXT:
        raise UsageFailure(f"this is no line to join by: expected {PREFIX} and up to {_MOST_TEXT} letters and digits")
    try:
        encoded = text.removeprefix(PREFIX)
        data = base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise UsageFailure("the line to join by is damaged: copy it again, whole") from None
    body, check = data[:-_CHECK], data[-_CHECK:]
    if _checksum(body) != check:
        raise UsageFailure("the line to join by is damaged: copy it again, whole")
    try:
        return _line(msgspec.msgpack.decode(body, type=_Body))
    except (ValueError, msgspec.DecodeError) as error:
        raise UsageFailure(f"the line to join by says what cannot be: {error}") from None


def command(line: JoinLine) -> str:
    """What to paste into a shell: it makes a folder with keys of its own, and starts a node in it."""
    here = bool(line.rpc_url) and all(values.is_loopback(urlsplit(url).hostname or "") for url in line.rpc_url)
    name = program() if here else "dlx-node"
    folder = f"--datadir ~/.dlx/guest-{line.run.hex()[:6]}"
    keys = "--insecure-devnet" if line.chain_id == DEFAULTS.chain_id else "--password-file FILE"
    chain = "" if line.rpc_url else " --rpc-url URL"
    # Two nodes that each take every core of one machine would wait for each other's threads.
    more = f" --listen /ip4/127.0.0.1/tcp/0 --threads {max(1, cores() // 2)}" if here else ""
    return f"{name} join {line.encode()} {folder} {keys}{chain} && {name} start {folder}{more}"


def keep(folder: Path, line: JoinLine, listed: Listed | None = None) -> None:
    """Write the line, and the proof below it, into a data folder's `invitations`, in place of those to the same run;
    a line without an invitation leaves a proof where it is. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if listed is None and line.invited is None:
        with suppress(Failure):
            before = invitation(folder, line.run)
            listed = before if isinstance(before, Listed) else None
    lines = [line.encode()] if listed is None else [line.encode(), "0x" + b"".join(listed.proof).hex()]
    durable.write_bytes(folder / line.run.hex(), "".join(f"{one}\n" for one in lines).encode())


def invitation(folder: Path, run: bytes) -> SignedInvitation | Listed | None:
    """What was kept that lets the folder's account into the run. Raises Failure for a file that was changed."""
    path = folder / run.hex()
    try:
        lines = handwritten.read(path, _MOST_BYTES).strip().splitlines()
        line, _, proof = "\n".join(lines).partition("\n")
        said = decode(line)
    except FileNotFoundError:
        return None
    except (UsageFailure, ValueError):
        raise Failure(f"{path}: the line to join by is damaged: give it to `join` again") from None
    if not proof:
        return said.invited
    if not re.fullmatch(r"0x([0-9a-f]{64})*", proof):
        raise Failure(f"{path}: the proof below the line is damaged: give the line and the list to `join` again")
    data = bytes.fromhex(proof[2:])
    return Listed(tuple(data[at : at + WORD] for at in range(0, len(data), WORD)))


def hand_on(folder: Path, other: Path, run: bytes) -> None:
    """Have another data folder's `invitations` keep the site's invitation to the run that this one's keep. What the
    other has for its own account stays. Raises Failure for a file that was changed, OSError."""
    kept, before = invitation(folder, run), None
    if not isinstance(kept, SignedInvitation) or kept.invitation.site == ZERO_ACCOUNT:
        return
    with suppress(Failure):  # what is damaged there is written anew
        before = invitation(other, run)
    if isinstance(before, Listed) or (before is not None and not _follows(kept.invitation, before.invitation)):
        return
    other.mkdir(mode=0o700, exist_ok=True)
    durable.write_bytes(other / run.hex(), (folder / run.hex()).read_bytes())


def _follows(one: Invitation, before: Invitation) -> bool:
    """Whether a site's invitation may take the place of that one."""
    return before.site != ZERO_ACCOUNT and (before.site != one.site or before.issued <= one.issued)


def _line(body: _Body) -> JoinLine:
    """Raises ValueError."""
    chain = values.wrong_chain(body.chain_id)
    urls, peers = tuple(body.rpc_url), tuple(body.bootstrap)
    wrong = chain or (values.wrong_urls(urls) if urls else None) or values.wrong_bootstrap(peers)
    if wrong or not all(one.isascii() and one.isprintable() and " " not in one for one in (*urls, *peers)):
        raise ValueError(wrong or "an address with spaces or other signs")
    if len(body.run) != 32:
        raise ValueError("a run's id has 32 bytes")
    ledger, invited = checksum(body.ledger), None
    if body.guest:
        if len(body.signature) != SIGNATURE_SIZE:
            raise ValueError(f"a signature has {SIGNATURE_SIZE} bytes")
        guest = checksum(body.guest)
        account, site = (ZERO_ACCOUNT, guest) if body.of_site else (guest, ZERO_ACCOUNT)
        made = Invitation(ledger, body.run, account, site, body.issued, body.expiry)
        made.encode()
        invited = SignedInvitation(made, body.signature)
    return JoinLine(body.chain_id, ledger, body.run, urls, peers, invited)


def _checksum(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()[:_CHECK]
