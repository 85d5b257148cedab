"""An invited run with a bond, by commands alone: the creator's, the guest's and a stranger's folder."""

import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from dlx.ledger.bonds import TwoStatements
from dlx.ledger.client import LedgerClient
from dlx.ledger.deployment import deploy, fund
from dlx.ledger.errors import Reverted
from dlx.ledger.keys import account_of
from dlx.node.home import evidence, join_line
from dlx.node.home.config import load
from dlx.node.home.datadir import DataDir
from dlx.node.home.keys import identity
from dlx.node.home.keys import site as sites
from dlx.node.home.settings import Settings
from tests.ledger.chain_support import serving
from tests.ledger.ledger_run import config
from tests.node.command import dlx, pasted
from tests.node.made_statements import contribution

KEY = b"\x09" * 32
BOND = 10**15


@dataclass
class World:
    root: Path
    url: str
    ledger: str

    def folder(self, name: str) -> Path:
        """A folder whose account has funds."""
        made = self.root / name
        dlx("init", "--insecure-devnet", "--datadir", made)
        fund(self.url, self.account(name))
        return made

    def account(self, name: str) -> str:
        return identity.account_address(DataDir(self.root / name))

    def client(self, name: str) -> LedgerClient:
        secret = identity.load_account(DataDir(self.root / name), Settings()).secret
        return LedgerClient(self.url, self.ledger, secret, self.root / name / "outbox")

    def run(self, name: str, *command: object, code: int = 0) -> dict:
        """A command of a folder on the chain that is there, with --json."""
        place = ["--datadir", self.root / name, "--rpc-url", self.url, "--ledger", self.ledger]
        done = dlx(*command, *place, "--json", code=code)
        return json.loads(done.stdout) if done.stdout else {"error": done.stderr}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    root = tmp_path_factory.mktemp("world")
    with serving(root / "chain") as chain:
        fund(chain.url, account_of(KEY))
        made = World(root, chain.url, deploy(chain.url, KEY).ledger)
        for name in ("creator", "guest", "stranger", "steward"):
            made.folder(name)
        yield made


def created(world: World, **terms: object) -> bytes:
    client = world.client("creator")
    settings = config(stages=1, manifest=secrets.token_bytes(32), **terms)
    return client.create_run(settings, "a-run", [b"\1" * 32], [client.account])


def test_an_invited_run_takes_three_commands(world: World) -> None:
    run = created(world, invited=True)
    account = world.account("guest")
    made = world.run("creator", "run", "invite", account, "--run", run.hex())
    (one,) = made["lines"]
    assert one["guest"] == account
    joined = json.loads(dlx("join", one["line"], "--datadir", world.root / "guest", "--json").stdout)
    assert joined["run"] == "0x" + run.hex() and joined["invited"]
    folder = DataDir(world.root / "guest")
    settings = load(folder, {}, {})
    assert (settings.ledger, settings.rpc_url, settings.chain_id) == (world.ledger, (world.url,), 31337)
    assert folder.last_run.read_text() == run.hex()
    kept = join_line.invitation(folder.invitations, run)
    assert isinstance(kept, join_line.SignedInvitation)
    client = world.client("guest")
    client.admit(kept.invitation, kept.signature)
    assert client.is_admitted(run, account) and client.is_guest(run, account) and not client.is_revoked(run, account)
    assert world.run("creator", "run", "revoke", account, "--run", run.hex())["revoked"] == account
    assert not client.is_admitted(run, account) and client.is_revoked(run, account)


