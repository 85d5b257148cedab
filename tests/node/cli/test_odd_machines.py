"""Odd machines and odd inputs: what is typed, the exit code, and the line that a person reads.

In a line `...` stands for anything, `{node}` for a folder that `init` made and `{tmp}` for the one that all is in.
"""

import errno
import fcntl
import json
import os
import pwd
import re
import shlex
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from dlx.ground import durable
from dlx.node.home.join_line import JoinLine
from dlx.node.home.program import program
from tests.history_builder import History
from tests.node.command import dlx
from tests.patience import PATIENCE

pytest_plugins = ["tests.history_builder"]
ROOT = Path(__file__).parents[3]
Patch = pytest.MonkeyPatch
NOWHERE = "--ledger 0x1111111111111111111111111111111111111111 --rpc-url http://127.0.0.1:9"

# ---- machines


def usual(machine: Patch) -> None:
    """As the test finds it."""


def homeless(machine: Patch) -> None:
    """A container: no HOME, and a user id without a name."""
    machine.delenv("HOME", raising=False)

    def unknown(user: object) -> Any:
        raise KeyError(user)

    machine.setattr(pwd, "getpwuid", unknown)


def empty_home(machine: Patch) -> None:
    """`HOME=` in a service's settings: the library would take / for it."""
    machine.setenv("HOME", "")


