import json
import logging
import platform
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from dlx.node.daemon.metrics import Metrics
from dlx.node.home import logs

RUN = "0x" + "ab" * 32


def test_refusals_are_counted_by_reason_in_metrics_and_status() -> None:
    metrics = Metrics(RUN)
    metrics.rejected("bad_signature")
    metrics.rejected("bad_signature")
    metrics.rejected("too_large")
    text = generate_latest(metrics.registry).decode()
    assert 'dlx_rejected_total{reason="bad_signature"} 2.0' in text
    assert metrics.rejections == {"bad_signature": 2, "too_large": 1}
    assert Metrics(RUN).rejections == {}


@pytest.mark.parametrize(
    "name",
    [
        "dlx_round",
        "dlx_loss",
        "dlx_tokens_total",
        "dlx_contributions_counted_total",
        "dlx_seals_total",
        "dlx_weight",
        "dlx_outer_seconds_count",
        "dlx_round_seconds_count",
    ],
)
def test_what_belongs_to_a_slot_is_there_with_run_and_stage_as_soon_as_one_is_held(name: str) -> None:
    metrics = Metrics(RUN)
    assert f"\n{name}{{" not in generate_latest(metrics.registry).decode()
    metrics.of_stage(1)
    assert f'\n{name}{{run="{RUN}",stage="1"}} 0.0' in generate_latest(metrics.registry).decode()


def test_a_change_of_stage_leaves_counts_and_takes_what_was_true_of_the_old_one() -> None:
    metrics = Metrics(RUN)
    for stage, round in ((0, 7), (1, 8), (0, 9)):
        metrics.of_stage(stage).round.set(round)
        metrics.of_stage(stage).tokens.inc(10)
    text = generate_latest(metrics.registry).decode()
    assert [line for line in text.splitlines() if line.startswith("dlx_round{")] == [
        f'dlx_round{{run="{RUN}",stage="0"}} 9.0'
    ]
    assert f'dlx_tokens_total{{run="{RUN}",stage="0"}} 20.0' in text
    assert f'dlx_tokens_total{{run="{RUN}",stage="1"}} 10.0' in text


def test_bytes_are_counted_by_direction_kind_and_protocol() -> None:
    metrics, traffic = Metrics(RUN), {"payload": (1, 2), "pipe": (3, 4)}
    metrics.count_bytes(lambda: traffic, lambda: {"/dlx/ping/1": (7, 8)})
    traffic["pipe"] = 5, 6
    text = generate_latest(metrics.registry).decode()
    assert 'dlx_bytes_total{direction="sent",kind="payload"} 1.0' in text
    assert 'dlx_bytes_total{direction="received",kind="pipe"} 6.0' in text
    assert 'dlx_protocol_bytes_total{direction="sent",protocol="/dlx/ping/1"} 7.0' in text


def test_metrics_say_what_runs_and_what_it_takes() -> None:
    text = generate_latest(Metrics(RUN).registry).decode()
    (build,) = [line for line in text.splitlines() if line.startswith("dlx_build_info{")]
    assert f'python="{platform.python_version()}"' in build and 'torch="' in build and 'version="0.' in build
    for name in ("dlx_peers 0.0", "dlx_ledger_block 0.0", "process_resident_memory_bytes ", "python_info{"):
        assert f"\n{name}" in text


@pytest.fixture
def clean_logging():
    yield
    logging.basicConfig(handlers=[logging.NullHandler()], level=logging.WARNING, force=True)
    logging.getLogger("dlx").setLevel(logging.NOTSET)


@pytest.mark.usefixtures("clean_logging")
def test_one_event_is_one_line_whatever_a_peer_sent(tmp_path: Path) -> None:
    logs.setup("text", tmp_path)
    logs.get("p2p").info(
        "hello\nforged line", nothing=None, peer='a" level=error\nINFO forged', ok=1, digest=b"\x01\x02"
    )
    logging.getLogger("some.library").info("not for us")
    lines = (tmp_path / "node.log").read_text().splitlines()
    assert len(lines) == 1
    assert lines[0].endswith(r'INFO    "hello\nforged line" peer="a\" level=error\nINFO forged" ok=1 digest=0102')


@pytest.mark.usefixtures("clean_logging")
def test_json_lines_hold_the_fields_and_tracebacks(tmp_path: Path) -> None:
    logs.setup("json", tmp_path)
    logs.get("round").info("sealed", round=3, loss=2.5, path=Path("/x"), level="forged")
    try:
        raise ValueError("why")
    except ValueError:
        logs.get("round").exception("failed")
    first, second = (json.loads(line) for line in (tmp_path / "node.log").read_text().splitlines())
    assert (first["message"], first["round"], first["loss"], first["path"]) == ("sealed", 3, 2.5, "/x")
    assert first["level"] == "info" and first["logger"] == "dlx.round"
    assert "ValueError: why" in second["traceback"]
