"""What the pages show, from an index whose events the test states."""

import html
import json
import math
import re
import sys
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
from dlx.node.checkpoints.evaluation_store import Compared, Comparison, Evaluation
from dlx.node.home.datadir import DataDir
from dlx.node.home.program import for_others, program
from dlx.node.round.challenges.verdicts import Finding, ReportedVerdict, VerdictReport
from dlx.node.runs.campaigns import CampaignLine, Funding
from dlx.node.runs.held_out import HeldOut
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
    values = {"live": True, "can_audit": True, "reachable": None, **more}
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
    assert sum(row.rounds for row in page.board.accounts) == 8


def test_what_pays_for_the_run_and_whom(stated: StatedRun) -> None:
    reader = Reader(SilentClient(stated), (), "--datadir x", "0x" + "11" * 20)
    assert reader.run_page(RUN).funding is None, "a chain node that is silent hides nothing else"
    sums = {"funded": "4", "paid": "1", "claimable": "0.5", "refundable": "0.25", "refunded": "0", "left": "2.25"}
    line = CampaignLine(campaign=3, run="0x00", state="open", token="ETH", unit="ETH", rounds=(16, 48), **sums)
    paid = {account(0, 0): "0.75 ETH", account(1, 0): "0.25 ETH"}
    found = Funding([line], [(0.25, 0.125, 0.0625)], paid, {account(0, 0): "0.5 ETH"})
    reader._fundings[RUN] = (math.inf, found)
    page = shown(reader.run_page(RUN))
    assert "3 open 16 to 47 4 1 0.5 0.25 2.25 ETH" in text(page)
    assert "2k 20 0.75 ETH 0.5 ETH" in text(page)
    assert 'class="claimable" x="250.0" y="0" width="125.0"' in page
    assert "Funding" not in text(shown(page_of(stated)))


def test_who_did_what_and_who_holds_a_slot(stated: StatedRun) -> None:
    stated.tell(lambda at: Left(RUN, account(0, 0), 0, 0, at))
    page = page_of(stated)
    rows = {row.account: row for row in page.board.accounts}
    assert rows[account(1, 0)].rounds == 3 and rows[account(1, 0)].steps == 24
    assert rows[account(2, 1)].rounds == 0 and rows[account(2, 1)].first is None
    assert rows[account(0, 0)].rounds == 2, "it left, and its work is still its"
    assert account(0, 0) not in {member.account for member in page.details.members}
    said = text(shown(page))
    assert f"{account(1, 0)[:12]} 27.3% 3 " in said
    assert f"{account(2, 1)} none 0% of the stage's weight 2 1" in said, "what counted and standing before where"
    assert "no folder here has the run's manifest" in said and "no node's verdicts are here" in said


def test_who_did_what_over_runs(stated: StatedRun) -> None:
    others = [bytes([n]) * 32 for n in (2, 3)]
    stated.create(others[0], tokens_per_step=2**64 - 1)
    stated.create(others[1])
    page = Reader(SilentClient(stated), (), "--datadir x").accounts_page()
    assert [board.run for board in page.boards.runs] == ["0x" + run.hex() for run in (others[1], RUN)]
    assert (page.boards.accounts[0].account, page.boards.accounts[0].runs) == (account(1, 0), 1)
    said = text(shown(page, "accounts.html", step=50))
    assert "Run 0x02020202 cannot be shown" in said and f"{account(1, 0)[:12]} 1 27.3% 3 " in said
    assert "a-run 4 rounds, 6 accounts" in said


