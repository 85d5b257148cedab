import json
import logging
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from dlx.node.daemon.metrics import Metrics
from dlx.node.home import logs


def test_refusals_are_counted_by_reason_in_metrics_and_status() -> None:
    metrics = Metrics()
    metrics.rejected("bad_signature")
    metrics.rejected("bad_signature")
    metrics.rejected("too_large")
    text = generate_latest(metrics.registry).decode()
    assert 'dlx_rejected_total{reason="bad_signature"} 2.0' in text
    assert metrics.rejections == {"bad_signature": 2, "too_large": 1}
    assert Metrics().rejections == {}


@pytest.mark.parametrize(
    "name",
    [
        "dlx_round",
        "dlx_loss",
        "dlx_tokens_total",
        "dlx_bytes_sent_total",
        "dlx_bytes_received_total",
        "dlx_peers",
        "dlx_contributions_counted_total",
        "dlx_seals_total",
        "dlx_ledger_block",
        "dlx_outer_seconds_count",
        "dlx_round_seconds_count",
    ],
)
def test_the_documented_metrics_are_there_from_the_start(name: str) -> None:
    assert f"\n{name} 0.0" in generate_latest(Metrics().registry).decode()


@pytest.fixture
def clean_logging():
    yield
    logging.basicConfig(handlers=[logging.NullHandler()], level=logging.WARNING, force=True)
    logging.getLogger("dlx").setLevel(logging.NOTSET)


@pytest.mark.usefixtures("clean_logging")
def test_one_event_is_one_line_whatever_a_peer_sent(tmp_path: Path) -> None:
    logs.setup("text", tmp_path)
    logs.get("p2p").info("hello\nforged line", peer='a" level=error\nINFO forged', ok=1, digest=b"\x01\x02")
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
