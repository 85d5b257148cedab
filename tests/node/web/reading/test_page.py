"""What the pages show, from an index whose events the test states."""

import html
import json
import re
import time
from pathlib import Path

import pytest
from eth_utils import to_canonical_address

from dlx.ledger.events import CheckpointPublished, Left
from dlx.ledger.index import seal_rows
from dlx.ledger.keys import account_of
from dlx.ledger.typed import Domain
from dlx.node.audit.verdict_store import FILE, VerdictStore
from dlx.node.checkpoints import evaluation_store
from dlx.node.checkpoints.evaluation_store import Evaluation
from dlx.node.round.challenges.verdicts import Finding, ReportedVerdict, VerdictReport
from dlx.node.web.reading.page import percent
from dlx.node.web.reading.reader import NotThere, Reader, RunPage
from dlx.node.web.render import STATIC, render
from tests.ledger.ledger_logs import LEDGER
from tests.node.stated_run import RUN, STEPS, TOKENS, SilentClient, StatedRun, account

ALL = {0: STEPS, 1: STEPS}


@pytest.fixture
def stated() -> StatedRun:
    """Two replicas from the start on; one more joins in round 1, whole when round 2 opens."""
    made = StatedRun()
    made.join(0)
    made.join(1)
    made.open()
    made.seal(0, ALL, loss=5_500_000)
    made.join(2, range(1))
    made.seal(1, {0: STEPS, 1: 4})
    made.join(2, range(1, 2))
    made.seal(2, {1: STEPS})
    made.seal(3, {})
    return made


WEB = {"may_act": True, "packs": True, "needs_token": False}  # as `dlx-node web` shows it, to who may ask


def page_of(stated: StatedRun, folders: tuple[Path, ...] = (), **asked: object) -> RunPage:
    return Reader(SilentClient(stated), folders, "--datadir x").run_page(RUN, **asked)


def shown(page: object, template: str = "run.html", **more: object) -> str:
    values = {"live": True, "can_audit": True, **more}
    return render(template, page=page, source=page.source, **values)


def text(page: str) -> str:
    """What somebody reads, whom neither styles nor scripts help."""
    return " ".join(html.unescape(re.sub("<[^>]*>", " ", page)).split())


def test_the_grid_says_what_became_of_every_slot_in_every_round(stated: StatedRun) -> None:
    page = page_of(stated)
    kinds = {row.number: [[cell.kind for cell in stage.cells] for stage in row.stages] for row in page.rows}
    assert [row.number for row in page.rows] == [3, 2, 1, 0], "newest first"
    assert kinds[0] == [["counted", "counted", "free"], ["counted", "counted", "free"]]
    assert kinds[1] == [["counted", "fewer", "new"], ["counted", "fewer", "free"]], "half a replica is none"
    assert kinds[2] == [["late", "counted", "new"]] * 2, "it came when the round was open"
    assert kinds[3] == [["late", "late", "late"]] * 2
    assert page.rows[2].stages[0].summary == "2 of 2 counted; fewer steps: 1 (4 of 10)"
    assert page.rows[1].stages[0].summary == "1 of 2 counted; left out: 0"
    assert page.rows[0].stages[0].summary == "empty seal; left out: 0, 1, 2"
    assert (page.share.counted, page.share.possible) == (10, 18)
    assert percent(page.share) == "55.6%"


def test_a_round_that_one_stage_has_sealed_is_open_in_the_other(stated: StatedRun) -> None:
    stated.seal(4, ALL, range(1))
    page = page_of(stated)
    assert page.rows[0].number == 4 and not page.rows[0].sealed
    assert page.rows[0].stages[1] is None and page.rows[0].stages[0].counted == 2
    assert page.share.possible == 18, "it is not summed yet"
    assert "open" in text(shown(page))