def test_the_curve_is_drawn_by_rounds_and_tokens_with_held_out_losses(stated: StatedRun, tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    evaluation_store.add(DataDir(tmp_path), RUN, Evaluation(2, 4.5))
    evaluation_store.add(DataDir(tmp_path), RUN, Evaluation(2, 4.25))
    with (DataDir(tmp_path).state_of(RUN) / evaluation_store.FILE).open("a") as file:
        file.write("{cut")
    by_rounds = page_of(stated, (tmp_path / "blobs",)).chart
    assert json.loads(by_rounds.data) == [[1, 2, 3], [5.5, 5.0, 5.0], [None] * 3, [None, 4.25, None]]
    by_tokens = page_of(stated, (tmp_path / "blobs",), axis="tokens").chart
    assert json.loads(by_tokens.data)[0] == [2 * TOKENS, 2 * TOKENS + 1400, 4400]
    assert by_rounds.path.startswith("M333.3 ") and by_rounds.path.count("L") == 2, "the genesis lies at 0"
    assert page_of(stated, axis="bytes").chart is None, "nobody knows without the manifest"
    said = text(shown(page_of(stated, (tmp_path / "blobs",))))
    assert "held-out loss, measured with this folder" in said and "4.2500" in said


def test_held_out_loss_by_the_ledger_is_the_curve_and_training_loss_the_thin_one(stated: StatedRun) -> None:
    reader = Reader(SilentClient(stated), (), "--datadir x")
    reader.run_page(RUN)
    one, other, silent = account(0, 1), account(1, 1), account(2, 1)
    reader._runs[RUN].held_out = {
        1: HeldOut(1, 5.125, "byte", ((one, 5.125), (other, 5.25)), (silent,)),
        3: HeldOut(3, 4.875, "byte", ((one, 4.875),), ()),
        4: HeldOut(4, None, "byte", (), (one,)),
    }
    page = reader.run_page(RUN)
    assert json.loads(page.chart.data) == [[1, 2, 3], [5.5, 5.0, 5.0], [5.125, None, 4.875], [None] * 3]
    assert page.chart.held_out.count("L") == 1 and page.chart.held_out.endswith("L{:g} {:g}".format(*page.chart.newest))
    assert [row.held_out for row in page.rows] == [None, 4.875, None, 5.125], "of the version that a round made"
    assert page.held_out.version == 3, "the newest of which anybody said it"
    before = text(shown(page._replace(before=6.5)))
    assert "said by 1 of 1; 6.5000 before training" in before and "before training" not in text(shown(page))
    assert {line.number: line.held_out and line.held_out.loss for line in page.versions}[3] == 4.875
    shows = shown(page)
    assert 'class="line thin"' in shows and "held-out loss of drawn samples, by the ledger" in text(shows)
    assert "Held-out loss 4.8750 nats per byte of drawn samples, version 3 , said by 1 of 1" in text(shows)
    assert "Curves of the held-out loss, 4.8750 at version 3, and of the training loss" in shows
    said = text(shown(reader.round_page(RUN, 0), "round.html"))
    assert f"{other} : 5.2500 nats per byte" in said and f"{silent} : nothing yet" in said
    assert "said by 2 of 3" in said
    assert "held-out loss 5.1250 nats per byte by the ledger" in text(
        shown(reader.version_page(RUN, 1), "version.html", **WEB)
    )
    assert "4.8750 5.0000 " in text(shown(reader.runs_page(), "runs.html", step=50))
    without = shown(page_of(stated))
    assert "Held-out" not in text(without).replace("Held-out loss Measured", "")
    assert 'class="line thin"' not in without, "without any the training loss is the only curve"


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
    row = {row.account: row for row in page.board.accounts}
    assert (row[account(0, 0)].honest, row[account(1, 0)].honest, row[account(1, 0)].false) == (1, 0, 1)
    assert "of 3 verdicts heard here" in said
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
    assert len(points[0]) <= 1201 and points[0][-1] == 10_000, "thinned, to its end"


def test_a_run_of_one_round_and_one_before_it_have_true_axes(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    stated = StatedRun()
    assert page_of(stated, (tmp_path / "blobs",)).chart is None, "nothing has a loss"
    evaluation_store.add(DataDir(tmp_path), RUN, Evaluation(0, 5.625))
    before = page_of(stated, (tmp_path / "blobs",))
    assert json.loads(before.chart.data) == [[0], [None], [None], [5.625]] and before.chart.newest is None
    assert [tick.label for tick in before.chart.xs] == ["0", "1"] and before.chart.marks[0][0] == 0
    assert "5.625" in text(shown(before))
    stated.join(0)
    stated.join(1)
    stated.open()
    stated.seal(0, ALL, loss=4_500_000)
    one = page_of(stated, (tmp_path / "blobs",)).chart
    assert json.loads(one.data)[:2] == [[0, 1], [None, 4.5]], "from the genesis to the version that the round made"
    assert [tick.label for tick in one.xs] == ["0", "1"] and one.newest[0] == 1000
    assert one.ends[0] == 1 and one.ends[1] <= 4.5 < 5.625 <= one.ends[2]


def test_a_round_says_who_was_counted_before_its_hashes(stated: StatedRun) -> None:
    page = Reader(SilentClient(stated), (), "--datadir x").round_page(RUN, 1)
    said = text(shown(page, "round.html")).partition(" Stage 0 ")[2]
    words = ("Replica", account(1, 0), "Plan", "Signed by", "Transaction", "Seal", "Weights after it")
    places = [said.index(word) for word in words]
    assert places == sorted(places)


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
    assert f"dlx-node pull 0x{RUN.hex()} --round 5 --rpc-url http://x --chain-id 1 --ledger 0x2" in text(page)
    assert f"echo '{name} version-5-stage-0.safetensors' | sha256sum -c" in text(page)
    assert "stage-0.safetensors" in page and 'versions/5/stage-1.safetensors"' not in page
    reads = shown(reader.version_page(RUN, 5), "version.html", may_act=False, packs=True, needs_token=True)
    assert " download" not in reads and "Downloads need this page's token" in reads


def test_lines_for_others_have_no_path_of_this_machine(
    stated: StatedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stated.seal(4, ALL)
    monkeypatch.setenv("PATH", str(tmp_path))  # which has no dlx-node
    page = Reader(SilentClient(stated), (), "--ledger 0x2").version_page(RUN, 5)
    here, beside = text(shown(page, "version.html", **WEB)), str(Path(sys.executable).parent)
    with for_others():
        elsewhere = text(shown(page, "version.html", **WEB))
    for verb in ("pull", "verify"):
        assert f"{program()} {verb}" in here and f"dlx-node {verb}" in elsewhere
    assert beside in here and beside not in elsewhere


def test_a_version_has_its_own_loss_and_that_of_the_mean_that_is_published(stated: StatedRun, tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    evaluation_store.add(DataDir(tmp_path), RUN, Evaluation(1, 4.5))
    evaluation_store.add(DataDir(tmp_path), RUN, Evaluation(2, 4.25, 4.125))
    reader = Reader(SilentClient(stated), (tmp_path / "blobs",), "--datadir x")
    said = [text(shown(reader.version_page(RUN, n), "version.html", **WEB)) for n in (1, 2)]
    assert "held-out loss 4.5000 nats per token, measured" in said[0]
    assert "held-out loss 4.2500 nats per token (4.1250 the mean of it and some before" in said[1]


def test_two_versions_are_shown_beside_each_other_with_the_answers_that_were_kept(
    stated: StatedRun, tmp_path: Path
) -> None:
    (tmp_path / "blobs").mkdir()
    for version, loss in ((1, 4.5), (2, 4.25)):
        evaluation_store.add(DataDir(tmp_path), RUN, Evaluation(version, loss))
    reader = Reader(SilentClient(stated), (tmp_path / "blobs",), "--datadir x")
    alone = shown(reader.version_page(RUN, 1, 2), "version.html", **WEB)
    run = f"0x{RUN.hex()}"
    assert f"dlx-node compare {run}@1 {run}@2 --prompt TEXT --page --datadir x" in text(alone)
    assert "measured with this folder 4.5000 4.2500" in text(alone)
    itself = shown(reader.version_page(RUN, 1, 1), "version.html", **WEB)
    assert "dlx-node compare" not in itself, "which `compare --page` refuses"
    hostile = Compared("What?", "<b>\x1b[2J", ("<script>", "y" * 9999), (False, True))
    evaluation_store.add_comparison(DataDir(tmp_path), RUN, Comparison((2, 1), [hostile] * 60))
    with (DataDir(tmp_path).state_of(RUN) / evaluation_store.COMPARISONS).open("a") as file:
        file.write('{"versions": [1, 2], "pro')
    page = reader.version_page(RUN, 1, 2)
    assert len(page.answers) == 50 and page.answers[0].right == (True, False), "as they are asked for"
    both = shown(page, "version.html", **WEB)
    assert "&lt;script&gt;" in both and "<script>" not in both and "\x1b" not in both
    assert "wrong <script>" in text(both) and "y" * 1900 in both and "y" * 2001 not in both
    assert not reader.version_page(RUN, 1).answers and not reader.version_page(RUN, 2, 2).answers
    with pytest.raises(NotThere, match="no version 99 yet"):
        reader.version_page(RUN, 1, 99)


def test_the_longest_answers_are_read_again(tmp_path: Path) -> None:
    longest = Compared("\0" * 9999, "\0" * 9999, ("\0" * 9999, "\0" * 9999), (False, True))
    evaluation_store.add_comparison(DataDir(tmp_path), RUN, Comparison((1, 2), [longest] * 60))
    (first, *others) = evaluation_store.comparison([tmp_path / "blobs"], RUN, (1, 2))
    assert len(first.prompt) == 2000 and len(others) == 49, "six bytes of JSON for each character"


def test_a_silent_chain_node_leaves_what_was_read_and_says_so(stated: StatedRun) -> None:
    page = page_of(stated)
    assert page.source.silence == "nobody answers" and page.source.head.block == stated.block
    assert "The chain node does not give all" in text(shown(page))


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
        shown(reader.accounts_page(), "accounts.html", step=50),
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