def test_a_node_that_runs_takes_the_line_of_its_own_run_only(world: World) -> None:
    run, other = created(world, invited=True), created(world)
    folder = DataDir(world.folder("running"))
    (one,) = world.run("creator", "run", "invite", world.account("running"), "--run", run.hex())["lines"]
    (open_one,) = world.run("creator", "run", "invite", "--run", other.hex())["lines"]
    with folder.lock():
        refused = dlx("join", one["line"], "--datadir", folder.root, code=1).stderr
        assert "is not of the line's run: stop it first" in refused and not folder.invitations.exists()
        folder.last_run.write_text(run.hex())  # as `start` does
        said = dlx("join", one["line"], "--datadir", folder.root).stdout
        takes = "its node, which runs, takes the invitation by itself"
        assert f"{takes}; start it again for rpc_url\n" in said and "dlx-node start" not in said
        assert f"{takes}\n" in dlx("join", one["line"], "--datadir", folder.root).stdout
        assert isinstance(join_line.invitation(folder.invitations, run), join_line.SignedInvitation)
        dlx("join", open_one["line"], "--datadir", folder.root, code=1)
    dlx("join", open_one["line"], "--datadir", folder.root)
    assert folder.last_run.read_text() == other.hex()


def test_a_site_in_one_machine_that_runs_is_started_again_for_its_line(world: World) -> None:
    run, folder = created(world, invited=True), DataDir(world.folder("site"))
    site = sites.make(folder, "lyon").address
    (one,) = world.run("creator", "run", "invite", site, "--site", "--run", run.hex())["lines"]
    stage = DataDir(folder.root / "stages" / "0")
    stage.create()
    folder.last_run.write_text(run.hex())  # as `start` does
    with folder.lock(), stage.lock():
        said = dlx("join", one["line"], "--datadir", folder.root).stdout
        assert "start it again: the nodes of its stages take it as they start" in said and "by itself" not in said
        assert f"yes, the site {site}" in said
        (own,) = world.run("creator", "run", "invite", world.account("site"), "--run", run.hex())["lines"]
        refused = dlx("join", own["line"], "--datadir", folder.root, code=1).stderr
        assert f"run in {folder.root}/stages: give each its own account's line there" in refused


def listing(path: Path, *accounts: str) -> Path:
    path.write_text("# the guests\n\n" + "".join(f"{one} # of a friend\n" for one in accounts))
    return path


def test_a_list_takes_one_transaction_and_its_accounts_come_by_the_file(world: World, tmp_path: Path) -> None:
    run = created(world, invited=True)
    creator, account = world.client("creator"), world.account("guest")
    file = listing(tmp_path / "guests.txt", world.account("steward"), account.lower(), account)
    before = creator.rpc.number("eth_getTransactionCount", creator.account, "latest")
    for _ in range(2):  # the same list costs nothing
        made = world.run("creator", "run", "invite", "--accounts", file, "--run", run.hex())
    assert creator.rpc.number("eth_getTransactionCount", creator.account, "latest") == before + 1
    assert made["accounts"] == 2 and made["root"] == "0x" + (creator.list_of(run) or b"").hex()
    (one,) = made["lines"]
    assert one["guest"] is None
    folder = DataDir(world.folder("listed"))
    missing = dlx("join", one["line"], "--accounts", file, "--datadir", folder.root, code=1).stderr
    assert f"{world.account('listed')}, the account of {folder.root}, is not in {file}" in missing
    newer = listing(tmp_path / "newer.txt", account, world.account("listed"))
    other = dlx("join", one["line"], "--accounts", newer, "--datadir", folder.root, code=1).stderr
    assert "is not the list that the run's creator committed last" in other
    assert not folder.invitations.exists() and not folder.last_run.exists()
    said = dlx("join", one["line"], "--accounts", file, "--datadir", world.root / "guest").stdout
    assert "yes, this account" in said
    world.run("creator", "run", "invite", "--accounts", newer, "--run", run.hex())
    joined = json.loads(dlx("join", one["line"], "--accounts", newer, "--datadir", folder.root, "--json").stdout)
    assert joined["invited"] and load(folder, {}, {}).rpc_url == (world.url,)
    for name, root in (("listed", folder), ("guest", DataDir(world.root / "guest"))):
        kept, client = join_line.invitation(root.invitations, run), world.client(name)
        assert isinstance(kept, join_line.Listed)
        if name == "guest":  # whose proof is of the list before
            with pytest.raises(Reverted, match="NotListed"):
                client.admit_listed(run, client.account, kept.proof)
            continue
        client.admit_listed(run, client.account, kept.proof)
        client.register(b"\x0b" * 32, [])
        assert client.join_run(run) == (0, 0)
    assert world.run("creator", "run", "revoke", "--list", "--run", run.hex())["revoked"] == "list"
    assert creator.list_of(run) is None and creator.is_admitted(run, world.account("listed"))
    assert "has no list" in world.run("creator", "run", "revoke", "--list", "--run", run.hex(), code=1)["error"]
    over = dlx("join", one["line"], "--accounts", newer, "--datadir", folder.root, code=1).stderr
    assert "the run has no list of accounts" in over


