"""The tutorials as a reader follows them: every command and every line of Python, on one network."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.e2e.devnets import as_in_a_terminal
from tests.patience import PATIENCE
from tests.ports import lasting_port

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"
SERVED = "127.0.0.1:4690"  # in the text; here another port, as this one may be taken
NOT_READY = 3  # exit code: "try again later"
_BLOCK = re.compile(r"^```(\w+)\n(?:# (\w+ terminal|run\.toml)\n)?(.*?)^```$", re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.timeout(1500)


class Block(NamedTuple):
    language: str
    title: str
    text: str


class Reader:
    """A person with a folder, a shell whose variables last, and terminals in which something goes on running."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._terminals = folder, list[tuple[str, subprocess.Popen[str]]]()
        self._environment = {key: value for key, value in os.environ.items() if not key.startswith("DLX_")}
        self._environment |= {"HOME": str(folder / "home"), "XDG_CACHE_HOME": str(folder / "cache")}
        self._environment["PATH"] = f"{Path(sys.executable).parent}:{self._environment['PATH']}"
        (folder / "home").mkdir()
        self._port = lasting_port()

    def follow(self, page: str) -> str:
        """Do what a page says; what its commands printed."""
        said, text = [], (TUTORIALS / page).read_text().replace(SERVED, f"127.0.0.1:{self._port}")
        for block in (Block(*found) for found in _BLOCK.findall(text)):
            if block.language == "toml":
                (self.folder / block.title).write_text(block.text)
            elif block.language == "python":
                said.append(self._run([sys.executable, "-c", block.text]))
            elif block.language == "sh" and block.title:
                self._open(block)
            elif block.language == "sh":
                # Later blocks know the variables of this one.
                said.append(self._run(["bash", "-euc", f"{block.text}\nexport -p > {self.folder}/variables"]))
                self._environment |= _exported(self.folder / "variables")
        return "".join(said)

    def leave(self) -> None:
        """Ctrl-C in every terminal, the last first; one that has ended by itself has failed."""
        running = [(title, process) for title, process in reversed(self._terminals) if process.poll() is None]
        for _, process in running:
            os.killpg(process.pid, signal.SIGINT)
        wrong = [title for title, process in running if process.wait(PATIENCE) not in (0, 130)]
        wrong += [title for title, process in self._terminals if (title, process) not in running]
        assert wrong == [], "".join(map(self._shown, wrong))

    def _open(self, block: Block) -> None:
        with (self.folder / f"{block.title}.log").open("w") as log:
            process = subprocess.Popen(
                ["bash", "-euc", f"exec {block.text}"], cwd=self.folder, env=self._environment, stdout=log,
                stderr=subprocess.STDOUT, text=True, preexec_fn=as_in_a_terminal, start_new_session=True,
            )  # fmt: skip
        self._terminals.append((block.title, process))
        if block.title == "First terminal":
            self._until_there(self.folder / "net" / "chain" / "contracts.json", process, block.title)

    def _until_there(self, path: Path, process: subprocess.Popen[str], title: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not path.exists():
            assert process.poll() is None and time.monotonic() < deadline, self._shown(title)
            time.sleep(0.1)

    def _run(self, command: list[str]) -> str:
        deadline = time.monotonic() + PATIENCE
        while True:
            done = subprocess.run(
                command, cwd=self.folder, env=self._environment, capture_output=True, text=True, timeout=2 * PATIENCE,
                check=False,
            )  # fmt: skip
            if done.returncode != NOT_READY or time.monotonic() > deadline:
                break
            time.sleep(0.5)
        terminals = "".join(self._shown(title) for title, _ in self._terminals)
        assert done.returncode == 0, f"{command[-1]}\n{done.stdout}{done.stderr}{terminals}"
        return done.stdout + done.stderr

    def _shown(self, title: str) -> str:
        lines = (self.folder / f"{title}.log").read_text().splitlines()[-25:]
        return "\n".join([f"--- {title}", *lines, ""])


def _exported(path: Path) -> dict[str, str]:
    return dict(re.findall(r'^declare -x (DLX_\w+)="(.*)"$', path.read_text(), re.MULTILINE))


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    one = Reader(tmp_path)
    yield one
    one.leave()


def test_the_tutorials_do_what_they_say(reader: Reader) -> None:
    joined = reader.follow("contributor.md")
    assert "mine=True" in joined and "tutorial" in joined
    audited = reader.follow("auditor.md")
    assert audited.count("ledger PASS, outer steps PASS") >= 4
    assert "not that chain" in audited and (reader.folder / "run.html").is_file()
    funded = reader.follow("funder.md")
    assert "rounds 320 to 639" in funded and "USDC" in funded and "nothing of this run's campaigns" in funded
    used = reader.follow("agent.md")
    assert "not what the run made" in used and "its files are not those" in used
    assert '"choices"' in used and "dlx:31337/0x" in used


def test_a_model_is_tuned_on_conversations(reader: Reader) -> None:
    said = reader.follow("finetune.md")
    assert "answer: " in said and '"choices"' in said and "nats before training" in said
    assert "segments replayed, all honest" in said
    before, after = (float(one) for one in re.findall(r"^held-out loss +([0-9.]+)", said, re.MULTILINE)[-2:])
    assert after < 0.8 * before
