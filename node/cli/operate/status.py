"""`dlx-node status` and `peers`: what the node that runs in a folder says, over its loopback HTTP endpoint."""

from __future__ import annotations

import json as jsonlib
import sys
from shlex import quote
from typing import Any, TypeVar

import msgspec
from msgspec.structs import asdict
from rich.text import Text

from dlx.node.cli import options
from dlx.node.daemon.api.status import CheckStatus, Mailboxes, NodeStatus, Peers, Relaying
from dlx.node.home.datadir import DataDir
from dlx.node.home.errors import Failure, NotReady
from dlx.node.home.formatting import counted, size, steps
from dlx.node.home.program import line

_T = TypeVar("_T")
_SECONDS = 5
_BYTES = 4 * 1024 * 1024


@options.of_folder()
def command(given: options.Given, json: options.JsonOption = False) -> None:
    """Am I connected, do I hold a slot, was I counted in the last round, what am I waiting for."""
    folder, _ = options.folder(given)
    status = read(folder, "/v1/status", NodeStatus)
    if json:
        options.print_json(status)
        return
    options.print_fields(status_fields(status))


@options.of_folder()
def peers(given: options.Given, json: options.JsonOption = False) -> None:
    """List the peers, how fast they answer and whether they agreed on chain, ledger and run."""
    folder, _ = options.folder(given)
    found = read(folder, "/v1/peers", Peers)
    if json:
        options.print_json(found)
        return
    if not found.peers:
        sys.stdout.write("no peers\n")
    else:
        rows = [
            [
                peer.peer_id,
                "yes" if peer.agreed else "no",
                f"{peer.connected_seconds:.0f} s",
                "" if peer.rtt_ms is None else f"{peer.rtt_ms:.1f} ms",
                " ".join(peer.addresses),
            ]
            for peer in found.peers
        ]
        options.print_table(["PEER", "AGREED", "CONNECTED", "ROUND TRIP", "ADDRESSES"], rows)
    said = [("reachable", reachable(found.reachable)), *(("unreached", why) for why in found.unreached)]
    options.print_fields(said)


def read(folder: DataDir, path: str, kind: type[_T]) -> _T:
    """GET `path` from the folder's node. Raises NotReady where none runs, Failure where it answers nonsense."""
    import http.client  # slow to import, and this module is loaded for every --help
    import urllib.error
    import urllib.request

    if not folder.is_held:  # a copied folder also has the address of the original's node
        raise _no_node(folder)
    try:
        url = jsonlib.loads(folder.http_address.read_text())["url"]
        if not isinstance(url, str):
            raise ValueError(url)
    except (OSError, ValueError, KeyError, TypeError):
        raise _no_node(folder) from None
    # No proxy: the endpoint is on this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url + path, timeout=_SECONDS) as response:
            body = response.read(_BYTES)
    except (ConnectionError, urllib.error.URLError) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, ConnectionRefusedError):
            raise _no_node(folder) from None
        raise Failure(f"the node at {url} does not answer properly: {reason}") from None
    except (OSError, http.client.HTTPException) as error:
        raise Failure(f"the node at {url} does not answer within {_SECONDS} s: {error!r}") from None
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise Failure(f"what answers at {url} is no dlx-node of this version: {error}") from None


