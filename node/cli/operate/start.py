"""`dlx-node start`: join a run and train until stopped."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Annotated

import typer

from dlx.ground.machine import expand
from dlx.node.cli import options
from dlx.node.home import extras
from dlx.node.home.errors import UsageFailure

if TYPE_CHECKING:
    from dlx.node.home.config import Settings
    from dlx.node.home.datadir import DataDir


def command(
    run: options.RunOption = None,
    stage: Annotated[
        str, typer.Option(help="Pipeline stage to ask for: a number, or auto (the ledger decides).")
    ] = "auto",
    datadir: options.DataDirOption = None,
    network: options.NetworkOption = None,
    rpc_url: options.RpcUrlOption = None,
    chain_id: options.ChainIdOption = None,
    ledger: options.LedgerOption = None,
    max_fee: options.MaxFeeOption = None,
    max_tip: options.MaxTipOption = None,
    daily_budget: options.DailyBudgetOption = None,
    listen: options.ListenOption = None,
    announce: options.AnnounceOption = None,
    bootstrap: options.BootstrapOption = None,
    http_host: options.HttpHostOption = None,
    http_port: options.HttpPortOption = None,
    log_format: options.LogFormatOption = None,
    password_file: options.PasswordFileOption = None,
    site: options.SiteOption = None,
    all_stages: Annotated[
        bool, typer.Option("--all-stages", help="Start a node for each stage of the run, all in one replica (--site).")
    ] = False,
    private_data: options.PrivateDataOption = None,
    device: options.DeviceOption = None,
    threads: options.ThreadsOption = None,
    ranks: options.RanksOption = None,
    devices: options.DevicesOption = None,
    machines: options.MachinesOption = None,
    rendezvous: options.RendezvousOption = None,
    tensor_parallel: options.TensorParallelOption = None,
    compile: options.CompileOption = None,
    checkpoint_activations: options.CheckpointActivationsOption = None,
    disk_quota: options.DiskQuotaOption = None,
    disk_floor: options.DiskFloorOption = None,
    data_cache: options.DataCacheOption = None,
    mirror_data: options.MirrorDataOption = None,
    audit_share: options.AuditShareOption = None,
    up_limit: options.UpLimitOption = None,
    down_limit: options.DownLimitOption = None,
    schedule: options.ScheduleOption = None,
    when_idle: options.WhenIdleOption = None,
    resting: options.RestingOption = None,
) -> None:
    """Join a run: register the node if needed, take a slot, find peers, train until stopped.

    Without --run it goes on with the folder's last run, or takes the ledger's only one. A chain that does not answer
    is waited for.
    First Ctrl-C: finish the step and leave cleanly. Second: exit now.
    """
    wanted = None if stage == "auto" else int(stage) if stage.isdecimal() else -1
    if wanted is not None and not 0 <= wanted < 64:
        raise UsageFailure(f"--stage {stage}: expected auto or a number from 0 to 63")
    extras.require("train")  # torch is for a process that this one starts
    folder, settings = options.folder(
        datadir, network, rpc_url=rpc_url, chain_id=chain_id, ledger=ledger, max_fee=max_fee, max_tip=max_tip,
        daily_budget=daily_budget, listen=listen, announce=announce,
        bootstrap=bootstrap, http_host=http_host, http_port=http_port, log_format=log_format,
        password_file=password_file, site=site, private_data=private_data,
        device=device, threads=threads, ranks=ranks, devices=devices, machines=machines, rendezvous=rendezvous,
        tensor_parallel=tensor_parallel,
        compile=compile,
        checkpoint_activations=checkpoint_activations, disk_quota=disk_quota, disk_floor=disk_floor,
        data_cache=data_cache, mirror_data=mirror_data, audit_share=audit_share,
        up_limit=up_limit, down_limit=down_limit, schedule=schedule, when_idle=when_idle, resting=resting,
    )  # fmt: skip
    if settings.private_data:
        options.existing_folder(expand(settings.private_data), "--private-data")
    if all_stages and (not settings.site or wanted is not None):
        raise UsageFailure("--all-stages: name the site by --site, and leave out --stage")
    options.check_placement(settings)
    _greet(folder, settings)
    gc.disable()  # nothing that is imported is garbage: to look for it now and while the node starts takes 0.3 s
    from dlx.ground import durable
    from dlx.node.daemon.node import Startup, run_node
    from dlx.node.home import logs
    from dlx.node.home.keys import identity
    from dlx.node.home.keys import site as sites
    from dlx.node.home.ledgers import ledger_client, reachable_chain
    from dlx.node.runs import find

    gc.freeze()
    gc.enable()
    if all_stages:
        from dlx.node.devnet import stages

        raise typer.Exit(stages.run(folder, settings, run, options.note))
    identity.node_peer_id(folder)  # a folder without keys is told before anything is made in it
    folder.create()
    folder.check_secrets()
    with folder.lock():
        logs.setup(settings.log_format, folder.logs)
        account = identity.load_account(folder, settings)
        node_key = identity.load_node_key(folder, settings)
        of_site = sites.load(folder, settings.site) if settings.site else None
        with reachable_chain(settings, folder) as reached:
            client = ledger_client(reached, folder, account.secret)
            chosen = find.resolve_offline(folder.last_run, run) or find.resolve_patiently(client, run, options.note)
            durable.write_bytes(folder.last_run, chosen.hex().encode())
            run_node(Startup(chosen, wanted, reached, folder, node_key, account, of_site), client)


def _greet(folder: DataDir, settings: Settings) -> None:
    """The first lines, before what takes seconds to import: where the node starts, and what looks wrong there."""
    from dlx.node import version
    from dlx.node.runs import health

    options.note(f"version {version()} starts in {folder.root}")
    for finding in health.quick(folder, settings):
        if finding.verdict != health.PASS:
            options.note(f"{finding.verdict} {finding.check}: {finding.said}; mend: {finding.mend}")
