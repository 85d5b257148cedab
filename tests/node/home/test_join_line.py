"""The line that takes a machine into a run: one word, whole or refused, whoever wrote it."""

import base64
import hashlib
import re
from dataclasses import replace
from pathlib import Path

import msgpack
import pytest

from dlx.ledger.abi import ZERO_ACCOUNT, checksum
from dlx.ledger.typed import Invitation
from dlx.node.home import join_line
from dlx.node.home.config import public_urls
from dlx.node.home.errors import Failure, UsageFailure
from dlx.node.home.join_line import JoinLine, Listed, SignedInvitation, decode

LEDGER, GUEST, RUN = checksum(b"\x11" * 20), checksum(b"\x22" * 20), b"\x33" * 32
PEER = "/dns4/a.example/tcp/4650/p2p/16Uiu2HAmPMpMdrLnNrrLdXAQdwWzdhvwDqCQCFtEHmBnfZmMSTeP"
MADE = SignedInvitation(Invitation(LEDGER, RUN, GUEST, ZERO_ACCOUNT, 1_700_000_000, 1_800_000_000), b"\x44" * 65)
OPEN = JoinLine(31337, LEDGER, RUN, ("https://rpc.example:8545", "http://127.0.0.1:8545"), (PEER,))
LINE = replace(OPEN, invited=MADE)


@pytest.mark.parametrize(
    "line",
    [
        OPEN,
        LINE,
        replace(OPEN, rpc_url=(), bootstrap=()),
        replace(OPEN, invited=replace(MADE, invitation=replace(MADE.invitation, account=ZERO_ACCOUNT, site=GUEST))),
    ],
)
def test_a_line_is_one_word_and_says_all(line: JoinLine) -> None:
    text = line.encode()
    assert re.fullmatch(r"dlx1-[A-Za-z0-9_-]+", text) and decode(text) == line
    assert len(text) < 500


def test_a_letter_that_is_lost_or_changed_is_noticed() -> None:
    text = LINE.encode()
    for at in range(5, len(text)):
        other = "A" if text[at] != "A" else "B"
        for damaged in (text[:at] + text[at + 1 :], text[:at] + other + text[at + 1 :], text[:at]):
            with pytest.raises(UsageFailure):
                assert decode(damaged) != LINE
                raise UsageFailure("the last letter holds bits that mean nothing")


@pytest.mark.parametrize("text", ["", "dlx1-", "dlx2-AAAA", "hello", "dlx1-" + 9000 * "A", "dlx1-AAAAéAAA", "dlx1-A B"])
def test_what_is_no_line_is_refused(text: str) -> None:
    with pytest.raises(UsageFailure):
        decode(text)


def line_of(*body: object) -> str:
    data = msgpack.packb(list(body))
    return "dlx1-" + base64.urlsafe_b64encode(data + hashlib.sha256(data).digest()[:4]).rstrip(b"=").decode()


GOOD = (31337, b"\x11" * 20, RUN, ["http://a:1"], [PEER], b"\x22" * 20, False, 1, 2, b"\x44" * 65)


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (0, 0), (0, "1"), (0, 2**64 - 1), (1, b"\x11" * 19), (2, b""), (3, ["ftp://a"]), (3, ["http://a b"]), (3, "http://a"),
        (3, ["http://a\x1b[2J"]), (3, ["http://é"]), (4, ["/ip4/1.2.3.4/tcp/1"]), (4, ["nonsense"]), (4, 17 * [PEER]),
        (5, b"\x22" * 21), (6, 7), (7, -1), (8, "2"), (9, b""), (9, b"\x44" * 66),
    ],
)  # fmt: skip
def test_a_hostile_line_says_nothing(at: int, value: object) -> None:
    assert decode(line_of(*GOOD)).chain_id == 31337
    with pytest.raises(UsageFailure, match="says what cannot be"):
        decode(line_of(*GOOD[:at], value, *GOOD[at + 1 :]))
    with pytest.raises(UsageFailure, match="says what cannot be"):
        decode(line_of(*GOOD, "more"))


def test_urls_with_keys_stay_at_home() -> None:
    urls = (
        "https://a.example",
        "https://b.example/v2/KEY",
        "https://u:p@c.example",
        "https://d.example/?k=1",
        "ws://e:1/",
    )
    assert public_urls(urls) == ("https://a.example", "ws://e:1/")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_line_and_its_proof_are_read_as_an_editor_wrote_them(tmp_path: Path, encoding: str) -> None:
    (tmp_path / RUN.hex()).write_text(f"{OPEN.encode()}\r\n0x{32 * '55'}\r\n", encoding=encoding, newline="")
    assert join_line.invitation(tmp_path, RUN) == Listed((32 * b"\x55",))
    assert decode("\ufeff" + OPEN.encode()) == OPEN


def test_an_invitation_is_kept_for_its_run(tmp_path: Path) -> None:
    folder = tmp_path / "invitations"
    assert join_line.invitation(folder, RUN) is None
    join_line.keep(folder, LINE)
    assert join_line.invitation(folder, RUN) == MADE and join_line.invitation(folder, bytes(32)) is None
    for proof in ((), (b"\x55" * 32, b"\x66" * 32)):
        join_line.keep(folder, OPEN, Listed(proof))
        assert join_line.invitation(folder, RUN) == Listed(proof)
        join_line.keep(folder, OPEN)
        assert join_line.invitation(folder, RUN) == Listed(proof), "the line alone, pasted again, takes nothing"
    for damaged in ("0x55", "55" * 32, "0x" + "55" * 32 + "\n0x"):
        (folder / RUN.hex()).write_text(f"{OPEN.encode()}\n{damaged}\n")
        with pytest.raises(Failure, match="the proof below the line is damaged"):
            join_line.invitation(folder, RUN)
    join_line.keep(folder, OPEN)
    assert join_line.invitation(folder, RUN) is None, "of an open run"
    (folder / RUN.hex()).write_text("dlx1-broken")
    with pytest.raises(Failure, match="damaged"):
        join_line.invitation(folder, RUN)
