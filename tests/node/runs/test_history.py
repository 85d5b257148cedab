import csv
import io
import struct
from pathlib import Path

import msgspec
import pytest

from dlx.ledger import rows
from dlx.ledger.events import EventPosition, Joined, RoundOpened, RunCreated, Sealed
from dlx.ledger.index import Contracts, EventIndex
from dlx.ledger.keys import account_of, sign
from dlx.ledger.typed import Domain, RunConfig, Seal
from dlx.ledger.view import RunView
from dlx.node.home.errors import Failure
from dlx.node.runs.history import History, history, plot, to_csv

RUN, KEY = b"\x01" * 32, b"\x02" * 32
DOMAIN = Domain(31337, "0x" + "00" * 20)
STAGES, TOKENS = 2, 1000


class Ledger:
    """A run of two stages whose seals the test states."""

    def __init__(self, rounds: int = 10) -> None:
        self.view, self.index = RunView(RUN), EventIndex(None, 31337, Contracts("", ""))
        self.block = 0
        config = RunConfig(b"\x03" * 32, rounds, STAGES, 1, 2, 2, 3, 60, 60, TOKENS)
        self.view.apply(RunCreated(RUN, account_of(KEY), config, "a-run", (b"\x04" * 32, b"\x05" * 32), self.at()))
        self.view.apply(Joined(RUN, account_of(KEY), 0, 0, self.at()))
        self.view.apply(RoundOpened(RUN, 0, 0, self.at()))

    def at(self) -> EventPosition:
        self.block += 1
        return EventPosition(self.block, bytes(32), 0, self.block.to_bytes(32, "big"), 1_700_000_000 + self.block)

    def seal(self, stage: int, round: int, loss: int = 0, tokens: int = TOKENS) -> None:
        weights = bytes([stage, round]) * 16
        hashes = (weights, weights, bytes(32), bytes(32), bytes(32), bytes(32))
        seal = Seal(RUN, stage, round, *hashes, 1 if tokens else 0, tokens, loss, 0, 4, 10, (32768,) if tokens else ())
        digest = seal.digest(DOMAIN)
        sealed = Sealed(RUN, round, stage, digest, seal, b"", sign(digest, KEY), self.at())
        self.view.apply(sealed)
        self.index.keep(self.index.mark(), (0, 0), lambda db: rows.write(db, [sealed]))
        if all(self.view.next_round(s) > round for s in range(STAGES)):
            self.view.apply(RoundOpened(RUN, round + 1, 0, self.at()))


@pytest.fixture
def found() -> History:
    """Round 0 trained, round 1 was empty, round 2 trained, round 3 lacks its last stage."""
    ledger = Ledger()
    for round, loss, tokens in ((0, 5_500_000, TOKENS), (1, 0, 0), (2, 4_250_000, 2 * TOKENS)):
        ledger.seal(0, round, loss - 1 if loss else 0, tokens)
        ledger.seal(1, round, loss, tokens)
    ledger.seal(0, 3)
    return history(ledger.index, ledger.view)


def test_the_loss_is_the_last_stages_and_tokens_are_counted_once(found: History) -> None:
    assert [row.loss for row in found.rounds] == [5.5, None, 4.25, None]
    assert [row.tokens for row in found.rounds] == [TOKENS, 0, 2 * TOKENS, TOKENS]
    assert [row.total_tokens for row in found.rounds] == [TOKENS, TOKENS, 3 * TOKENS, 4 * TOKENS]
    assert [row.sealed for row in found.rounds] == [True, True, True, False]
    last = found.rounds[2].stages[1]
    assert (last.stage, last.weights, last.contributions, last.signers) == (1, "0102" * 16, 1, 1)
    assert (last.next_level, last.next_rank, last.next_inner_steps) == (0, 4, 10)
    assert last.transaction.startswith("0x") and len(last.transaction) == 66


def test_csv_has_a_line_per_round_and_columns_per_stage(found: History) -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(found))))
    assert [row["round"] for row in rows] == ["0", "1", "2", "3"]
    assert [row["loss"] for row in rows] == ["5.500000", "", "4.250000", ""]
    assert rows[0]["time"].endswith("Z") and rows[0]["stage0_weights"] == "0000" * 16
    assert rows[3]["stage1_weights"] == "" and rows[3]["stage0_weights"] != ""


def test_json_reads_back(found: History) -> None:
    assert msgspec.json.decode(msgspec.json.encode(found), type=History) == found


def test_the_plot_is_a_picture(found: History, tmp_path: Path) -> None:
    plot(found, tmp_path / "loss.png")
    data = (tmp_path / "loss.png").read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", data[16:24])
    assert width > 1000 and height > 600


def test_one_round_can_be_drawn_and_none_says_so(tmp_path: Path) -> None:
    ledger = Ledger()
    with pytest.raises(Failure, match="nothing to draw"):
        plot(history(ledger.index, ledger.view), tmp_path / "none.png")
    ledger.seal(0, 0)
    ledger.seal(1, 0, 3_000_000)
    plot(history(ledger.index, ledger.view), tmp_path / "one.png")
    with pytest.raises(Failure, match="cannot write"):
        plot(history(ledger.index, ledger.view), tmp_path / "missing" / "one.png")
