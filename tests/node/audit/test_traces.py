"""What a trace says is looked at without any replay, and who says otherwise is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from dlx.ledger.typed import Contribution
from dlx.node.audit.report import Report
from dlx.node.audit.request import AuditRequest
from dlx.node.audit.run import audit_from
from dlx.node.audit.sources.blobs import Folder
from dlx.training.slot.trace import Trace, decode
from tests.history_builder import History, Mischief, Network

pytest_plugins = ["tests.history_builder"]


def _altered(change: Callable[[Trace], Trace]) -> Callable[[Contribution, bytes], bytes]:
    """That of replica 1 in stage 0, round 1."""

    def alter(said: Contribution, honest: bytes) -> bytes:
        if (said.round, said.stage, said.replica) != (1, 0, 1):
            return honest
        return change(decode(honest, said.segments, said.inner_steps)).encode()

    return alter


def _state(trace: Trace) -> Trace:
    return msgspec.structs.replace(trace, states=(trace.states[0], trace.states[0]))


def _norm(trace: Trace) -> Trace:
    steps = tuple(msgspec.structs.replace(one, norm=one.norm + 1) for one in trace.steps)
    return msgspec.structs.replace(trace, steps=steps)


def _loss(trace: Trace) -> Trace:
    first = msgspec.structs.replace(trace.steps[0], loss=0.0)
    return msgspec.structs.replace(trace, steps=(first, *trace.steps[1:]))


def _longer(trace: Trace) -> Trace:
    return msgspec.structs.replace(trace, steps=(*trace.steps, trace.steps[0]))


@pytest.mark.parametrize(
    ("change", "check", "verdict", "said"),
    [
        (_state, "trace", "FAIL", "the change are not those of the statement"),
        (_loss, "trace", "FAIL", "the stated loss is not the mean"),
        (_longer, "trace", "WARN", "its trace is gone"),  # longer than its statement allows: not read
        (_norm, "agreements", "FAIL", "the member of stage 1 has not signed"),
    ],
)
def test_one_wrong_trace_is_the_one_finding(
    history_network: Network, tmp_path: Path, change: Callable[[Trace], Trace], check: str, verdict: str, said: str
) -> None:
    history = history_network.run(f"trace{change.__name__}", Mischief(trace=_altered(change)))
    (found,) = _audit(history, tmp_path).checks
    assert (found.level, found.check, found.verdict, found.round) == (2, check, verdict, 1)
    assert said in found.detail


def test_a_trace_that_nobody_has_is_a_warning(honest_history: History, folder: Path, tmp_path: Path) -> None:
    said = Contribution.decode((folder / honest_history.statements[1, 2][0].hex()).read_bytes())
    (folder / said.trace.hex()).unlink()
    (found,) = _audit(replace(honest_history, blobs=folder), tmp_path / "work").checks
    assert (found.check, found.verdict, found.round, found.stage) == ("trace", "WARN", 2, 1)


def _audit(history: History, work: Path) -> Report:
    work.mkdir(exist_ok=True)
    return audit_from([Folder(history.blobs, own=False)], work, history.client(), AuditRequest(history.run))