def test_a_list_that_cannot_be_is_refused(world: World, tmp_path: Path) -> None:
    run, guest = created(world, invited=True), world.account("guest")
    file = listing(tmp_path / "guests.txt", guest)
    for more in ((guest,), ("--site",), ("--expires", 30)):
        refused = world.run("creator", "run", "invite", *more, "--accounts", file, "--run", run.hex(), code=2)
        assert "leave ACCOUNT, --site and --expires out" in refused["error"]
    for verb in (("invite", "--accounts", file), ("revoke", "--list")):
        assert "commits its lists" in world.run("stranger", "run", *verb, "--run", run.hex(), code=1)["error"]
    for verb in (("revoke",), ("revoke", guest, "--list")):
        assert "an ACCOUNT, or --list" in world.run("creator", "run", *verb, "--run", run.hex(), code=2)["error"]
    opened = world.run("creator", "run", "invite", "--accounts", file, "--run", created(world).hex(), code=2)
    assert "it takes no list" in opened["error"]
    made = world.run("creator", "run", "invite", "--accounts", file, "--run", run.hex())["lines"][0]["line"]
    lacking = ["join", made, "--accounts", file, "--datadir", tmp_path / "none"]
    locked = dlx(*lacking, "--password-file", "word", code=1).stderr
    assert pasted(locked)[:3] == ["init", "--password-file", "FILE"] and not (tmp_path / "none").exists()
    for more in ((), ("--insecure-devnet",)):
        none = dlx(*lacking, *more, code=1).stderr
        assert "has no account: make it by" in none and not (tmp_path / "none").exists()
    elsewhere = replace(join_line.decode(made), chain_id=5).encode()
    for more, word in (((), ["--password-file", "FILE"]), (("--insecure-devnet",), ["--insecure-devnet"])):
        said = dlx("join", elsewhere, "--accounts", file, "--datadir", tmp_path / "none", *more, code=1).stderr
        assert pasted(said)[1 : 1 + len(word)] == word
    dlx(*pasted(none))  # as it stands
    assert "is not in" in dlx(*lacking, code=1).stderr
    (signed,) = world.run("creator", "run", "invite", guest, "--run", run.hex())["lines"]
    both = dlx("join", signed["line"], "--accounts", file, "--datadir", world.root / "guest", code=2).stderr
    assert "leave --accounts out" in both


def test_only_the_creator_and_its_stewards_invite(world: World) -> None:
    run = created(world, invited=True)
    guest = world.account("guest")
    for verb in ("invite", "revoke"):
        refused = world.run("steward", "run", verb, guest, "--run", run.hex(), code=1)
        assert "may not invite to the run" in refused["error"]
    refused = world.run("steward", "run", "steward", guest, "--run", run.hex(), code=1)
    assert "did not create the run" in refused["error"]
    world.run("creator", "run", "steward", world.account("steward"), "--run", run.hex())
    world.run("steward", "run", "invite", guest, "--run", run.hex())
    key = world.root / "steward.key"
    secret = identity.load_account(DataDir(world.root / "steward"), Settings()).secret
    key.write_text(secret.hex())
    key.chmod(0o600)
    world.run("stranger", "run", "invite", guest, "--run", run.hex(), "--steward-key", key)
    world.run("creator", "run", "steward", world.account("steward"), "--run", run.hex(), "--end")
    world.run("steward", "run", "invite", guest, "--run", run.hex(), code=1)


