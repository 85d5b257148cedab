"""The verdicts that a node keeps: the first of each checker, what is not honest for ever, whatever the disk does."""

import os
import resource
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from eth_utils import to_canonical_address

from dlx.ledger.typed import Domain, account_of
from dlx.node.audit import verdict_store
from dlx.node.audit.verdict_store import VerdictStore, read_verdicts, verdicts_beside
from dlx.node.home.datadir import DataDir
from dlx.node.round.challenges.verdicts import Finding, ReportedVerdict, VerdictReport

NOBODY = 65534  # a user without rights
RUN, DOMAIN = b"\x11" * 32, Domain(31337, "0x" + "22" * 20)


def verdict(round: int, finding: Finding, key: bytes = b"\x01" * 32) -> ReportedVerdict:
    report = VerdictReport(
        run=RUN, round=round, stage=0, replica=1, account=b"\x33" * 20, statement=round.to_bytes(32, "big"),
        finding=int(finding), segment=0, checker=to_canonical_address(account_of(key)),
    )  # fmt: skip
    return ReportedVerdict.make(report, lambda verdict: verdict.sign(DOMAIN, key))


def test_the_first_verdict_of_a_checker_on_a_contribution_stays(tmp_path: Path) -> None:
    store = VerdictStore(tmp_path / "verdicts.sqlite", RUN, DOMAIN)
    assert store.add(verdict(1, Finding.HONEST))
    assert not store.add(verdict(1, Finding.HONEST)) and not store.add(verdict(1, Finding.FALSE))
    assert store.add(verdict(1, Finding.FALSE, b"\x02" * 32))
    assert sorted(one.finding for one in store.since(0)) == [Finding.HONEST, Finding.FALSE]
    store.close()


def test_verdicts_outlive_a_restart_and_of_too_many_the_oldest_honest_ones_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdict_store, "MAX_ROWS", 3)
    path = tmp_path / "verdicts.sqlite"
    store = VerdictStore(path, RUN, DOMAIN)
    for round, finding in ((1, Finding.HONEST), (2, Finding.FALSE), (3, Finding.WITHHELD), (9, Finding.HONEST)):
        store.add(verdict(round, finding))
    assert [one.report.round for one in store.since(0)] == [2, 3, 9]
    assert [one.report.round for one in store.since(3)] == [3, 9]
    assert store.listed(0, 2) == [(one.data, one.signature) for one in store.since(0)[:2]]
    store.close()
    assert [one.report.round for one in read_verdicts(path, RUN, DOMAIN)] == [2, 3, 9]
    assert read_verdicts(tmp_path / "none.sqlite", RUN, DOMAIN) == []


def test_a_damaged_file_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.sqlite"
    path.write_bytes(b"no database at all" * 100)
    store = VerdictStore(path, RUN, DOMAIN)
    assert store.since(0) == [] and store.add(verdict(1, Finding.FALSE))
    store.close()


def test_a_full_disk_costs_no_verdict(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.sqlite"
    with closing(VerdictStore(path, RUN, DOMAIN)) as store:
        store.add(verdict(1, Finding.FALSE))
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))  # no file grows beyond that
    try:
        with pytest.raises(OSError, match=r"verdicts\.sqlite: "):
            VerdictStore(path, RUN, DOMAIN)
        with suppress(OSError):
            read_verdicts(path, RUN, DOMAIN)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before
    assert [one.finding for one in read_verdicts(path, RUN, DOMAIN)] == [Finding.FALSE]


def test_who_reads_removes_nothing_and_takes_a_file_that_was_only_begun(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.sqlite"
    path.touch()
    assert read_verdicts(path, RUN, DOMAIN) == []
    path.write_bytes(b"no database at all" * 100)
    with pytest.raises(OSError, match="not a database"):
        read_verdicts(path, RUN, DOMAIN)
    assert path.exists()


@contextmanager
def somebody_else() -> Iterator[Path]:
    """A folder that others may look into, and a user who may write nothing there."""
    with tempfile.TemporaryDirectory() as name:
        folder, root = Path(name), os.geteuid() == 0
        try:
            yield folder
        finally:
            if root:
                os.seteuid(0)
            folder.chmod(0o700)


def leave(folder: Path) -> None:
    """From here on this process is somebody else."""
    folder.chmod(0o555)
    if os.geteuid() == 0:
        os.seteuid(NOBODY)


def test_who_may_not_write_reads_the_file_of_a_node_that_is_not_running() -> None:
    with somebody_else() as folder:
        path = folder / "verdicts.sqlite"
        with closing(VerdictStore(path, RUN, DOMAIN)) as store:
            store.add(verdict(1, Finding.FALSE))
        leave(folder)
        assert [one.finding for one in read_verdicts(path, RUN, DOMAIN)] == [Finding.FALSE]
        assert os.listdir(folder) == [path.name]


@pytest.mark.parametrize("spoil", [lambda path: path.chmod(0), lambda path: path.write_bytes(b"no database" * 100)])
def test_verdicts_that_cannot_be_read_cost_nobody_those_of_others(spoil: Callable[[Path], object]) -> None:
    said = list[str]()
    with somebody_else() as folder:
        paths = [DataDir(folder / name).state_of(RUN) / verdict_store.FILE for name in ("bad", "good")]
        for number, path in enumerate(paths):
            with closing(VerdictStore(path, RUN, DOMAIN)) as store:
                store.add(verdict(number, Finding.FALSE))
        spoil(paths[0])
        leave(folder)
        found = verdicts_beside([folder / name / "blobs" for name in ("bad", "good")], RUN, DOMAIN, said.append)
    assert [one.report.round for one in found] == [1]
    assert len(said) == 1 and str(paths[0]) in said[0]


def test_a_row_that_the_disk_changed_is_nobodys_verdict(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.sqlite"
    store = VerdictStore(path, RUN, DOMAIN)
    store.add(verdict(1, Finding.HONEST))
    with sqlite3.connect(path) as db:
        db.execute("UPDATE verdicts SET signature = ?", (bytes(65),))
    assert store.since(0) == []
    store.close()
