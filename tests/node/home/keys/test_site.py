import os
import stat
from pathlib import Path

import pytest

from dlx.ledger.typed import Domain, SiteMember, recover
from dlx.node.home.datadir import DataDir
from dlx.node.home.errors import Failure, UsageFailure
from dlx.node.home.keys import site

ACCOUNT = "0x" + "11" * 20


def test_a_sites_key_is_its_operators_alone_and_the_same_on_every_machine(tmp_path: Path) -> None:
    here, there = DataDir(tmp_path), DataDir(tmp_path / "there")
    made = site.make(here, "lyon")
    assert stat.S_IMODE(site.key_file(here, "lyon").stat().st_mode) == 0o600
    there.sites.mkdir(parents=True)
    site.key_file(there, "lyon").write_bytes(site.key_file(here, "lyon").read_bytes())
    os.chmod(site.key_file(there, "lyon"), 0o600)
    again, domain, run = site.load(there, "lyon"), Domain(1, ACCOUNT), bytes(32)
    assert recover(SiteMember(run, ACCOUNT).digest(domain), again.named(domain, run, ACCOUNT)) == made.address
    secret = site.key_file(here, "lyon").read_text().strip()
    assert secret not in repr(made) and str(bytes.fromhex(secret)) not in repr(made)


def test_a_key_that_others_can_read_is_refused_and_a_second_one_not_made(tmp_path: Path) -> None:
    folder = DataDir(tmp_path)
    site.make(folder, "lyon")
    with pytest.raises(Failure, match="is there already"):
        site.make(folder, "lyon")
    os.chmod(site.key_file(folder, "lyon"), 0o640)
    for check in (folder.check_secrets, lambda: site.load(folder, "lyon")):
        with pytest.raises(Failure, match="chmod 600"):
            check()


def test_what_is_no_site_says_what_to_do(tmp_path: Path) -> None:
    folder = DataDir(tmp_path)
    with pytest.raises(Failure, match="copy it from a machine of the site, or make the first with"):
        site.load(folder, "lyon")
    for name in ("", "../x", "-lyon", "a" * 33):
        with pytest.raises(UsageFailure, match="expected 1 to 32 letters"):
            site.load(folder, name)
    site.make(folder, "lyon")
    site.key_file(folder, "lyon").write_text("00")
    with pytest.raises(Failure, match="is damaged"):
        site.load(folder, "lyon")
