"""Level 2, the start: did the run begin with the version of another run that its manifest names?"""

from __future__ import annotations

from dlx.ledger.typed import Domain
from dlx.ledger.view.run_view import RunView
from dlx.node.audit.report import Report
from dlx.node.home.citation import Citation
from dlx.training.recipe.manifest import Lineage, Manifest

LEVEL = 2


def audit_lineage(report: Report, manifest: Manifest, parent: RunView | None, other: Manifest | None) -> None:
    """`parent`: the run that the manifest names, None where it is on another ledger; `other`: its manifest, if that can
    be had. Cut in the same stages, the same weights have the same hashes; where they are cut otherwise, only who has
    both can compare them."""
    lineage = manifest.lineage
    if lineage is None:
        return
    named = str(Citation(lineage.chain_id, lineage.ledger, lineage.run, lineage.version))
    if parent is None:
        report.add(LEVEL, "lineage", "SKIP", f"{named} is on another ledger")
        report.cannot_establish(f"that the run starts from {named}: audit that run, and compare the weights")
        return
    sealed = min(map(parent.next_round, range(parent.config.stages))) if parent.created else -1
    if lineage.version > sealed:
        report.add(LEVEL, "lineage", "FAIL", f"the ledger has no such version: {named}")
        return
    stages = range(parent.config.stages)
    before = [parent.weights(stage, lineage.version).hex() for stage in stages]
    if [blob.sha256 for blob in manifest.genesis] == before:
        report.add(LEVEL, "lineage", "PASS")
    elif other is not None and (other.stages, other.model) == (manifest.stages, manifest.model):
        report.add(LEVEL, "lineage", "FAIL", f"the first weights are not those of {named}")
    else:
        report.add(LEVEL, "lineage", "WARN", f"{named} is cut in other stages than this run, and was not compared")
        report.cannot_establish(f"that the run starts from {named}: pull both, and compare the weights")


def is_here(lineage: Lineage, domain: Domain) -> bool:
    """Whether the run that is named is on this ledger."""
    return (lineage.chain_id, lineage.ledger.lower()) == (domain.chain_id, domain.ledger.lower())
