"""`dlx-node status`: what the local node is doing, asked from the node itself."""

from __future__ import annotations

from typing import Any

from dlx.node.cli import options
from dlx.node.cli.endpoint import read
from dlx.node.daemon.status import NodeStatus


def command(
    datadir: options.DataDirOption = None,
    network: options.NetworkOption = None,
    json: options.JsonOption = False,
) -> None:
    """Am I connected, do I hold a slot, was I counted in the last round, what am I waiting for."""
    folder, _ = options.folder(datadir, network)
    status = read(folder, "/v1/status", NodeStatus)
    if json:
        options.print_json(status)
        return
    options.print_fields(_answers(status))


def _answers(status: NodeStatus) -> list[tuple[str, Any]]:
    rows = [
        ("node", f"dlx-node {status.version}, peer {status.peer_id}"),
        ("account", status.account),
        ("run", status.run),
        ("ready", "no: " + "; ".join(status.not_ready) if status.not_ready else "yes"),
        ("connected", f"{status.peers} peer{'' if status.peers == 1 else 's'}, {_ledger(status)}"),
        ("slot", "none held" if status.stage is None else f"stage {status.stage} of replica {status.replica}"),
        ("counted", _counted(status)),
        ("now", _now(status)),
        ("waiting for", status.waiting_for or "nothing"),
    ]
    if status.last_seal:
        seal = status.last_seal
        rows.append(("last seal", f"round {seal.round}, weights {seal.weights[:16]}, transaction {seal.transaction}"))
    if status.loss is not None:
        speed = "" if status.tokens_per_second is None else f", {status.tokens_per_second:,.0f} tokens/s"
        rows.append(("loss", f"{status.loss:.4f} nats per token{speed}"))
    rows.append(("traffic", f"{status.bytes_sent:,} bytes sent, {status.bytes_received:,} received"))
    if status.rejected:
        rows.append(("refused", ", ".join(f"{reason} {count}" for reason, count in sorted(status.rejected.items()))))
    return rows


def _ledger(status: NodeStatus) -> str:
    ledger = status.ledger
    if not ledger.reachable:
        return f"ledger {ledger.rpc_url} does not answer"
    age = "" if ledger.age_seconds is None else f", {ledger.age_seconds:.0f} s old"
    return f"ledger {ledger.rpc_url} at block {ledger.block}{age}"


def _counted(status: NodeStatus) -> str:
    last = "never yet" if status.last_counted_round is None else f"last in round {status.last_counted_round}"
    if status.counted_in_last_round is None:
        return f"no round was sealed yet that could count this node ({last})"
    return f"{'yes' if status.counted_in_last_round else 'NO'} in the last sealed round ({last})"


def _now(status: NodeStatus) -> str:
    if status.round is None:
        return status.phase
    return f"{status.phase}, round {status.round}, inner step {status.step} of {status.steps}"
