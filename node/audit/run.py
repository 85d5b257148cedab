"""An audit from its request to its report: level 1, then level 2, then level 3 if it is asked for."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from dlx.ledger.client import LedgerClient
from dlx.ledger.errors import Contradiction
from dlx.ledger.proof.history import History, Pin, Proven, pinned, proven
from dlx.ledger.view.run_view import RunView
from dlx.node.audit.chain_trust import check_chain_nodes, drawing_hashes
from dlx.node.audit.ledger import audit_ledger
from dlx.node.audit.manifest import is_here
from dlx.node.audit.outer import audit_outer
from dlx.node.audit.report import Report
from dlx.node.audit.request import AuditRequest
from dlx.node.audit.sources.blobs import Source
from dlx.node.audit.sources.search import member_verdicts, open_sources
from dlx.node.round.challenges.draw import Drawing, Known
from dlx.node.runs.find import replayed, view_of
from dlx.training.recipe.manifest import Lineage

Tell = Callable[[str], None]


def audit(
    client: LedgerClient,
    request: AuditRequest,
    show: Tell = lambda line: None,
    say: Tell = lambda line: None,
    report: Report | None = None,
) -> Report:
    """The whole history of a run, or up to the block `request.head`, with blobs from the request's places and the run's
    peers, in a working folder of its own.

    `show` is told each step, `say` what is worth keeping. `report`: a new one of the run, for who wants to look at it
    whenever `show` is called; it is what is returned. Raises Failure where the ledger knows no such run,
    LedgerUnavailable where the chain node is silent.
    """
    with (
        open_sources(client, request.run, request.places, say, show) as sources,
        tempfile.TemporaryDirectory(prefix="dlx-audit-") as work,
    ):
        return audit_from(sources, Path(work), client, request, show, report)


def audit_from(
    sources: Sequence[Source],
    work: Path,
    client: LedgerClient,
    request: AuditRequest,
    show: Tell = lambda line: None,
    report: Report | None = None,
) -> Report:
    """`audit` with blobs from these sources.

    Working copies of blobs go to the empty folder `work`: never more than three versions of each stage and two rounds'
    payloads, and at level 3 what the drawn segments of one round take.
    """
    report = report or Report(request.run)
    with ExitStack() as stack:
        found = audit_ledger(report, client, request.head, show, stack)
        if found is not None:
            view, history = found
            hashes = drawing_hashes(report, client, history)
            audit_outer(report, view, sources, work, show, partial(_parent, client, request.head, show, stack), hashes)
            if request.replay is not None:
                from dlx.node.audit.held_out import audit_held_out
                from dlx.node.audit.inner import audit_inner  # what it imports takes a moment

                folder = work / "level3"
                folder.mkdir()
                verdicts = member_verdicts(client, request.run, request.places, sources, report.note)
                beside = work / "held-out"
                beside.mkdir()
                try:
                    told = partial(_told, history, hashes)
                    audit_inner(report, view, told, sources, folder, request.replay, verdicts, show)
                    audit_held_out(report, view, hashes, sources, beside, request.replay, show)
                except Contradiction as error:
                    report.add(3, "chain nodes", "FAIL", str(error))
                    report.cannot_establish(
                        "anything about the training: the chain nodes disagree about what was drawn"
                    )
            if report.facts["state"] != "complete":
                report.cannot_establish(f"how the run ends: {report.facts['rounds']} so far")
            check_chain_nodes(report, client, history, report.facts.get("confirmations"))
    if request.replay is None:
        report.cannot_establish("that honest inner steps produced the payloads: add --level 3")
    else:
        report.cannot_establish("that honest inner steps produced what was not replayed")
    report.cannot_establish("that the data is clean: its bytes are the manifest's, what they say was not read")
    report.cannot_establish("that two accounts are two people")
    return report


def _told(history: History, hashes: Callable[[int], bytes | None], drawing: Drawing) -> bytes | None:
    """The hash that draws, once it is to be used. Raises as `drawing_hashes`."""
    known = drawing.known(history.head.block, final=isinstance(history, Proven))
    return None if known is Known.TO_COME else hashes(drawing.block)


def _parent(client: LedgerClient, head: Pin | None, show: Tell, stack: ExitStack, lineage: Lineage) -> RunView | None:
    """The run that another one starts from, by this ledger's events, proven to the head if one is pinned; None where it
    is on another ledger. Of use until the stack ends. Raises Contradiction where it is not as the head proves."""
    if not is_here(lineage, client.domain):
        return None
    run = bytes.fromhex(lineage.run[2:])
    if head is None:
        return view_of(client, stack.enter_context(client.events()), run)
    history = stack.enter_context(proven(client, run, pinned(client.rpc, head), show))
    return replayed(history.index, run)
