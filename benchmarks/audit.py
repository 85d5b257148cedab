"""What level 1 of an audit costs: every seal of a long run recounted from the events alone.

`python -m benchmarks.audit [--rounds N] [--json FILE]` serves a made-up chain (4 stages, 8 replicas, every seal signed
by all) from a process of its own, so that CPU seconds and memory are the auditor's alone. All seals of that chain have
the same digest, so that the check of digests fails each time; what it costs is the same.
"""

import json
import os
import platform
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.index import measured, served
from benchmarks.synthetic_chain import RUN, STAGES, Chain
from dlx.ledger.index.event_index import EventIndex
from dlx.ledger.rpc.http_transport import HttpTransport
from dlx.ledger.rpc.rpc_client import RpcClient
from dlx.ledger.typed import Domain
from dlx.node.audit.ledger import Recount
from dlx.node.audit.report import Report

SETUP = 34  # events before the first seal


def main(
    rounds: Annotated[int, typer.Option(min=10, help="Sealed by all stages.")] = 1000,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write the result there.")
    ] = None,
) -> None:
    """Print CPU seconds, requests to the chain node, and by how much memory grew."""
    result: dict[str, Any] = {
        "command": shlex.join([Path(sys.executable).name, "-m", "benchmarks.audit", *sys.argv[1:]]),
        "machine": f"{os.cpu_count()} x {platform.machine()}, Python {platform.python_version()}",
        "rounds": rounds,
    }
    with (
        tempfile.TemporaryDirectory(prefix="dlx-audit-") as folder,
        served(SETUP + STAGES * rounds, 0) as url,
    ):
        result["level 1"] = measured(_audit, url, Path(folder) / "events.sqlite")
    sys.stdout.write(json.dumps(result, indent=2) + "\n")
    if json_file is not None:
        json_file.write_text(json.dumps(result, indent=2) + "\n")


def _audit(url: str, path: Path) -> dict[str, int]:
    requests = 0
    ask = HttpTransport.ask

    def counted(*args: Any) -> Any:
        nonlocal requests
        requests += 1
        return ask(*args)

    setattr(HttpTransport, "ask", counted)  # noqa: B010  mypy knows methods as constants
    index = EventIndex(path, Chain.ID, Chain.CONTRACTS)
    index.sync(RpcClient(url))
    report = Report(RUN)
    Recount(report, index, Domain(Chain.ID, Chain.CONTRACTS.ledger), lambda line: None).run()
    return {"requests": requests, "checks": sum(report.counts(1).values())}


if __name__ == "__main__":
    typer.run(main)
