"""What `doctor` finds: by pretended machines, and on a real chain."""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Self

import pytest

from dlx.ground import durable
from dlx.ledger.client import LedgerClient
from dlx.ledger.errors import LedgerError, LedgerUnavailable, WrongLedger
from dlx.ledger.rpc.headers import Header
from dlx.ledger.typed import Domain
from dlx.ledger.view.run_view import RunView
from dlx.node.devnet.devnet import draft as devnet_draft
from dlx.node.home.config import load
from dlx.node.home.datadir import DataDir
from dlx.node.home.diagnostics import FAIL, PASS, WARN, Diagnosis
from dlx.node.home.errors import UsageFailure
from dlx.node.home.program import program
from dlx.node.home.settings import Settings
from dlx.node.runs import health, reach
from dlx.p2p import pcp, upnp
from dlx.p2p.pcp import Gateway
from dlx.p2p.upnp import Router, RouterError
from dlx.training.recipe.draft import complete, draft_from_toml
from dlx.training.recipe.recipe import BlobRef, WeightsRef
from tests.node.command import dlx, pasted
from tests.patience import PATIENCE

GWEI = 10**9
FOLDER = DataDir(Path("/nowhere"))


@pytest.fixture
def folder(tmp_path: Path) -> DataDir:
    dlx("init", "--datadir", tmp_path, "--insecure-devnet")
    return DataDir(tmp_path)


def verdicts(folder: DataDir, settings: Settings | None = None) -> dict[str, str]:
    return {one.check: one.verdict for one in health.quick(folder, settings or Settings())}


def test_a_folder_that_was_made_is_well_and_a_key_that_others_can_read_is_not(folder: DataDir) -> None:
    assert set(verdicts(folder).values()) == {PASS}
    folder.node_key.chmod(0o644)
    (wrong,) = (one for one in health.quick(folder, Settings()) if one.verdict == FAIL)
    assert wrong.check == "keys" and wrong.mend == f"chmod 600 {folder.node_key}"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_what_another_user_left_in_the_folder_is_given_back(folder: DataDir) -> None:
    assert verdicts(folder)["owner"] == PASS
    for name in ("blobs/a", "state/b"):
        (folder.root / name).touch()
        os.chown(folder.root / name, 65534, -1)
    (wrong,) = (one for one in health.quick(folder, Settings()) if one.verdict == FAIL)
    assert wrong.check == "owner" and "and 1 more" in wrong.text
    assert wrong.mend == f"sudo chown -R root {folder.root}"
    subprocess.run(wrong.mend.removeprefix("sudo "), shell=True, check=True)
    assert verdicts(folder)["owner"] == PASS
    subprocess.run(["chown", "-R", "65534", folder.root], check=True)
    assert verdicts(folder)["owner"] == WARN, "what root writes there is root's"


def test_one_command_mends_all_keys_that_others_can_read(tmp_path: Path) -> None:
    folder = DataDir(tmp_path / "my node")
    dlx("init", "--datadir", folder.root, "--insecure-devnet")
    for file in (*folder.keystore.iterdir(), folder.node_key):
        file.chmod(0o644)
    (wrong,) = (one for one in health.quick(folder, Settings()) if one.verdict == FAIL)
    assert "and 2 more" in wrong.text
    subprocess.run(["sh", "-c", wrong.mend], check=True, timeout=PATIENCE)
    assert set(verdicts(folder).values()) == {PASS}


def test_what_a_setting_mends_is_a_command_that_can_be_run(folder: DataDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "cores", lambda: 2)
    (wrong,) = (one for one in health.quick(folder, Settings(threads=3)) if one.verdict == WARN)
    assert wrong.mend == f"{program()} config set threads 2 --datadir {folder.root}"
    dlx(*wrong.mend.split()[1:])
    assert "threads = 2" in folder.config.read_text()


def test_a_chain_node_of_another_chain_is_no_silent_one() -> None:
    def asked(error: LedgerError) -> Diagnosis:
        (found,) = health.endpoints(Client(FailingNode(error)), FOLDER, Settings())
        return found

    assert "config set chain_id" in asked(WrongLedger("on chain 5")).mend
    assert "start `chain`" in asked(LedgerUnavailable("silent")).mend


