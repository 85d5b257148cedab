"""What was signed: nobody gets a second signed statement about a round."""

import signal
import sqlite3
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dlx.ground.constants import UNIT
from dlx.ledger.typed import (
    FALSE,
    Agreement,
    Plan,
    Report,
    Seal,
    Verdict,
    account_of,
    recover,
    sign,
)
from dlx.node.home.errors import Failure
from dlx.node.home.keys.slashing_protection import Contradiction, Entries, SlashingProtection
from tests.node.made_statements import ACCOUNT, DOMAIN, KEY, RUN, contribution, digest, seal


@pytest.fixture
def protection(tmp_path: Path) -> SlashingProtection:
    return SlashingProtection(tmp_path / "signed.sqlite", KEY, DOMAIN)


def test_a_round_is_contributed_to_once(protection: SlashingProtection, tmp_path: Path) -> None:
    first = protection.sign_contribution(contribution())
    first.verify(DOMAIN)
    protection.close()
    protection = SlashingProtection(tmp_path / "signed.sqlite", KEY, DOMAIN)
    assert protection.sign_contribution(contribution()) == first, "asked again: the same bytes"
    with pytest.raises(Contradiction, match="another contribution in round 4 of stage 0"):
        protection.sign_contribution(contribution(payload=2))
    others = (contribution(round=5), contribution(stage=1, payload=2), contribution(run=b"s" * 32, payload=2))
    for other in others:  # another round, stage or run is another statement
        protection.sign_contribution(other)
    assert {round: signed.contribution for round, signed in protection.contributions(RUN, 0).items()} == {
        4: contribution(), 5: contribution(round=5)
    }  # fmt: skip


def test_what_went_over_a_pipe_is_recorded_once_a_round(tmp_path: Path) -> None:
    """Also after a restart; asked again for the same, it signs the same."""
    agreement = Agreement(RUN, 4, 1, 0, b"a" * 32)
    first = SlashingProtection(tmp_path / "signed.sqlite", KEY, DOMAIN)
    signature = first.sign_agreement(agreement)
    assert recover(agreement.digest(DOMAIN), signature) == account_of(KEY)
    first.close()
    again = SlashingProtection(tmp_path / "signed.sqlite", KEY, DOMAIN)
    assert again.sign_agreement(agreement) == signature
    with pytest.raises(Contradiction, match="another record of a pipe in round 4 of stage 0"):
        again.sign_agreement(replace(agreement, recorded=b"b" * 32))
    for other in ({"round": 5}, {"stage": 1}, {"replica": 2}, {"run": b"s" * 32}):
        again.sign_agreement(replace(agreement, recorded=b"b" * 32, **other))


def test_changing_stage_and_coming_back_within_a_round_signs_the_same_statement(protection: SlashingProtection) -> None:
    first = protection.sign_contribution(contribution(stage=0))
    protection.sign_contribution(contribution(stage=1))
    with pytest.raises(Contradiction):
        protection.sign_contribution(contribution(stage=0, payload=2))
    assert protection.contributions(RUN, 0) == {4: first}


def other(seal: Seal, outcome: dict[str, Any], record: dict[str, Any], **changes: Any) -> Seal:
    """The seal with other fields, of its outcome and its first record too."""
    first, *rest = seal.records
    records = (replace(first, **record), *rest)
    return replace(seal, outcome=replace(seal.outcome, **outcome), records=records, **changes)


ELSE = {"weights": digest(61)}
PLANNED = {"plan": Plan(4, 4, 10)}  # the proposer's choice, which the outcome does not depend on
RECORDED = {"loss": 2, "exchange": 7}  # likewise