def test_what_a_reorg_takes_back_is_gone_from_the_sums(stated: StatedRun) -> None:
    reader = Reader(SilentClient(stated), (), "--datadir x")
    assert reader.run_page(RUN).share.counted == 10
    first = stated.index.rows("SELECT min(block) FROM seals WHERE round = 2")[0][0]
    with stated.index._writing():
        stated.index._drop_after(first - 1)
    page = reader.run_page(RUN)
    assert [row.number for row in page.rows] == [1, 0] and page.share.counted == 8
    assert sum(line.work.counted for line in page.members if line.work) == 8


def test_who_was_counted_how_often_and_when_last(stated: StatedRun) -> None:
    stated.tell(lambda at: Left(RUN, account(0, 0), 0, 0, at))
    page = page_of(stated)
    lines = {line.account: line for line in page.members}
    assert lines[account(1, 0)].work.counted == 3 and lines[account(1, 0)].work.round == 2
    assert lines[account(2, 1)].work is None and lines[account(2, 1)].member.replica == 2
    assert lines[account(0, 0)].member is None and lines[account(0, 0)].work.counted == 2
    said = text(shown(page))
    assert f"{account(0, 0)} 2 1 " in said and "holds no slot any more" in said
    assert f"{account(2, 1)} 2 1 0 never" in said


