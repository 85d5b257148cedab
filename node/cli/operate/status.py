"""`dlx-node status`: what the local node is doing, asked from the node itself."""

from __future__ import annotations

from typing import Any

from msgspec.structs import asdict
from rich.text import Text

from dlx.node.cli import options
from dlx.node.cli.operate.endpoint import read
from dlx.node.daemon.api.status import CheckStatus, NodeStatus
from dlx.node.home.formatting import counted, size, steps


@options.of_folder()
def command(
    given: options.Given,
    json: options.JsonOption = False,
) -> None:
    """Am I connected, do I hold a slot, was I counted in the last round, what am I waiting for."""
    folder, _ = options.folder(given)
    status = read(folder, "/v1/status", NodeStatus)
    if json:
        options.print_json(status)
        return
    options.print_fields(answers(status))


def answers(status: NodeStatus) -> list[tuple[str, Any]]:
    rows = [
        ("node", f"dlx-node {status.version}, peer {status.peer_id}"),
        ("account", status.account),
        ("run", status.run),
        ("ready", "no: " + "; ".join(status.not_ready) if status.not_ready else "yes"),
        ("connected", f"{status.peers} peer{'' if status.peers == 1 else 's'}, {_ledger(status)}"),
        ("slot", _slot(status)),
        ("counted", _counted(status)),
        *([] if status.trained_on is None else [("trains on", status.trained_on)]),
        *([] if status.vote is None else [("vote", status.vote)]),
        *(("notice", options.amber(notice)) for notice in status.notices),
        *([] if status.resting is None else [("rests", options.amber(status.resting))]),
        ("now", _now(status)),
        ("waiting for", status.waiting_for or "nothing"),
    ]
    rows += [("fails", failing) for failing in status.failing if failing != status.waiting_for]
    if status.last_seal:
        seal = status.last_seal
        count = counted([seal.counted], seal.replicas)
        did = "" if not seal.steps else f", steps {steps(seal.inner_steps, seal.steps)}"
        said = f"round {seal.round}, counted {count}{did}, weights {seal.weights[:16]}, transaction {seal.transaction}"
        rows.append(("last seal", options.amber(said) if seal.counted < seal.replicas else said))
    if status.checks is not None:
        rows += _checks(status.checks)
    if status.loss is not None:
        speed = "" if status.tokens_per_second is None else f", {status.tokens_per_second:,.0f} tokens/s"
        rows.append(("loss", f"{status.loss:.4f} nats per token{speed}"))
    for name in ("sent", "received"):
        parts = (f"{kind} {size(getattr(both, name))}" for kind, both in asdict(status.traffic).items())
        rows.append((name, ", ".join(parts)))
    if status.rejected:
        rows.append(("refused", ", ".join(f"{reason} {count}" for reason, count in sorted(status.rejected.items()))))
    return rows


def _slot(status: NodeStatus) -> str:
    if status.stage is None:
        return "none held"
    site = "" if status.site is None else f", all of whose slots are site {status.site}'s"
    return f"stage {status.stage} of replica {status.replica}{site}"


def _checks(checks: CheckStatus) -> list[tuple[str, Any]]:
    """What became of drawn work, others' and own."""
    said = f"{checks.checked} of {checks.drawn} drawn contributions replayed"
    found = ", ".join(f"{count} {word}" for word, count in _findings(checks).items() if count)
    bad = checks.false + checks.withheld
    rows: list[tuple[str, Any]] = [
        ("checks", options.amber(f"{said}: {found}") if bad else f"{said}: {found or 'none'}")
    ]
    if checks.waits is not None:
        rows.append(("unchecked", f"waits {checks.waits}"))
    rows.append(("checking", f"{checks.seconds:.0f} s of the {checks.allowed_seconds:.0f} s that audit_share allows"))
    if checks.served or checks.undecided_bytes:
        rows.append(("own work", f"{checks.served} drawn and served, {size(checks.undecided_bytes)} wait for a draw"))
    return rows


def _findings(checks: CheckStatus) -> dict[str, int]:
    return {"honest": checks.honest, "false": checks.false, "withheld": checks.withheld}


def _ledger(status: NodeStatus) -> str:
    ledger = status.ledger
    if not ledger.reachable:
        return f"ledger {ledger.rpc_url} does not answer"
    age = "" if ledger.age_seconds is None else f", {ledger.age_seconds:.0f} s old"
    return f"ledger {ledger.rpc_url} at block {ledger.block}{age}"


def _counted(status: NodeStatus) -> str | Text:
    last = "never yet" if status.last_counted_round is None else f"last in round {status.last_counted_round}"
    if status.counted_in_last_round is None:
        return f"no round was sealed yet that could count this node ({last})"
    if status.counted_in_last_round:
        return f"yes in the last sealed round ({last})"
    return options.amber(f"NO in the last sealed round ({last})")


def _now(status: NodeStatus) -> str:
    if status.round is None:
        return status.phase
    return f"{status.phase}, round {status.round}, inner step {status.step} of {status.steps}"