def status_fields(status: NodeStatus) -> list[tuple[str, Any]]:
    rows = [
        ("node", f"dlx-node {status.version}, peer {status.peer_id}"),
        ("account", status.account),
        ("run", status.run),
        ("ready", "no: " + "; ".join(status.not_ready) if status.not_ready else "yes"),
        ("connected", f"{status.peers} peer{'' if status.peers == 1 else 's'}, {_ledger(status)}"),
        ("reachable", reachable(status.reachable)),
        *([] if not status.relays.members else [("relays", _relays(status.relays))]),
        *([("mailboxes", said)] if (said := _mailboxes(status.mailboxes)) else []),
        *(("unreached", options.amber(reason)) for reason in status.unreached),
        ("slot", _slot(status)),
        ("counted", _counted(status)),
        *([] if status.trained_on is None else [("trains on", status.trained_on)]),
        *([] if status.weight is None else [("weight", status.weight)]),
        *([] if not status.vouches else [("vouches", _vouches(status.vouches))]),
        *([] if status.lacks_founder is None else [("founder", options.amber(status.lacks_founder))]),
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
        line = f"round {seal.round}, counted {count}{did}, weights {seal.weights[:16]}, transaction {seal.transaction}"
        rows.append(("last seal", options.amber(line) if seal.counted < seal.replicas else line))
    if status.checks is not None:
        rows += _checks(status.checks)
    losses = {status.held_out_version: status.held_out, 0: status.held_out_before}
    told = [f"{loss:.4f} of version {version}" for version, loss in losses.items() if loss is not None]
    if told:
        rows.append(("held-out", f"loss {', '.join(told)}, nats"))
    if status.loss is not None:
        speed = "" if status.tokens_per_second is None else f", {status.tokens_per_second:,.0f} tokens/s"
        rows.append(("training", f"loss {status.loss:.4f} nats per token{speed}"))
    for name in ("sent", "received"):
        parts = (f"{kind} {size(getattr(both, name))}" for kind, both in asdict(status.traffic).items())
        rows.append((name, ", ".join(parts)))
    if status.rejected:
        rows.append(("refused", ", ".join(f"{reason} {count}" for reason, count in sorted(status.rejected.items()))))
    return rows


def reachable(said: str) -> str | Text:
    """In amber where a person can mend it."""
    return options.amber(said) if said.startswith("no:") else said


def _mailboxes(mailboxes: Mailboxes) -> str:
    parts = [] if mailboxes.to is None else [f"{mailboxes.published} blobs published to {mailboxes.to}"]
    return ", ".join([*parts, *([f"{mailboxes.read} of others read"] if mailboxes.read else [])])


def _relays(relays: Relaying) -> str:
    members, connections = relays.members, relays.connections
    return f"for {members} member{'s'[: members != 1]}, {connections} connection{'s'[: connections != 1]}"


def _slot(status: NodeStatus) -> str:
    if status.stage is None:
        return "none held"
    site = "" if status.site is None else f", all of whose slots are site {status.site}'s"
    return f"stage {status.stage} of replica {status.replica}{site}"


def _vouches(vouches: dict[int, str | None]) -> str:
    """The stages whose seals the node signs as a founder, and what it still waits for."""
    stages = ", ".join(f"{stage} (waits for {waits})" if waits else str(stage) for stage, waits in vouches.items())
    return f"as a founder for stage{'s' if len(vouches) > 1 else ''} {stages}, without a slot there"


def _checks(checks: CheckStatus) -> list[tuple[str, Any]]:
    """What became of drawn work, others' and own."""
    summary = f"{checks.checked} of {checks.drawn} drawn segment{'s'[: checks.drawn != 1]} replayed"
    found = ", ".join(f"{count} {word}" for word, count in _findings(checks).items() if count)
    bad = checks.false + checks.withheld
    rows: list[tuple[str, Any]] = [
        ("checks", options.amber(f"{summary}: {found}") if bad else f"{summary}: {found or 'none'}")
    ]
    if checks.waits is not None:
        rows.append(("unchecked", f"waits {checks.waits}"))
    rows.append(("checking", f"{checks.seconds:.0f} s of the {checks.allowed_seconds:.0f} s that audit_share allows"))
    if checks.served or checks.undecided_bytes:
        rows.append(
            (
                "own work",
                f"{checks.served} contribution{'s'[: checks.served != 1]} drawn and served, "
                f"{size(checks.undecided_bytes)} wait for a draw",
            )
        )
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


def _no_node(folder: DataDir) -> NotReady:
    nodes = [path.parent for path in sorted(folder.root.glob("nodes/*/node.key"))]
    if nodes:  # a devnet's folder, or a demo's
        names = ", ".join(path.name for path in nodes)
        return NotReady(
            f"no node runs in {folder.root} itself: its nodes are {names}, as --datadir {quote(str(nodes[0]))}"
        )
    start = line("start", folder=folder.root)
    return NotReady(f"no node runs in {folder.root}: start it with `{start}`, or name its --datadir")