def test_the_curve_is_drawn_by_rounds_and_tokens_with_held_out_losses(stated: StatedRun, tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    evaluation_store.add(tmp_path / "state", RUN, Evaluation(2, 4.5))
    evaluation_store.add(tmp_path / "state", RUN, Evaluation(2, 4.25))
    with (tmp_path / "state" / RUN.hex()[:16] / evaluation_store.FILE).open("a") as file:
        file.write("{cut")
    by_rounds = page_of(stated, (tmp_path / "blobs",)).chart
    assert json.loads(by_rounds.data) == [[0, 1, 2], [5.5, 5.0, 5.0], [None, 4.25, None]]
    by_tokens = page_of(stated, (tmp_path / "blobs",), axis="tokens").chart
    assert json.loads(by_tokens.data)[0] == [2 * TOKENS, 2 * TOKENS + 1400, 4400]
    assert by_rounds.path.startswith("M0 ") and by_rounds.path.count("L") == 2
    assert page_of(stated, axis="bytes").chart is None, "nobody knows without the manifest"
    said = text(shown(page_of(stated, (tmp_path / "blobs",))))
    assert "held-out loss, measured with this folder" in said and "4.2500" in said


def test_verdicts_that_the_folders_nodes_heard_mark_the_work(stated: StatedRun, tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    path = tmp_path / "state" / RUN.hex()[:16] / FILE
    domain = Domain(31337, LEDGER)
    store = VerdictStore(path, RUN, domain)
    for replica, finding, key in ((0, Finding.HONEST, 1), (1, Finding.HONEST, 1), (1, Finding.FALSE, 2)):
        checker, maker = account_of(bytes([key]) * 32), account(replica, 0)
        report = VerdictReport(
            run=RUN, round=0, stage=0, replica=replica, account=to_canonical_address(maker), finding=int(finding),
            statement=bytes([0, 0, replica, 2]) * 8, segment=0, reasons=("<b>weights</b> differ",),
            checker=to_canonical_address(checker),
        )  # fmt: skip
        store.add(ReportedVerdict.make(report, lambda verdict, key=key: verdict.sign(domain, bytes([key]) * 32)))
    store.close()
    page = page_of(stated, (tmp_path / "blobs",))
    assert [cell.finding for cell in page.rows[-1].stages[0].cells] == ["honest", "false", ""], "the worst of each"
    assert page.findings == {"honest": 2, "false": 1}
    said = text(shown(page))
    assert "Verdicts heard: 2 honest, 1 false." in said and "drawn: 0 honest, 1 false" in said
    seals = shown(Reader(SilentClient(stated), (tmp_path / "blobs",), "").round_page(RUN, 0), "round.html")
    assert "&lt;b&gt;weights&lt;/b&gt; differ" in seals and "<b>" not in seals
    path.write_bytes(b"no database" * 1000)
    assert page_of(stated, (tmp_path / "blobs",)).findings == {} and path.exists(), "a page changes nothing"


def test_ten_thousand_rounds_are_a_page_in_less_than_a_second() -> None:
    stated = StatedRun(rounds=10_000)
    stated.join(0)
    stated.join(1)
    stated.open()
    stated.seal(0, ALL)
    stated.fill(10_000)
    before = time.process_time()
    reader = Reader(SilentClient(stated), (), "--datadir x")
    cold = shown(reader.run_page(RUN))
    opened = time.process_time()
    warm = shown(reader.run_page(RUN, first=4000, axis="tokens"))
    again = time.process_time()
    assert opened - before < 1.0, f"{opened - before:.2f} s"
    assert again - opened < 0.5, f"{again - opened:.2f} s"
    assert cold.count('<tr><th scope="row"><a id="r') == 100 and len(cold) < 300_000, "a window of them"
    assert "9,900 to 9,999 of 10,000" in text(cold) and 'id="r9999"' in cold
    assert "4,000 to 4,099 of 10,000" in text(warm) and 'id="r4000"' in warm and "from=4100" in warm
    points = json.loads(reader.run_page(RUN).chart.data)
    assert len(points[0]) <= 1201 and points[0][-1] == 9999, "thinned, to its end"


def test_windows_reach_every_round_and_no_further(stated: StatedRun) -> None:
    assert [row.number for row in page_of(stated, first=2).rows] == [3, 2]
    beyond = page_of(stated, first=10**9)
    assert [row.number for row in beyond.rows] == [3] and beyond.window.older == 0
    wide = StatedRun(stages=60, replicas=64)
    assert page_of(wide).window.size == 5, "never more than a browser draws at once"


def test_a_strangers_text_is_text(stated: StatedRun) -> None:
    evil = 'https://x/<script>alert(1)</script>\x1b[2J" onload="x' + "A" * 2000
    stated.tell(lambda at: CheckpointPublished(RUN, 1, account(0, 0), b"\4" * 32, evil, at))
    for page in (
        shown(page_of(stated)),
        shown(Reader(SilentClient(stated), (), "").version_page(RUN, 1), "version.html", **WEB),
    ):
        assert "<script>alert" not in page and "\x1b" not in page and "&lt;script&gt;" in page
        assert 'onload="x' not in page and "A" * 400 not in page


def test_a_round_shows_its_seals_and_their_hashes(stated: StatedRun) -> None:
    reader = Reader(SilentClient(stated), (), "--datadir x")
    page = reader.round_page(RUN, 1)
    seal = page.seals[1]
    event = seal_rows.sealed(stated.index, RUN, 1, 1)
    assert (seal.digest, seal.transaction) == (event.digest.hex(), "0x" + event.at.tx.hex())
    assert seal.weights == event.outcome.weights.hex() and seal.records[1].inner_steps == 4
    said = text(shown(page, "round.html"))
    assert seal.digest in said and account(1, 1) in said and "draw not known yet" in said
    empty = reader.round_page(RUN, 3)
    assert "An empty seal" in shown(empty, "round.html")
    assert empty.seals[0].weights == reader.round_page(RUN, 2).seals[0].weights, "it changes nothing"
    for number in (4, 10**8):
        with pytest.raises(NotThere, match=f"no stage has sealed round {number} yet"):
            reader.round_page(RUN, number)
    with pytest.raises(NotThere, match="no version 5"):
        reader.version_page(RUN, 5)
    with pytest.raises(NotThere, match="no run"):
        reader.run_page(b"\x77" * 32)


def test_a_version_says_how_to_have_and_check_it(stated: StatedRun, tmp_path: Path) -> None:
    stated.seal(4, ALL)
    reader = Reader(SilentClient(stated), (tmp_path,), "--rpc-url http://x --chain-id 1 --ledger 0x2")
    name = reader.version_page(RUN, 5).version.weights[0]
    (tmp_path / name).write_bytes(b"not these weights")
    page = shown(reader.version_page(RUN, 5), "version.html", **WEB)
    assert f"dlx-node pull --run 0x{RUN.hex()} --round 5 --rpc-url http://x --chain-id 1 --ledger 0x2" in text(page)
    assert f"echo '{name} version-5-stage-0.safetensors' | sha256sum -c" in text(page)
    assert "stage-0.safetensors" in page and 'versions/5/stage-1.safetensors"' not in page
    reads = shown(reader.version_page(RUN, 5), "version.html", may_act=False, packs=True, needs_token=True)
    assert " download" not in reads and "Downloads need this page's token" in reads


def test_a_version_has_its_own_loss_and_that_of_the_mean_that_is_published(stated: StatedRun, tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    evaluation_store.add(tmp_path / "state", RUN, Evaluation(1, 4.5))
    evaluation_store.add(tmp_path / "state", RUN, Evaluation(2, 4.25, 4.125))
    reader = Reader(SilentClient(stated), (tmp_path / "blobs",), "--datadir x")
    said = [text(shown(reader.version_page(RUN, n), "version.html", **WEB)) for n in (1, 2)]
    assert "held-out loss 4.5000 nats per token, measured" in said[0]
    assert "held-out loss 4.2500 nats per token (4.1250 the mean of it and some before" in said[1]


def test_a_silent_chain_node_leaves_what_was_read_and_says_so(stated: StatedRun) -> None:
    page = page_of(stated)
    assert page.source.silence == "nobody answers" and page.source.head.block == stated.block
    assert "The chain node does not answer" in text(shown(page))


def test_a_run_that_cannot_be_shown_hides_no_other(stated: StatedRun) -> None:
    """As a chain node that lies may tell of one: the contract takes no such terms."""
    others = [bytes([n]) * 32 for n in (2, 3)]
    stated.create(others[0], tokens_per_step=2**64 - 1)
    stated.create(others[1])
    page = Reader(SilentClient(stated), (), "--datadir x").runs_page()
    assert [line.summary.run for line in page.lines] == ["0x" + run.hex() for run in (others[1], RUN)]
    assert [one.run for one in page.unreadable] == ["0x" + others[0].hex()]
    said = text(shown(page, "runs.html", step=50))
    assert "Run 0x02020202 cannot be shown: ViewError: the run was created with tokens_per_step: expected" in said


def test_as_many_tokens_as_a_run_can_count_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    steps, step, rounds = 100_000, (1 << 40) - 1, 41
    monkeypatch.setattr("tests.node.stated_run.STEPS", steps)
    stated = StatedRun(1, 2, rounds, tokens_per_step=step)
    for replica in range(2):
        stated.join(replica)
    stated.open()
    for round in range(rounds):
        stated.seal(round, {0: steps, 1: steps})
    total = rounds * 2 * steps * step
    assert page_of(stated).tokens == total > 0.97 * 2**63
    assert seal_rows.tokens_before(stated.index, RUN, rounds) == total and stated.index.trouble is None


def test_nothing_of_a_page_comes_from_elsewhere_or_is_inline(stated: StatedRun) -> None:
    reader = Reader(SilentClient(stated), (), "--datadir x")
    pages = [
        shown(reader.run_page(RUN)),
        shown(reader.round_page(RUN, 0), "round.html"),
        shown(reader.runs_page(), "runs.html", step=50),
    ]
    for page in pages:
        assert not re.search(r"(src|href)=\"(?!/|#)", page), "only what this server has"
        assert not re.search(r"<style|<script(?! src=)|\sstyle=|\son[a-z]+=|javascript:", page)
    named = (STATIC / "LICENSES.txt").read_text()
    others = [path.name for path in STATIC.iterdir() if ".min." in path.name]
    assert len(others) == 4 and all(name in named for name in others)


def test_a_run_without_a_round_is_a_page_too() -> None:
    page = page_of(StatedRun())
    assert page.chart is None and page.rows == [] and page.bytes is None
    assert "No round is sealed yet: the run waits for members." in text(shown(page))
