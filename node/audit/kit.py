"""An audit kit: one folder with all that the audit of a run reads, so that anybody repeats it without a node, a chain
or a network.

`kit.json` says of which run it is and names the block to which all is proven, `chain.jsonl` has a chain node's answers,
`blobs/` the blobs by their sha256, `verdicts.json` the members' verdicts. None of it is believed: the audit of a kit is
the audit with a pinned head, whose chain node is a file.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from dlx.ground import durable
from dlx.ground.regular import opened
from dlx.ground.untrusted import printable
from dlx.ledger.abi import checksum
from dlx.ledger.client import LedgerClient
from dlx.ledger.proof.history import Pin, parse_pin, pinned
from dlx.ledger.rpc import recorded
from dlx.ledger.rpc.endpoint import Endpoint
from dlx.ledger.rpc.failover import Failover
from dlx.ledger.typed import Domain
from dlx.node import version
from dlx.node.audit.replay_choice import ReplayChoice
from dlx.node.audit.report import Report
from dlx.node.audit.request import AuditRequest
from dlx.node.audit.run import audit_from
from dlx.node.audit.sources.blobs import Attempt, Folder, Source
from dlx.node.audit.sources.search import Witness, member_verdicts, open_sources
from dlx.node.home.errors import Failure, UsageFailure

EXAMPLE = Path(__file__).with_name("example")  # a kit that comes with the program

_LABEL, _CHAIN, _BLOBS, _VERDICTS = "kit.json", "chain.jsonl", "blobs", "verdicts.json"
_MOST_LABEL, _MOST_VERDICTS = 10_000, 64 << 20  # bytes
_SECONDS = 1.0  # for which what a file does not answer is asked again
_Tell = Callable[[str], None]
_Hex = Annotated[str, msgspec.Meta(pattern="^0x([0-9a-f]{2})*$", max_length=10_000)]


class _Label(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What kit.json says."""

    format: Literal[1]
    run: Annotated[str, msgspec.Meta(pattern="^0x[0-9a-f]{64}$")]
    chain_id: Annotated[int, msgspec.Meta(ge=1)]
    ledger: Annotated[str, msgspec.Meta(pattern="^0x[0-9a-fA-F]{40}$")]
    head: str
    level: Literal[2, 3]
    made_by: Annotated[str, msgspec.Meta(max_length=100)]


class Kit:
    """A kit that lies in a folder. Nothing of it but its label has been looked at."""

    def __init__(self, folder: Path) -> None:
        """Raises UsageFailure for a folder that is no kit."""
        try:
            self._label = msgspec.json.decode(_read(folder / _LABEL, _MOST_LABEL), type=_Label)
            self.head = parse_pin(self._label.head)
        except OSError as error:
            raise UsageFailure(f"{folder} is no audit kit: {_LABEL}: {error.strerror}") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
            raise UsageFailure(f"{folder} is no audit kit of this version: {_LABEL}: {printable(str(error))}") from None
        self.folder, self.run, self.level = folder, bytes.fromhex(self._label.run[2:]), self._label.level
        self.domain = Domain(self._label.chain_id, checksum(bytes.fromhex(self._label.ledger[2:])))

    def audit(
        self, replay: ReplayChoice | None = None, show: _Tell = lambda line: None, head: Pin | None = None
    ) -> Report:
        """Of what lies in the kit, and of nothing else. `replay`: level 3, which the kit must be made for. `head`: the
        user's own, which is the kit's; without one the report says that the kit names its block itself.

        Raises LedgerError, OSError and Failure for what cannot be read.
        """
        chain = Endpoint("http://kit", recorded.Recorded(self.folder / _CHAIN))
        client = LedgerClient(Failover([chain], _SECONDS, self.domain.chain_id), self.domain.ledger)
        blobs = _KitBlobs(self.folder / _BLOBS, _verdicts(self.folder / _VERDICTS))
        with tempfile.TemporaryDirectory(prefix="dlx-audit-") as work:
            request = AuditRequest(self.run, head=self.head, replay=replay)
            report = audit_from([blobs], Path(work), client, request, show)
        if head is None:
            report.source += ", which the kit names: compare it, or give --head"
        return report


