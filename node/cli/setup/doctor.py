"""`dlx-node doctor`: is this machine fit to run a node, and what to do where it is not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from dlx.node.cli import options

if TYPE_CHECKING:
    from dlx.node.home.datadir import DataDir
    from dlx.node.home.diagnostics import Diagnosis
    from dlx.node.home.settings import Settings


@options.of_folder(
    *options.LEDGER, "max_fee", "max_tip", "listen", "announce", "bootstrap", "router", "password_file", "device",
    "threads",
)  # fmt: skip
def command(
    given: options.Given,
    run: options.RunOption = None,
    stage: Annotated[
        int | None,
        typer.Option(min=0, max=63, help="The stage to plan for.", show_default="the node's own, else the largest"),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds that the account's funds should last for.")] = 1000,
    json: options.JsonOption = False,
) -> None:
    """Check keys, device, chain, contracts, funds, clock, ports, disk, memory and arithmetic, as `start` needs them.

    Each check is PASS, WARN or FAIL, with what mends it. Changes nothing, and may run beside the node. Exit code 1
    where something is FAIL.
    """
    folder, settings = options.folder(given)
    found: list[Diagnosis] = []
    for diagnosis in _diagnoses(folder, settings, run, stage, rounds):
        found.append(diagnosis)
        if not json:
            options.print_diagnosis(diagnosis)
    if json:
        options.print_json({"findings": found})
    raise typer.Exit(1 if any(diagnosis.verdict == "FAIL" for diagnosis in found) else 0)


def _diagnoses(
    folder: DataDir, settings: Settings, run: str | None, stage: int | None, rounds: int
) -> Iterator[Diagnosis]:
    from dlx.node.home.diagnostics import Diagnosis
    from dlx.node.home.ledgers import ledger_client, open_index, reachable_chain
    from dlx.node.home.program import line
    from dlx.node.runs import find, health

    at_once, account = list(health.quick(folder, settings)), None
    yield from at_once
    if not any(diagnosis.check == "keys" and diagnosis.verdict == "FAIL" for diagnosis in at_once):
        opened, account = health.keys(folder, settings)
        yield opened
    yield health.arithmetic()
    if not any(diagnosis.check == "versions" and diagnosis.verdict == "FAIL" for diagnosis in at_once):  # torch is here
        yield health.device(folder, settings)
    if not settings.ledger:
        yield health.no_ledger(folder)
        return
    with reachable_chain(settings, folder) as reached:
        client = ledger_client(reached, folder)
        told = list(health.endpoints(client, folder, reached))
        yield from told
        if not any(diagnosis.check == "chain" and diagnosis.verdict == "PASS" for diagnosis in told):
            return
        there = health.contracts(client, folder)
        yield there
        if there.verdict == "FAIL":
            return
        with open_index(client) as index:
            chosen = find.resolve_offline(folder.last_run, run) or (find.resolve(index, run) if index.runs() else None)
            view = None if chosen is None else find.view_of(client, index, chosen)
        if account is not None:
            replicas = 1 if view is None else max(1, len(view.complete_replicas()))
            yield health.funds(client, folder, reached, account.address, replicas, rounds)
        if view is None or not view.created:
            mend = line("run", "create", "--manifest", "FILE", of_ledger=True)
            yield Diagnosis("run", "WARN", "the ledger has no run yet", mend)
            return
        own = None if account is None else view.slot_of(account.address)
        manifest = find.read_manifest(view, folder.blob_folders)
        if manifest is None:
            problem = "the run's manifest is not here yet, so memory and disk cannot be compared with its plan"
            yield Diagnosis("plan", "WARN", problem, line("start", "--run", f"0x{view.run.hex()[:12]}", of_ledger=True))
        else:
            yield from health.machine(folder, settings, manifest, view, own[1] if stage is None and own else stage)
        yield _ports(folder, reached, client.domain, view.run, client.nodes().nodes)
        if reached.router and not reached.announce:
            from dlx.node.runs.reach import router

            yield from router(reached.listen)


def _ports(folder: DataDir, settings: Settings, domain, run: bytes, nodes) -> Diagnosis:  # type: ignore[no-untyped-def]
    """Beside a node that runs here its ports are asked about; else we listen on them meanwhile."""
    from dlx.node.cli.operate.status import read
    from dlx.node.daemon.api.status import NodeStatus
    from dlx.node.home.errors import Failure
    from dlx.node.home.keys import identity
    from dlx.node.runs.reach import reachable

    try:
        own_peer = identity.node_peer_id(folder)
    except Failure:
        own_peer = ""
    try:
        addresses, listen = settings.announce or read(folder, "/v1/status", NodeStatus).listens, ()
    except Failure:
        addresses, listen = settings.announce or settings.listen, settings.listen  # type: ignore[assignment]
    return reachable(domain, run, own_peer, nodes, addresses, listen, settings.bootstrap)
