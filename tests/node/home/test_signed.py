"""The book of what was signed: nobody gets a second statement about a round out of it."""

import signal
import sqlite3
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dlx.ground.constants import NO_HASH, UNIT
from dlx.ledger.typed import Contribution, Domain, Seal, account_of, sign
from dlx.node.home.errors import Failure
from dlx.node.home.signed import Contradiction, Entries, SignedBook, take_over_files

KEY = b"\x07" * 32
ACCOUNT = account_of(KEY)
DOMAIN = Domain(31337, account_of(b"\x08" * 32))
RUN = b"r" * 32


def digest(number: int) -> bytes:
    return number.to_bytes(32, "big")


def contribution(round: int = 4, stage: int = 0, payload: int = 1, run: bytes = RUN) -> Contribution:
    return Contribution(
        run=run, round=round, stage=stage, replica=1, account=ACCOUNT, base_weights=digest(1), payload=digest(payload),
        payload_size=10, plan=digest(2), inner_steps=10, tokens=640, loss=1, previous=NO_HASH, start_payload=NO_HASH,
        folded_payload=NO_HASH, folded_payload2=NO_HASH, weights_before=digest(3), weights_after=digest(4),
        optimiser_before=digest(5), optimiser_after=digest(6), residual_before=digest(7), residual_after=digest(8),
        segments_root=digest(9), segments=1, compute_ms=1, exchange_ms=1, flags=0,
    )  # fmt: skip


def seal(
    round: int = 4, stage: int = 0, next: int = 50, run: bytes = RUN, multipliers: tuple[int, ...] = (UNIT,)
) -> Seal:
    return Seal(
        run=run, stage=stage, round=round, previous_weights=digest(40), next_weights=digest(next),
        previous_momentum=digest(41), next_momentum=digest(51), contributions_root=digest(42),
        contributions_hash=digest(43), count=len(multipliers), total_tokens=640, mean_loss=1, plan_level=4, plan_rank=0,
        plan_inner_steps=10, multipliers=multipliers,
    )  # fmt: skip


@pytest.fixture
def book(tmp_path: Path) -> SignedBook:
    return SignedBook(tmp_path / "signed.sqlite", ACCOUNT)


def test_a_round_is_contributed_to_once(book: SignedBook, tmp_path: Path) -> None:
    first = book.sign_contribution(contribution(), DOMAIN, KEY)
    first.verify(DOMAIN)
    book.close()
    book = SignedBook(tmp_path / "signed.sqlite", ACCOUNT)
    assert book.sign_contribution(contribution(), DOMAIN, KEY) == first, "asked again: the same bytes"
    with pytest.raises(Contradiction, match="another contribution in round 4 of stage 0"):
        book.sign_contribution(contribution(payload=2), DOMAIN, KEY)
    others = (contribution(round=5), contribution(stage=1, payload=2), contribution(run=b"s" * 32, payload=2))
    for other in others:  # another round, stage or run is another statement
        book.sign_contribution(other, DOMAIN, KEY)
    assert {round: signed.contribution for round, signed in book.contributions(RUN, 0).items()} == {
        4: contribution(), 5: contribution(round=5)
    }  # fmt: skip


def test_changing_stage_and_coming_back_within_a_round_signs_the_same_statement(book: SignedBook) -> None:
    first = book.sign_contribution(contribution(stage=0), DOMAIN, KEY)
    book.sign_contribution(contribution(stage=1), DOMAIN, KEY)
    with pytest.raises(Contradiction):
        book.sign_contribution(contribution(stage=0, payload=2), DOMAIN, KEY)
    assert book.contributions(RUN, 0) == {4: first}