def test_a_stage_that_the_run_has_not_is_wrong_usage(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(devnet_draft(1, 1, 2).replace("text/*.py", "run.toml"))
    draft, genesis = draft_from_toml(tmp_path / "run.toml"), WeightsRef("ab" * 32, 1000, "cd" * 32)
    manifest = complete(draft, [genesis] * 2, BlobRef("ab" * 32, 1000))
    view = RunView(bytes(32), Domain(31337, "0x" + "11" * 20))
    with pytest.raises(UsageFailure, match="--stage 5: the run has stages 0 to 1"):
        health.machine(FOLDER, Settings(), manifest, view, 5)


def test_a_gpu_that_cannot_be_used_is_said_without_chain_or_run(
    folder: DataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.mps.is_available", lambda: False)
    monkeypatch.setattr("dlx.training.models.placement.unused_gpu", lambda: "torch cannot use the GPU")

    def found(*options: str) -> dict[str, str]:
        said = json.loads(dlx("doctor", "--datadir", folder.root, *options, "--json", code=1).stdout)["findings"]
        assert said[-1]["check"] == "ledger" and said[-1]["said"] == "no ledger is set"
        (device,) = (one for one in said if one["check"] == "device")
        return device

    automatic = found()
    assert automatic["verdict"] == WARN and "torch cannot use the GPU" in automatic["said"]
    assert found("--device", "cpu")["verdict"] == PASS
    absent = found("--device", "cuda:99")
    assert absent["verdict"] == FAIL and "cuda:99" in absent["said"]
    dlx(*pasted(f"mend: {absent['mend']}"))
    assert 'device = "auto"' in folder.config.read_text()


def test_a_folder_without_keys_names_the_command_that_makes_them(tmp_path: Path) -> None:
    empty = DataDir(tmp_path / "none")
    (wrong,) = (one for one in health.quick(empty, Settings()) if one.verdict == FAIL)
    assert wrong.mend == f"{program()} init --password-file FILE --datadir {empty.root}"


def test_a_full_disk_and_more_threads_than_cores_are_found(folder: DataDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health.shutil, "disk_usage", lambda place: SimpleNamespace(free=10**9))
    monkeypatch.setattr(health, "cores", lambda: 2)
    expected = {"versions": PASS, "folder": PASS, "owner": PASS, "keys": PASS, "disk": FAIL, "threads": WARN}
    assert verdicts(folder, Settings(threads=3)) == expected


def test_a_wrong_password_is_found(folder: DataDir, tmp_path: Path) -> None:
    found, account = health.keys(folder, Settings())
    assert found.verdict == PASS and account is not None
    (folder.keystore / "INSECURE-DEVNET").unlink()
    durable.write_bytes(tmp_path / "word", b"wrong\n", durable.SECRET)
    found, account = health.keys(folder, Settings(password_file=str(tmp_path / "word")))
    assert (found.verdict, account) == (FAIL, None)
    durable.write_bytes(tmp_path / "right", b"insecure-devnet\n", durable.SECRET)
    dlx(*pasted(f"mend: {found.mend}", FILE=tmp_path / "right"))
    found, account = health.keys(folder, load(folder, {}, {}))
    assert found.verdict == PASS and account is not None
    (keystore,) = folder.keystore.iterdir()
    keystore.write_text("{}")
    found, account = health.keys(folder, load(folder, {}, {}))
    assert (found.verdict, found.mend) == (FAIL, "restore the folder's keys from a backup")


def test_a_password_that_others_can_read_is_taken_from_them(folder: DataDir, tmp_path: Path) -> None:
    word = tmp_path / "word"
    (folder.keystore / "INSECURE-DEVNET").unlink()
    durable.write_bytes(word, b"insecure-devnet\n", durable.SECRET)
    word.chmod(0o644)
    found, account = health.keys(folder, Settings(password_file=str(word)))
    assert (found.verdict, found.mend, account) == (FAIL, f"chmod 600 {word}", None)
    subprocess.run(["sh", "-c", found.mend], check=True, timeout=PATIENCE)
    found, account = health.keys(folder, Settings(password_file=str(word)))
    assert found.verdict == PASS and account is not None


@pytest.mark.parametrize(("ahead", "verdict"), [(0, PASS), (40, PASS), (300, WARN), (-3, PASS), (-300, WARN)])
def test_a_clock_that_is_off_is_a_warning(ahead: float, verdict: str) -> None:
    assert health.clock(1_800_000_000 + ahead, 1_800_000_000).verdict == verdict


class FailingNode:
    """A chain node that does not say which chain it is on."""

    def __init__(self, error: LedgerError) -> None:
        self._error = error

    def with_patience(self, seconds: float) -> Self:
        return self

    def each(self) -> tuple[Self, ...]:
        return (self,)

    def chain_id(self) -> int:
        raise self._error


@dataclass(frozen=True)
class PricedNode:
    """A chain node where gas costs 10 gwei, unless it names no base fee."""

    version: str
    base_fee: int | None = 4 * GWEI
    name: str = "x"

    def head(self) -> Header:
        return Header(number=1, hash=bytes(32), parent=bytes(32), time=0, base_fee=self.base_fee)

    def call(self, method: str) -> str:
        return {"web3_clientVersion": self.version, "eth_maxPriorityFeePerGas": hex(2 * GWEI)}[method]


class Client(LedgerClient):
    """Of such a chain node, where who asks has `balance` wei."""

    def __init__(self, node: FailingNode | PricedNode, balance: int = 0) -> None:
        super().__init__("http://127.0.0.1:9", "0x" + "11" * 20)
        self.rpc, self._balance = node, balance

    def balance(self, account: str) -> int:
        if self._balance < 0:
            raise LedgerUnavailable("silent")
        return self._balance


@pytest.mark.parametrize(
    ("balance", "version", "verdict"),
    [
        (0, "geth", FAIL),
        (10**16, "geth", FAIL),  # 1.5 million gas at the fee cap is 15
        (10**17, "geth", WARN),
        (10**20, "geth", PASS),
        (0, "dlx-chain/1", PASS),
        (-1, "geth", FAIL),
    ],
)
def test_funds_are_compared_with_what_so_many_rounds_cost(balance: int, version: str, verdict: str) -> None:
    client = Client(PricedNode(version), balance)
    found = health.funds(client, FOLDER, Settings(chain_id=10), "0x" + "11" * 20, replicas=2, rounds=1000)
    assert found.verdict == verdict, found
    assert (found.mend == "") == (verdict == PASS)


@pytest.mark.parametrize(
    ("base_fee", "mend"), [(None, "config set rpc_url URL"), (10**6 * GWEI, "config set max_fee GWEI")]
)
def test_a_price_that_no_setting_bears_and_a_chain_without_one_have_different_mends(
    base_fee: int | None, mend: str
) -> None:
    client = Client(PricedNode("geth", base_fee), 10**18)
    found = health.funds(client, FOLDER, Settings(chain_id=10), "0x" + "11" * 20, replicas=2, rounds=1000)
    assert found.verdict == FAIL and mend in found.mend, found


def test_ports_that_a_peer_cannot_reach_are_a_warning_with_what_mends_it() -> None:
    assert reach._judged("203.0.113.7", {4650: True}, {"ip4", "ip6"}).verdict == PASS
    found = reach._judged("203.0.113.7", {4650: False, 4651: True}, {"ip4"})
    assert found.verdict == WARN and "4650" in found.text and "--announce" in found.mend


def test_it_is_said_where_others_are_told_addresses_of_one_family_only() -> None:
    for told, said in (({"ip4"}, "no address of IPv6"), ({"ip6"}, "no address of IPv4")):
        found = reach._judged("203.0.113.7", {4650: True}, told)
        assert found.verdict == PASS and found.text.endswith(said)
    for told in ({"ip4", "ip6"}, {"dns"}):
        assert "no address" not in reach._judged("203.0.113.7", {4650: True}, told).text


@pytest.mark.parametrize(
    ("by_pcp", "by_upnp", "verdict", "said"),
    [
        ("52.20.3.1", None, PASS, "192.168.1.1 can be asked to forward a port of 52.20.3.1 (PCP or NAT-PMP)"),
        ("", None, PASS, "192.168.1.1 can be asked to forward a port (PCP or NAT-PMP)"),
        ("100.64.1.2", None, WARN, "its provider, or a second router, has another"),
        (3, None, WARN, "192.168.1.1 does not say its own address: refused"),
        (3, "52.20.3.1", PASS, "(UPnP)"),
        (0, "52.20.3.1", PASS, "192.168.1.1 can be asked to forward a port of 52.20.3.1 (UPnP)"),
        (0, "100.64.1.2", WARN, "its provider, or a second router, has another"),
        (0, "", WARN, "192.168.1.1 does not say its own address: no answer"),
        (0, None, WARN, "none answers to PCP, NAT-PMP or UPnP"),
        (None, None, WARN, "no gateway is known that could be asked by PCP"),
    ],
)
def test_what_the_router_says_is_a_finding(
    monkeypatch: pytest.MonkeyPatch, by_pcp: str | int | None, by_upnp: str | None, verdict: str, said: str
) -> None:
    """It is asked to forward nothing. Who has a public address, or listens to itself alone, asks none."""

    def gateway(own: str) -> Gateway | None:
        assert own == "192.168.1.2"
        return None if by_pcp is None else Gateway("192.168.1.1", own, "")

    async def outside(gateway: Gateway) -> str:
        if not isinstance(by_pcp, str):
            raise RouterError("refused" if by_pcp else "no answer", by_pcp or 0)
        return by_pcp

    async def find(own: str) -> list[Router]:
        return [] if by_upnp is None else [Router("192.168.1.1", 80, "/", "", own)]

    async def external_address(router: Router) -> str:
        if not by_upnp:
            raise RouterError("no answer")
        return by_upnp

    monkeypatch.setattr(pcp, "gateway", gateway)
    monkeypatch.setattr(pcp, "external_address", outside)
    monkeypatch.setattr(upnp, "find", find)
    monkeypatch.setattr(upnp, "external_address", external_address)
    (found,) = reach.router(["/ip4/192.168.1.2/tcp/4650"])
    assert (found.check, found.verdict) == ("router", verdict) and said in found.text
    assert (found.mend == "") == (verdict == PASS)
    assert not reach.router(["/ip4/127.0.0.1/tcp/4650"]) and not reach.router(["/ip4/9.9.9.9/tcp/4650"])
