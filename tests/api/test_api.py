"""`import dlx` against a real history: an embedded chain, real seals, blobs in a folder."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dlx
import dlx.api
from tests.history_builder import History
from tests.patience import patient

pytest_plugins = ["tests.history_builder"]

HEAVY = ("torch", "transformers", "numpy", "web3", "libp2p", "trio", "rich", "typer", "eth")


@pytest.fixture
def run(honest_history: History) -> dlx.Run:
    ledger = dlx.connect(honest_history.rpc_url, honest_history.ledger, blobs=[honest_history.blobs])
    return ledger.run(honest_history.run.hex())


def test_importing_takes_no_time_and_nothing_heavy() -> None:
    code = "import time; t = time.process_time(); import dlx, json, sys; t = time.process_time() - t; "
    code += f"print(json.dumps([t, [name for name in {HEAVY!r} if name in sys.modules]]))"
    found = [
        json.loads(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout)
        for _ in range(3)  # the machine may be busy with something else
    ]
    assert found[0][1] == []
    assert min(seconds for seconds, _ in found) < 0.3


STATE = """
import asyncio, gc, importlib, json, locale, logging, multiprocessing, os, signal, socket, sys, threading, warnings
import numpy, requests, torch  # they change filters of warnings of their own

def state():
    return {
        "recursion limit": sys.getrecursionlimit(),
        "environment": dict(os.environ),
        "signals": {number: str(signal.getsignal(number)) for number in signal.valid_signals()},
        "locale": locale.setlocale(locale.LC_ALL),
        "warnings": [str(one) for one in warnings.filters],
        "threads": [one.name for one in threading.enumerate()],
        "torch": [torch.get_num_threads(), torch.get_num_interop_threads(), str(torch.get_default_dtype())],
        "determinism": torch.are_deterministic_algorithms_enabled(),
        "start method": multiprocessing.get_start_method(allow_none=True),
        "event loops": str(asyncio.get_event_loop_policy().__class__),
        "logging": [str(logging.root.handlers), logging.root.level, str(logging.getLoggerClass())],
        "our logging": [str(logging.getLogger("dlx").handlers), logging.getLogger("dlx").level],
        "hooks": [str(one) for one in (sys.excepthook, sys.unraisablehook, threading.excepthook, sys.displayhook)],
        "collector": [gc.isenabled(), *gc.get_threshold()],
        "stack of threads": threading.stack_size(),
        "sockets": socket.getdefaulttimeout(),
        "folder": os.getcwd(),
        "modules from": sys.path,
        "streams": [sys.stdout.errors, sys.stderr.errors],
        "umask": os.umask(os.umask(0o22)),
    }
"""


@pytest.mark.parametrize("limit", [1_000, 50_000])
def test_the_program_that_imports_it_stays_as_it_is(limit: int) -> None:
    """Also when what its methods need is imported."""
    modules = sorted(set(re.findall(r"from (dlx\.[a-z_.]+) import", Path(dlx.api.__file__).read_text())))
    code = f"""{STATE}
sys.setrecursionlimit({limit})
before = state()
import dlx
for module in {modules!r}:
    importlib.import_module(module)
after = state()
print(json.dumps({{name: [before[name], after[name]] for name in before if before[name] != after[name]}}))
"""
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=patient(300))
    assert json.loads(found.stdout) == {}


def test_a_run_is_found_by_id_prefix_or_alone(honest_history: History, run: dlx.Run) -> None:
    ledger = dlx.connect(honest_history.rpc_url, honest_history.ledger.lower(), chain_id=31337)
    assert (ledger.address, ledger.chain_id) == (honest_history.ledger, 31337)
    assert run.id == "0x" + honest_history.run.hex()
    assert run.id in [one.id for one in ledger.runs()]
    assert ledger.run(run.id[:14]).id == run.id
    with pytest.raises(dlx.DlxError, match="knows no run"):
        ledger.run("0x" + "00" * 32)
    with pytest.raises(dlx.DlxError, match="is no run id"):
        ledger.run("best")


def test_the_summary_says_how_far_it_is(run: dlx.Run) -> None:
    summary = run.summary()
    assert (summary.name, summary.rounds, summary.sealed_rounds, summary.stages) == ("honest", 3, 3, 2)


def test_the_history_has_uniform_rows(honest_history: History, run: dlx.Run) -> None:
    rows = run.history()
    assert len(rows) == 3 and len({tuple(row) for row in rows}) == 1
    assert [row["loss"] for row in rows] == pytest.approx([5.5, 5.2, 4.9])
    assert rows[-1]["total_tokens"] == sum(row["tokens"] for row in rows)
    assert rows[-1]["weights"] == [honest_history.versions[stage, 3].hex() for stage in range(2)]
    assert rows[0]["contributions"] == [2, 2] and rows[0]["sealed"]
    assert run.history() == rows  # read again, not twice


def test_the_audit_is_the_command_s(run: dlx.Run) -> None:
    lines: list[str] = []
    report = run.audit(progress=lines.append)
    assert str(report.verdict) == "ledger PASS, outer steps PASS, training: not checked" and lines
    assert report.counts(1)["PASS"] and report.counts(2)["PASS"] and not report.failed


def test_a_version_is_pulled_and_loaded(run: dlx.Run, tmp_path: Path) -> None:
    found = run.pull(tmp_path / "model", round=1)
    assert json.loads((tmp_path / "model" / "provenance.json").read_text()).items() <= found.items()
    assert found["version"] == 1
    with pytest.raises(dlx.DlxError, match="already exists"):
        run.pull(tmp_path / "model")
    kept = run.load(folder=tmp_path / "newest")
    assert (tmp_path / "newest" / "model.safetensors").is_file()
    parameters, expected = dict(run.load().named_parameters()), dict(kept.named_parameters())
    assert parameters.keys() == expected.keys()
    assert all((parameters[name] == expected[name]).all() for name in expected)


def test_a_model_without_torch_names_the_extra(run: dlx.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(dlx.DlxError, match=r'the extra "train": pip install .*\[train\]"'):
        run.load()


def test_what_cannot_be_is_one_line(honest_history: History, tmp_path: Path) -> None:
    url, ledger = honest_history.rpc_url, honest_history.ledger
    for arguments, options, reason in (
        ((url, "ledger"), {}, "expected an address"),
        ((url, "0x" + 20 * "aB"), {}, "wrong checksum"),
        ((url, ledger), {"chain_id": 1}, "is on chain 31337, not 1"),
        ((url, "0x" + "11" * 20), {}, "no code at 0x1111.* yet"),
        ((url, honest_history.registry), {}, "is not this version.s TrainingLedger"),
        (("127.0.0.1:8545", ledger), {}, "must look like http://127.0.0.1:8545"),
        (("http://127.0.0.1:99999", ledger), {}, "must look like http://127.0.0.1:8545"),
    ):
        with pytest.raises(dlx.DlxError, match=reason) as raised:
            dlx.connect(*arguments, **options)
        assert "\n" not in str(raised.value)
    run = dlx.connect(url, ledger, blobs=[tmp_path / "nowhere"]).run(honest_history.run.hex())
    with pytest.raises(dlx.DlxError, match="no such blob folder"):
        run.audit()