def make_kit(
    client: LedgerClient,
    request: AuditRequest,
    out: Path,
    show: _Tell = lambda line: None,
    say: _Tell = lambda line: None,
) -> Report:
    """Audit a run and keep all that was read in the new folder `out`; returns what the audit of the kit itself says.

    It is also made where something is FAIL: then it is what shows that. `request.head`: None, the newest block. The
    folder appears whole or not at all. Raises Failure where the kit does not say what the chain node said. Raises
    UsageFailure for an `out` that is there or cannot be made, Contradiction for a head that the chain node does not
    have, else as `audit`.
    """
    if os.path.lexists(out):
        raise UsageFailure(f"--out {out}: it is there already: name a new folder")
    draft = out.with_name(f".{out.name}.{secrets.token_hex(4)}.tmp")  # so that the last step is a rename
    work = draft / "work"
    try:
        try:
            draft.mkdir()
        except OSError as error:
            raise UsageFailure(f"--out {out}: a folder cannot be made there: {error.strerror}") from None
        (draft / _BLOBS).mkdir()
        work.mkdir()
        kept = recorded.Kept()
        recording = client.recording(kept)
        head = request.head or _newest(recording)
        pinned(recording.rpc, head)
        request = replace(request, head=head)
        with open_sources(client, request.run, request.places, say, show) as found:
            sources = [_Keeping(source, draft / _BLOBS) for source in found]
            told = audit_from(sources, work, recording, request, show)
            verdicts = member_verdicts(client, request.run, request.places, sources, say) if request.replay else []
        shutil.rmtree(work)
        label = _Label(
            format=1,
            run="0x" + request.run.hex(),
            chain_id=client.rpc.chain_id(),
            ledger=client.ledger,
            head=str(head),
            level=3 if request.replay else 2,
            made_by=f"dlx-node {version()}",
        )
        kept.write(draft / _CHAIN)
        durable.write_bytes(draft / _VERDICTS, _pairs((one.data, one.signature) for one in verdicts))
        durable.write_bytes(draft / _LABEL, msgspec.json.format(msgspec.json.encode(label), indent=2) + b"\n")
        show("auditing the kit")
        report = Kit(draft).audit(request.replay, show)
        if (mine := _findings(report)) != (theirs := _findings(told)):
            differ = ", ".join(sorted({row[1] for row in mine ^ theirs}))
            raise Failure(f"the kit's audit does not say what the chain node's says ({differ}): try again")
        durable.move(draft, out)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return report


def _newest(client: LedgerClient) -> Pin:
    head = client.head()
    return Pin(head.block, head.hash)


def _findings(report: Report) -> set[tuple[int, str, str, int]]:
    rows = report.json()["table"]
    return {(row["level"], row["check"], str(verdict), row[verdict]) for row in rows for verdict in report.counts()}


class _Keeping:
    """A source whose blobs are kept too."""

    def __init__(self, inner: Source, folder: Path) -> None:
        self._inner, self._folder, self.own = inner, folder, inner.own

    def fetch(self, digest: bytes, limit: int, into: Path) -> Attempt:
        """See `Source`."""
        attempt = self._inner.fetch(digest, limit, into)
        if attempt.path is not None:
            durable.share(attempt.path, self._folder / digest.hex())
        return attempt

    def verdicts(self, first: int) -> list[tuple[bytes, bytes]]:
        """See `Witness`."""
        return self._inner.verdicts(first) if isinstance(self._inner, Witness) else []


class _KitBlobs(Folder):
    """A kit's blobs, and its verdicts. Who audits a kit vouches for it: a wrong blob there is a finding."""

    def __init__(self, path: Path, verdicts: Sequence[tuple[bytes, bytes]]) -> None:
        super().__init__(path, own=True)
        self._verdicts = list(verdicts)

    def verdicts(self, first: int) -> list[tuple[bytes, bytes]]:
        """See `Witness`."""
        return self._verdicts


def _pairs(verdicts: Iterable[tuple[bytes, bytes]]) -> bytes:
    return msgspec.json.encode([("0x" + data.hex(), "0x" + signature.hex()) for data, signature in verdicts])


def _verdicts(path: Path) -> list[tuple[bytes, bytes]]:
    """Raises OSError, Failure."""
    try:
        pairs = msgspec.json.decode(_read(path, _MOST_VERDICTS), type=list[tuple[_Hex, _Hex]])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise Failure(f"{path}: {printable(str(error), 200)}") from None
    return [(bytes.fromhex(report[2:]), bytes.fromhex(signature[2:])) for report, signature in pairs]


def _read(path: Path, most: int) -> bytes:
    """Raises OSError, ValueError."""
    with opened(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"has more than {most:,} bytes")
    return data