def without_locks(machine: Patch) -> None:
    """NFS whose lock daemon does not run."""

    def refuses(file: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    machine.setattr(fcntl, "flock", refuses)


def without_links(machine: Patch) -> None:
    """exFAT, SMB, BeeGFS: no hard links."""

    def refuses(source: object, target: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    machine.setattr(os, "link", refuses)


def without_modes(machine: Patch) -> None:
    """FAT, or WSL's /mnt/c: everybody reads everything, and chmod changes nothing."""
    opened = os.open
    machine.setattr(os, "open", lambda path, flags, mode=0o777: opened(path, flags, mode | 0o055))


def full_disk(machine: Patch) -> None:
    """What is written finds no room when it is to be kept."""

    def refuses(file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    machine.setattr(os, "fsync", refuses)


def network_disk(machine: Patch) -> None:
    """All that is mounted is a server's."""
    mount = namedtuple("mount", "fstype mountpoint")("nfs4", "/")
    machine.setattr(psutil, "disk_partitions", lambda all: [mount])


def narrow(machine: Patch) -> None:
    """A terminal of a phone."""
    machine.setenv("COLUMNS", "40")


NO_HOME = "dlx-node: ~/.dlx/devnet: the user has no home folder that is known (HOME is not set): ...DLX_HOME..."
NO_LOCKS = "dlx-node: {node}/node.lock is on a file system without locks ...: choose a place on a disk of this machine"
NO_MODES = (
    "dlx-node: {tmp}/new is on a file system without modes, on which everybody could read a secret ...: choose ..."
)


@pytest.mark.parametrize(
    ("machine", "typed", "code", "line"),
    [
        (homeless, "status", 2, NO_HOME),
        (homeless, "init --insecure-devnet", 2, NO_HOME),
        (homeless, "init --datadir {tmp}/new --insecure-devnet", 0, "folder       {tmp}/new"),
        (
            homeless,
            "status --datadir {node}",
            3,
            "dlx-node: no node runs in {node}: start it with `...",
        ),
        (homeless, "start --datadir ~/mine", 2, "dlx-node: ~/mine: the user has no home folder that is known ..."),
        (empty_home, "status", 2, NO_HOME),
        (empty_home, "config show network --datadir {node}", 0, "network  devnet  default"),
        (without_locks, f"start --datadir {{node}} {NOWHERE}", 1, NO_LOCKS),
        (without_locks, "status --datadir {node}", 1, NO_LOCKS),
        (without_links, "init --datadir {tmp}/new --insecure-devnet", 0, "folder       {tmp}/new"),
        (without_modes, "init --datadir {tmp}/new --insecure-devnet", 1, NO_MODES),
        (without_modes, "chain --datadir {tmp}/new --port 0", 1, "dlx-node: {tmp}/new... without modes, ..."),
        (
            full_disk,
            "init --datadir {tmp}/new --insecure-devnet",
            1,
            "dlx-node: {tmp}/new/...: No space left on device",
        ),
        (full_disk, "config set threads 2 --datadir {node}", 1, "dlx-node: {node}: No space left on device"),
        (
            full_disk,
            f"start --datadir {{node}} {NOWHERE}",
            1,
            "dlx-node: {node}/node.lock: No space left on device",
        ),
        (
            network_disk,
            "doctor --datadir {node}",
            1,
            "WARN  folder        {node} is on nfs4, another machine's disk: ...",
        ),
        (usual, "doctor --datadir {node}", 1, "PASS  folder        {node}, on a disk of this machine"),
        (narrow, "config show threads --datadir {node}", 0, "threads  auto   default"),
    ],
)
def test_a_machine_that_lacks_something(
    node: Path, tmp_path: Path, monkeypatch: Patch, machine: Callable[[Patch], None], typed: str, code: int, line: str
) -> None:
    before = sorted(node.rglob("*"))
    machine(monkeypatch)
    tell(typed, code, line, node, tmp_path)
    monkeypatch.undo()
    if code in (1, 2) and machine is not full_disk:
        assert not (tmp_path / "new").exists(), "nothing is left half made"
    assert {*before} <= {*node.rglob("*")}, "and nothing is lost"


# ---- inputs

NO_RUN = "is no run id: expected 64 hex digits, or the first 6 or more"


@pytest.mark.parametrize(
    ("typed", "code", "line"),
    [
        # what the parser does not take
        ("nonsense", 2, "dlx-node: no such command 'nonsense': see `{program} --help`"),
        ("run nonsense", 2, "dlx-node: no such command 'nonsense': see `{program} run --help`"),
        ("strat", 2, "dlx-node: no such command 'strat'. Did you mean 'start', 'status'?: see `{program} --help`"),
        ("status --nonsense", 2, "dlx-node: no such option: --nonsense: see `{program} status --help`"),
        ("run publish", 2, "dlx-node: missing option '--uri': see `{program} run publish --help`"),
        ("start --run", 2, "dlx-node: option '--run' requires an argument: see `{program} start --help`"),
        (
            "audit --level 7",
            2,
            "dlx-node: invalid value for '--level': expected at most 3: see ...",
        ),
        ("history --run 0x123456", 2, "dlx-node: no such option: --run: see `{program} history --help`"),
        # numbers and words
        ("config set thread 3 --datadir {node}", 2, "dlx-node: thread: unknown key (did you mean threads?); ..."),
        (
            "config set threads -3 --datadir {node}",
            2,
            "dlx-node: -3 looks like an option: if it is a value, `{program} config set threads ... -- -3`",
        ),
        (
            "config set --datadir {node} threads -- -3",
            2,
            "dlx-node: config set: threads: expected auto, or a number from 1 to 1024 (got '-3')",
        ),
        (
            "start --datadir {node} --up-limit -3",
            2,
            "dlx-node: command line: up_limit: expected a number of bytes, ...",
        ),
        # files that are not there, or are no files
        (
            "run plan --manifest /nope.toml",
            2,
            "dlx-node: --manifest /nope.toml: cannot be read (No such file or directory)",
        ),
        ("run plan --manifest {tmp}", 2, "dlx-node: --manifest {tmp}: cannot be read (Is a directory)"),
        ("evaluate {node} --chat /nope", 2, "dlx-node: --chat /nope: there is no such file"),
        ("compare {node} {node} --chat {tmp}", 2, "dlx-node: --chat {tmp}: there is no such file"),
        ("serve {node} --token-file /nope", 2, "dlx-node: --token-file /nope: there is no such file"),
        ("data check /nope", 2, "dlx-node: /nope: there is no such file or folder"),
        ("init --datadir {tmp}/new --password-file {tmp}", 2, "dlx-node: the password file {tmp} is a folder"),
        (
            "init --datadir {tmp}/new --password-file /nope",
            2,
            "dlx-node: the password file /nope is not there: run `(umask 077; cat > /nope)`, ...",
        ),
        (
            "init --datadir {tmp}/new --password-file {tmp}/open",
            1,
            "dlx-node: {tmp}/open holds a secret but its mode is 0644: run `chmod 600 {tmp}/open`",
        ),
        (
            "keys import /nope --datadir {tmp}/new --password-file {tmp}/word",
            2,
            "dlx-node: /nope is no file with a key",
        ),
        # runs and folders
        (f"history 0x12 {NOWHERE}", 2, f"dlx-node: '0x12' {NO_RUN}"),
        (f"pull zzzzzz --out {{tmp}}/new {NOWHERE}", 2, f"dlx-node: 'zzzzzz' {NO_RUN}"),
        (f"audit zzzzzz {NOWHERE}", 2, f"dlx-node: 'zzzzzz' {NO_RUN}"),
        (f"watch zzzzzz {NOWHERE}", 2, f"dlx-node: 'zzzzzz' {NO_RUN}"),
        (f"prove zzzzzz --round 1 --stage 0 {NOWHERE}", 2, f"dlx-node: 'zzzzzz' {NO_RUN}"),
        (f"evaluate nonsense {NOWHERE}", 2, f"dlx-node: nonsense: there is no such folder, and 'nonsense' {NO_RUN}"),
        (f"serve /nope {NOWHERE}", 2, f"dlx-node: /nope: there is no such folder, and '/nope' {NO_RUN}"),
        ("evaluate {node}", 2, "dlx-node: {node}: a folder is asked by --chat; held-out text and tasks are of a RUN"),
        # what is silent
        (
            f"run list --datadir {{node}} {NOWHERE}",
            3,
            "dlx-node: no answer from the chain node at 127.0.0.1:9: no connection; start `chain` there, ...",
        ),
        ("run list --datadir {node}", 2, "dlx-node: no ledger is set: give --ledger ADDRESS ..."),
        ("status --datadir {node}", 3, "dlx-node: no node runs in {node}: start it with `..."),
    ],
)
def test_an_input_that_cannot_be(node: Path, tmp_path: Path, typed: str, code: int, line: str) -> None:
    (tmp_path / "open").write_text("word\n")
    (tmp_path / "open").chmod(0o644)
    durable.write_bytes(tmp_path / "word", b"word\n", durable.SECRET)
    done = tell(typed, code, line, node, tmp_path)
    assert done.count("\n") == 1, "one line"
    assert not (tmp_path / "new").exists(), "nothing is made"


# ---- what a shell does with its streams


@pytest.mark.parametrize(
    ("shell", "code", "line"),
    [
        pytest.param(
            "dlx-node config show --datadir {node} > /dev/full",
            1,
            "dlx-node: standard output: No space left on device",
            marks=pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full"),
        ),
        ("dlx-node config show network --datadir {node} <&-", 0, "network  devnet  default"),
        ("dlx-node config show --datadir {node} >&-", 0, ""),
        (
            "dlx-node config set rpc_url - --datadir {node} <&-",
            2,
            "dlx-node: config set: rpc_url: expected 1 to 16 URLs ...",
        ),
        ("dlx-node config show --datadir {node} | head -n 1", 0, "KEY ... FROM..."),
        ("dlx-node run new {tmp}/x.toml < /dev/null", 2, "dlx-node: A file or folder with the text, ... nobody to ask"),
    ],
)
def test_a_stream_that_is_closed_or_full(node: Path, tmp_path: Path, shell: str, code: int, line: str) -> None:
    command = shell.replace("dlx-node", f"{shlex.quote(sys.executable)} -m dlx.node.cli.app", 1)
    given = {key: value for key, value in os.environ.items() if not key.startswith("DLX_")}
    done = subprocess.run(
        ["bash", "-c", command.format(node=node, tmp=tmp_path)], capture_output=True, text=True, cwd=ROOT, env=given
    )
    assert done.returncode == code, done.stderr
    assert_said(line, done.stdout + done.stderr, node, tmp_path)
    assert "Traceback" not in done.stderr


def test_wrong_usage_is_told_before_torch_is_loaded(node: Path) -> None:
    script = (
        "import sys, dlx.node.cli.app as app\n"
        "for typed in sys.argv[1:]:\n"
        "    try: app.main(typed.split())\n"
        "    except SystemExit as ended: assert ended.code == 2, typed\n"
        "    print(typed, [name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    typed = [
        *("run plan --manifest /nope", "run plan --manifest /nope --checkpoint all", "run create --manifest /nope"),
        *("serve /nope", "evaluate /nope", "compare /nope /nope --chat /nope", "audit --level 3 --device tpu"),
        *("watch --device tpu", "data prepare --source /nope --out x", "run new /nope/x", "start --device tpu"),
    ]
    done = subprocess.run(
        [sys.executable, "-c", script, *typed], capture_output=True, text=True, cwd=ROOT,
        env={**os.environ, "DLX_HOME": str(node)},
    )  # fmt: skip
    assert [line for line in done.stdout.splitlines() if not line.endswith("[]")] == [], done.stderr
    assert len(done.stdout.splitlines()) == len(typed), done.stderr


def test_what_reads_the_ledger_loads_neither_torch_nor_libp2p(honest_history: History, tmp_path: Path) -> None:
    """All in one process, in this order: what only asks for a line or for help does without web3, too."""
    history, folder = honest_history, ["--datadir", str(tmp_path / "node")]
    line = JoinLine(history.client().rpc.chain_id(), history.ledger, history.run, (history.rpc_url,), ())
    script = (
        "import json, sys, dlx.node.cli.app as app, dlx.node.cli.listening as listening\n"
        "listening.serve_until_stopped = lambda *served: None\n"
        "for typed in json.loads(sys.argv[1]):\n"
        "    heavy = ['torch', 'transformers', 'libp2p', 'matplotlib']\n"
        "    heavy += ['web3'] if typed[0] in ('join', 'start') else []\n"
        "    try: app.main(typed)\n"
        "    except SystemExit as ended: assert not ended.code, typed\n"
        "    print(typed[:2], [name for name in heavy if name in sys.modules], file=sys.stderr)"
    )
    run, page = f"0x{history.run.hex()}", str(tmp_path / "run.html")
    typed = [
        *(["start", "--help"], ["join", line.encode(), "--insecure-devnet", *folder], ["run", "list", *folder]),
        *(["run", "show", run, *folder], ["history", run, *folder], ["history", run, "--by", "account", *folder]),
        *(["history", run, "--html", page, *folder], ["web", "--bind", "127.0.0.1:0", *folder]),
    ]
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps(typed)], capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE
    )
    said = [line for line in done.stderr.splitlines() if line.startswith("[")]
    assert len(said) == len(typed) and all(line.endswith("[]") for line in said), done.stderr


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("odd") / "node"
    dlx("init", "--datadir", made, "--insecure-devnet")
    return made


def tell(typed: str, code: int, line: str, node: Path, tmp: Path) -> str:
    """Types it, looks for the line, and gives what came on stderr."""
    done = dlx(*shlex.split(typed.format(node=node, tmp=tmp)), code=code)
    assert_said(line, done.stdout + done.stderr, node, tmp)
    return done.stderr


def assert_said(line: str, said: str, node: Path, tmp: Path) -> None:
    wanted = re.escape(line.format(node=node, tmp=tmp, program=program())).replace(r"\.\.\.", ".*")
    assert not line or re.search(f"^{wanted} *$", said, re.MULTILINE), said