@pytest.mark.parametrize(
    "other",
    [
        {"contributions_root": digest(60), "next_weights": digest(61)},  # another proposer's listing
        {"previous_weights": digest(60), "next_weights": digest(61)},  # a reorg put another seal before it
        {"previous_momentum": digest(60), "next_momentum": digest(61)},
        {"multipliers": (UNIT // 2,), "next_weights": digest(61)},
        {"plan_rank": 4},  # the proposer's choice, which the next hashes do not depend on
        {"contributions_hash": digest(60)},
        {"round": 5, "next_weights": digest(61)},
        {"stage": 1, "next_weights": digest(61)},
        {"run": digest(60), "next_weights": digest(61)},
    ],
)
def test_correct_seals_of_one_round_are_all_signed(book: SignedBook, other: dict) -> None:
    for one in (seal(), replace(seal(), **other), seal()):
        assert book.sign_seal(one, DOMAIN, KEY) == sign(one.digest(DOMAIN), KEY)


@pytest.mark.parametrize("other", [{"next_weights": digest(61)}, {"next_momentum": digest(61)}])
@pytest.mark.parametrize("beside", [{}, {"plan_rank": 4}, {"contributions_hash": digest(60)}])
def test_two_outcomes_of_the_same_contributions_are_not(
    book: SignedBook, tmp_path: Path, other: dict, beside: dict
) -> None:
    book.sign_seal(seal(), DOMAIN, KEY)
    book.close()
    again = SignedBook(tmp_path / "signed.sqlite", ACCOUNT)
    with pytest.raises(Contradiction, match="another outcome of the same contributions in round 4 of stage 0"):
        again.sign_seal(replace(seal(), **other, **beside), DOMAIN, KEY)
    assert [one.seal for one in again.entries().seals] == [seal()]


def test_a_kill_between_storing_and_sending_repeats_the_same_bytes(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from tests.node.home.test_signed import *\n"
        "signed = SignedBook(Path(sys.argv[1]), ACCOUNT).sign_contribution(contribution(), DOMAIN, KEY)\n"
        "sys.stdout.write(signed.encode().hex()); sys.stdout.flush(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    path = tmp_path / "signed.sqlite"
    killed = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    book = SignedBook(path, ACCOUNT)
    (kept,) = book.contributions(RUN, 0).values()
    assert kept.encode().hex() == killed.stdout
    with pytest.raises(Contradiction):
        book.sign_contribution(contribution(payload=2), DOMAIN, KEY)


def test_nothing_is_signed_that_is_not_stored(book: SignedBook, tmp_path: Path) -> None:
    book._db.execute("PRAGMA max_page_count = 6")  # a full disk, as SQLite tells it
    with pytest.raises(OSError, match="full") as info:
        for round in range(100):
            book.sign_contribution(contribution(round=round), DOMAIN, KEY)
    assert info.value.filename == str(tmp_path / "signed.sqlite")
    assert len(book.contributions(RUN, 0)) == round
    book._db.execute("PRAGMA max_page_count = 1000")  # there is room again
    book.sign_contribution(contribution(round=round), DOMAIN, KEY)


def test_each_account_has_its_own_entries(book: SignedBook, tmp_path: Path) -> None:
    book.sign_contribution(contribution(), DOMAIN, KEY)
    other = account_of(b"\x09" * 32)
    theirs = SignedBook(tmp_path / "signed.sqlite", other)
    assert theirs.contributions(RUN, 0) == {}
    theirs.sign_contribution(replace(contribution(payload=2), account=other), DOMAIN, b"\x09" * 32)
    assert len(book.entries().contributions) == len(theirs.entries().contributions) == 1


def test_the_file_is_private_and_synced_at_each_commit(book: SignedBook, tmp_path: Path) -> None:
    book.sign_contribution(contribution(), DOMAIN, KEY)
    for path in tmp_path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert book._db.execute("PRAGMA synchronous").fetchone() == (2,)
    assert book._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_merging_adds_all_or_nothing(book: SignedBook, tmp_path: Path) -> None:
    for round in range(3):
        book.sign_contribution(contribution(round=round), DOMAIN, KEY)
        book.sign_seal(seal(round=round), DOMAIN, KEY)
    entries = book.entries()
    (tmp_path / "moved").mkdir()
    moved = SignedBook(tmp_path / "moved" / "signed.sqlite", ACCOUNT)
    assert moved.merge(entries) == 6 and moved.merge(entries) == 0
    assert moved.entries() == entries
    with pytest.raises(Contradiction):
        moved.sign_contribution(contribution(round=2, payload=2), DOMAIN, KEY)
    news = contribution(round=9).sign(DOMAIN, KEY)
    for clash in (
        Entries((news, contribution(round=1, payload=2).sign(DOMAIN, KEY)), ()),
        Entries((news,), (replace(entries.seals[0], seal=seal(round=0, next=61)),)),
    ):
        with pytest.raises(Contradiction):
            moved.merge(clash)
        assert moved.entries() == entries


def test_files_of_an_earlier_version_are_taken_over(book: SignedBook, tmp_path: Path) -> None:
    old = {(stage, round): contribution(round, stage).sign(DOMAIN, KEY) for stage in (0, 1) for round in (3, 12)}
    foreign = replace(contribution(), account=account_of(b"\x09" * 32)).sign(DOMAIN, b"\x09" * 32)
    for (stage, round), signed in old.items():
        folder = tmp_path / "72" / f"stage-{stage}" / "contributions"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / str(round)).write_bytes(signed.encode())
        (folder / ".0123456789abcdef.tmp").write_bytes(b"a torn write")
    (folder / "4").write_bytes(foreign.encode())
    take_over_files(book, tmp_path)
    take_over_files(book, tmp_path)
    for stage in (0, 1):
        assert book.contributions(RUN, stage) == {round: old[stage, round] for round in (3, 12)}
    assert [path.name for path in tmp_path.rglob("contributions/*") if path.name.isdecimal()] == ["4"]
    (folder / "5").write_bytes(b"short")
    with pytest.raises(Failure, match="5 is damaged"):
        take_over_files(book, tmp_path)


def test_a_file_that_is_no_book_is_named_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "signed.sqlite"
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(Failure, match=r"signed\.sqlite is damaged.*restore it"):
        SignedBook(path, ACCOUNT)
    assert path.read_bytes() == b"no database" * 1000
    path.unlink()
    SignedBook(path, ACCOUNT).close()
    with sqlite3.connect(path) as later:
        later.execute("PRAGMA user_version = 2")
    with pytest.raises(Failure, match="written by a later version"):
        SignedBook(path, ACCOUNT)