@pytest.mark.parametrize(
    ("outcome", "record", "changes"),
    [
        (ELSE, {"statement": digest(61)}, {}),  # another proposer's listing
        (ELSE, {"multiplier": UNIT // 2}, {}),
        (ELSE, {"inner_steps": 9}, {}),
        (ELSE, {}, {"previous": digest(61)}),  # a reorg put another seal before it
        (PLANNED, RECORDED, {}),
        (ELSE, {}, {"round": 5}),
        (ELSE, {}, {"stage": 1}),
        (ELSE, {}, {"run": digest(61)}),
    ],
)
def test_correct_seals_of_one_round_are_all_signed(
    protection: SlashingProtection, outcome: dict, record: dict, changes: dict
) -> None:
    for one in (seal(), other(seal(), outcome, record, **changes), seal()):
        assert protection.sign_seal(one) == sign(one.digest(DOMAIN), KEY)


@pytest.mark.parametrize("field", ["weights", "momentum", "weights_root", "momentum_root"])
@pytest.mark.parametrize(("planned", "record"), [({}, {}), (PLANNED, {}), ({}, RECORDED)])
def test_two_outcomes_of_the_same_contributions_are_not(
    protection: SlashingProtection, tmp_path: Path, field: str, planned: dict, record: dict
) -> None:
    protection.sign_seal(seal())
    protection.close()
    again = SlashingProtection(tmp_path / "signed.sqlite", KEY, DOMAIN)
    with pytest.raises(Contradiction, match="another outcome of the same contributions in round 4 of stage 0"):
        again.sign_seal(other(seal(), {field: digest(61)} | planned, record))
    assert [one.seal for one in again.entries().seals] == [seal()]


def test_a_kill_between_storing_and_sending_repeats_the_same_bytes(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from dlx.node.home.keys.slashing_protection import SlashingProtection\n"
        "from tests.node.made_statements import DOMAIN, KEY, contribution\n"
        "signed = SlashingProtection(Path(sys.argv[1]), KEY, DOMAIN).sign_contribution(contribution())\n"
        "sys.stdout.write(signed.encode().hex()); sys.stdout.flush(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    path = tmp_path / "signed.sqlite"
    killed = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    protection = SlashingProtection(path, KEY, DOMAIN)
    (kept,) = protection.contributions(RUN, 0).values()
    assert kept.encode().hex() == killed.stdout
    with pytest.raises(Contradiction):
        protection.sign_contribution(contribution(payload=2))


def test_nothing_is_signed_that_is_not_stored(protection: SlashingProtection, tmp_path: Path) -> None:
    protection._db.execute("PRAGMA max_page_count = 6")  # a full disk, as SQLite tells it
    with pytest.raises(OSError, match="full") as info:
        for round in range(100):
            protection.sign_contribution(contribution(round=round))
    assert info.value.filename == str(tmp_path / "signed.sqlite")
    assert len(protection.contributions(RUN, 0)) == round
    protection._db.execute("PRAGMA max_page_count = 1000")  # there is room again
    protection.sign_contribution(contribution(round=round))


def test_each_account_has_its_own_entries(protection: SlashingProtection, tmp_path: Path) -> None:
    protection.sign_contribution(contribution())
    other = account_of(b"\x09" * 32)
    theirs = SlashingProtection(tmp_path / "signed.sqlite", b"\x09" * 32, DOMAIN)
    assert theirs.contributions(RUN, 0) == {}
    theirs.sign_contribution(replace(contribution(payload=2), account=other))
    assert len(protection.entries().contributions) == len(theirs.entries().contributions) == 1


def test_the_file_is_private_and_synced_at_each_commit(protection: SlashingProtection, tmp_path: Path) -> None:
    protection.sign_contribution(contribution())
    for path in tmp_path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert protection._db.execute("PRAGMA synchronous").fetchone() == (2,)
    assert protection._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_merging_adds_all_or_nothing(protection: SlashingProtection, tmp_path: Path) -> None:
    for round in range(3):
        protection.sign_contribution(contribution(round=round))
        protection.sign_seal(seal(round=round))
    entries = protection.entries()
    (tmp_path / "moved").mkdir()
    moved = SlashingProtection(tmp_path / "moved" / "signed.sqlite", KEY, DOMAIN)
    assert moved.merge(entries) == 6 and moved.merge(entries) == 0
    assert moved.entries() == entries
    with pytest.raises(Contradiction):
        moved.sign_contribution(contribution(round=2, payload=2))
    news = contribution(round=9).sign(DOMAIN, KEY)
    for clash in (
        Entries((news, contribution(round=1, payload=2).sign(DOMAIN, KEY)), ()),
        Entries((news,), (replace(entries.seals[0], seal=seal(round=0, next=61)),)),
    ):
        with pytest.raises(Contradiction):
            moved.merge(clash)
        assert moved.entries() == entries


def test_reports_and_verdicts_are_signed_but_no_verdict_about_own_work(protection: SlashingProtection) -> None:
    report = Report(RUN, 4, 0, 1_800_000_000_000, (digest(1),), ())
    assert recover(report.digest(DOMAIN), protection.sign_report(report)) == ACCOUNT
    verdict = Verdict(RUN, 0, 4, account_of(b"\x09" * 32), digest(1), FALSE, digest(2))
    assert protection.sign_verdict(verdict).signer(DOMAIN) == ACCOUNT
    with pytest.raises(ValueError, match="about its own work"):
        protection.sign_verdict(replace(verdict, account=ACCOUNT))
    assert protection.entries() == Entries((), ())


def test_a_file_that_is_no_store_is_named_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "signed.sqlite"
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(Failure, match=r"signed\.sqlite is damaged.*restore it"):
        SlashingProtection(path, KEY, DOMAIN)
    assert path.read_bytes() == b"no database" * 1000
    path.unlink()
    SlashingProtection(path, KEY, DOMAIN).close()
    with sqlite3.connect(path) as later:
        later.execute("PRAGMA user_version = 4")
    with pytest.raises(Failure, match="written by a later version"):
        SlashingProtection(path, KEY, DOMAIN)
    with sqlite3.connect(path) as earlier:
        earlier.execute("PRAGMA user_version = 1")
    with pytest.raises(Failure, match=r"written by an earlier version.*move it away"):
        SlashingProtection(path, KEY, DOMAIN)