def test_an_open_run_has_one_line_that_makes_a_folder(world: World, tmp_path: Path) -> None:
    run = created(world)
    assert (
        "name no account"
        in world.run("creator", "run", "invite", world.account("guest"), "--run", run.hex(), code=2)["error"]
    )
    (one,) = world.run("creator", "run", "invite", "--run", run.hex())["lines"]
    folder = tmp_path / "new"
    middle = range(len(one["line"]) // 2, len(one["line"]))
    half = next(at for at in middle if one["line"][at] != "-")  # broken on the way, where no option seems to begin
    done = dlx("join", one["line"][:half], one["line"][half:], "--datadir", folder, "--insecure-devnet")
    assert f"dlx-node start --datadir {folder}" in done.stdout
    assert load(DataDir(folder), {}, {}).ledger == world.ledger
    again = dlx("join", one["line"], "--datadir", folder)
    assert "everybody is" in again.stdout
    dlx("join", one["line"], "--datadir", folder, "--password-file", "~/word", HOME=str(tmp_path))
    assert load(DataDir(folder), {}, {}).password_file == str(tmp_path / "word")


def test_a_line_for_another_account_or_ledger_is_refused(world: World, tmp_path: Path) -> None:
    run = created(world, invited=True)
    (one,) = world.run("creator", "run", "invite", world.account("guest"), "--run", run.hex())["lines"]
    refused = dlx("join", one["line"], "--datadir", world.root / "stranger", code=1)
    assert f"the line invites {world.account('guest')}" in refused.stderr
    assert "has no account" in dlx("join", one["line"], "--datadir", tmp_path / "none", code=1).stderr
    assert not (tmp_path / "none").exists()
    other = replace(join_line.decode(one["line"]), ledger=world.account("stranger"), invited=None)
    dlx("join", one["line"], "--datadir", world.root / "guest")
    refused = dlx("join", other.encode(), "--datadir", world.root / "guest", code=1)
    assert "name a new --datadir" in refused.stderr


def test_a_bond_is_paid_shown_lost_and_evidence_passed_over(world: World) -> None:
    run = created(world, bond=BOND)
    guest, client = world.account("guest"), world.client("guest")
    assert world.run("guest", "bond", "deposit", run.hex())["free_wei"] == BOND
    assert world.run("guest", "bond", "deposit", run.hex())["free_wei"] == BOND, "twice pays once"
    client.register(b"\x0a" * 32, [])
    client.join_run(run)
    assert world.run("guest", "bond", "show", run.hex())["locked_wei"] == BOND
    secret = identity.load_account(DataDir(world.root / "guest"), Settings()).secret
    first, second = (
        replace(contribution(run=run, payload=payload), account=guest).sign(client.domain, secret) for payload in (1, 2)
    )
    folder = DataDir(world.root / "stranger")
    place = folder.state / run.hex() / "stage-0" / "evidence"
    evidence.keep(place, guest, TwoStatements(first, second))
    evidence.keep(place, guest, TwoStatements(first, first))
    rows = world.run("stranger", "evidence", "list")["evidence"]
    assert sorted((row["account"], row["at_stake_wei"]) for row in rows) == [("", 0), (guest, BOND)]
    sent = world.run("stranger", "evidence", "submit")["evidence"]
    assert sorted(row["sent"] for row in sent) == ["passed over", "slashed"]
    assert world.run("guest", "bond", "show", run.hex())["slashed"]
    again = world.run("stranger", "evidence", "submit")["evidence"]
    assert {row["sent"] for row in again} == {"passed over"}
    assert "was slashed" in world.run("guest", "bond", "deposit", run.hex(), code=1)["error"]
