"""The audit: what the ledger and the public blobs prove about a run, and what they do not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dlx.node.audit.report import Check, Conclusion, Report, Training
from dlx.node.audit.sources.blobs import Folder, Source

if TYPE_CHECKING:
    from dlx.ledger.client import LedgerClient
    from dlx.ledger.proof.history import Pin
    from dlx.ledger.view.run_view import RunView
    from dlx.node.audit.inner import Choice
    from dlx.node.audit.sources.places import Places
    from dlx.node.round.challenges.verdicts import ReportedVerdict
    from dlx.training.recipe.manifest import Lineage

__all__ = ["Check", "Conclusion", "Folder", "Report", "Source", "Training", "audit", "audit_run"]


def audit_run(
    client: LedgerClient,
    run: bytes,
    places: Places,
    show: Callable[[str], None],
    say: Callable[[str], None],
    head: Pin | None = None,
    choice: Choice | None = None,
    report: Report | None = None,
) -> Report:
    """`audit` with blobs from `places` and the run's peers, in a working folder of its own.

    `show` hears each step, `say` what is worth keeping.
    """
    import tempfile

    from dlx.node.audit.sources.places import heard_verdicts, open_sources

    with (
        open_sources(client, run, places, say, show) as sources,
        tempfile.TemporaryDirectory(prefix="dlx-audit-") as work,
    ):
        heard = partial(heard_verdicts, client, run, places, sources)
        return audit(client, run, sources, Path(work), show, head, choice, heard, report)


def audit(
    client: LedgerClient,
    run: bytes,
    sources: Sequence[Source],
    work: Path,
    progress: Callable[[str], None] = lambda line: None,
    head: Pin | None = None,
    choice: Choice | None = None,
    verdicts: Callable[[], Iterable[ReportedVerdict]] = tuple,
    report: Report | None = None,
) -> Report:
    """Levels 1 and 2 of the design over the whole history of a run, or up to the block `head`: then what the chain node
    says of the chain is proven to that block's hash. With a `choice` also level 3; `verdicts` gives the members'.

    Working copies of blobs go to the empty folder `work`: never more than three versions of each stage and two rounds'
    payloads. Raises Failure where the ledger knows no such run, LedgerUnavailable where the chain node is silent.
    `report`: a new one of the run, for who wants to look at it whenever `progress` is called; it is what is returned.
    """
    from dlx.node.audit.chain import audit_chain
    from dlx.node.audit.chain_trust import check_chain_nodes
    from dlx.node.audit.outer import audit_outer

    report = report or Report(run)
    with ExitStack() as stack:
        found = audit_chain(report, client, head, progress, stack)
        if found is not None:
            view, history = found
            audit_outer(report, view, sources, work, progress, partial(_parent, client))
            if choice is not None:
                from dlx.node.audit.inner import audit_inner

                folder = work / "level3"
                folder.mkdir()
                audit_inner(report, view, history.block_hash, sources, folder, choice, verdicts(), progress)
            if report.facts["state"] != "complete":
                report.cannot_establish(f"how the run ends: {report.facts['rounds']} so far")
            check_chain_nodes(report, client, history, report.facts.get("confirmations"))
    if choice is None:
        report.cannot_establish("that honest inner steps produced the payloads: add --level 3")
    else:
        report.cannot_establish("that honest inner steps produced what was not replayed")
    report.cannot_establish("that the data is clean: its bytes are the manifest's, what they say was not read")
    report.cannot_establish("that two accounts are two people")
    return report


def _parent(client: LedgerClient, lineage: Lineage) -> RunView | None:
    """The run that another one starts from, by this ledger's events; None where it is on another."""
    from dlx.node.audit.lineage import is_here
    from dlx.node.runs.find import view_of

    if not is_here(lineage, client.domain):
        return None
    with client.events() as index:
        return view_of(index, bytes.fromhex(lineage.run[2:]))
