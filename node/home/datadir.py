"""One node's folder on disk: where everything lies, who may read it, and who runs in it."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from dlx.ground import durable, machine
from dlx.ground.errors import Unsuited
from dlx.ground.machine import expand
from dlx.node.home import folder_lock
from dlx.node.home.errors import Failure
from dlx.node.home.folder_lock import FolderLock


@dataclass(frozen=True)
class DataDir:
    """The paths below one root. Nothing is created before `create()`."""

    root: Path

    @classmethod
    def locate(cls, flag: Path | None, network: str, environ: Mapping[str, str]) -> DataDir:
        """--datadir, else DLX_HOME, else ~/.dlx/<network>."""
        chosen = flag or environ.get("DLX_HOME") or Path("~/.dlx") / network
        return cls(Path(os.path.abspath(expand(chosen))))

    @property
    def config(self) -> Path:
        return self.root / "config.toml"

    @property
    def node_key(self) -> Path:
        return self.root / "node.key"

    @property
    def keystore(self) -> Path:
        return self.root / "keystore"

    @property
    def sites(self) -> Path:
        """Keys of sites that the folder's node may belong to; few have any."""
        return self.root / "sites"

    @property
    def blobs(self) -> Path:
        return self.root / "blobs"

    @property
    def stages(self) -> list[DataDir]:
        """The folders of the nodes of all stages, where a site has them in this one (`start --all-stages`)."""
        return [DataDir(path) for path in sorted(self.root.glob("stages/*")) if path.is_dir()]

    @property
    def blob_folders(self) -> list[Path]:
        """Where nodes of this folder keep blobs, as far as the folders exist: its own, a demo's nodes', a site's."""
        others = sorted(path for name in ("nodes", "stages") for path in self.root.glob(f"{name}/*/blobs"))
        return [path for path in (self.blobs, *others) if path.is_dir()]

    @property
    def state(self) -> Path:
        return self.root / "state"

    def state_of(self, run: bytes) -> Path:
        """What the folder keeps of one run: its stages, evidence, verdicts, evaluations."""
        return self.state / run.hex()[:16]

    @property
    def signed(self) -> Path:
        """What the folder's accounts have signed: see SlashingProtection."""
        return self.state / "signed.sqlite"

    @property
    def last_run(self) -> Path:
        """The id of the run that the folder's node trained last, in hex."""
        return self.state / "run"

    @property
    def invitations(self) -> Path:
        """By the run's id, the lines that `dlx-node join` took, and proofs that this account is in a run's list."""
        return self.state / "invitations"

    @property
    def paused(self) -> Path:
        """There as long as `dlx-node pause` holds."""
        return self.state / "paused.json"

    @property
    def forwardings(self) -> Path:
        """Which ports routers may forward to the folder's node."""
        return self.state / "forwardings.json"

    @property
    def outbox(self) -> Path:
        """Transactions on their way; whatever sends with the folder's account goes through it."""
        return self.state / "outbox"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def chain(self) -> Path:
        """The embedded chain's folder; only folders that serve or served one have it."""
        return self.root / "chain"

    @property
    def contracts(self) -> Path:
        """Where the embedded chain answers and what is deployed on it, written by `dlx-node chain`."""
        return self.chain / "contracts.json"

    @property
    def http_address(self) -> Path:
        """Where the running node's HTTP endpoint listens, written by the node itself."""
        return self.state / "http.json"

    @property
    def is_a_nodes(self) -> bool:
        """Whether something in it was made by `create`, `init`, `chain` or a node."""
        made = (self.config, self.node_key, self.keystore, self.blobs, self.state, self.chain)
        return any(path.exists() for path in made)

    def create(self) -> None:
        """Make the folders, readable by their owner only; existing ones are left as they are. Raises Failure, and
        Unsuited, before anything is made, where everybody could read them."""
        if not durable.keeps_modes(machine.nearest(self.root)):
            raise Unsuited(self.root, "without modes, on which everybody could read a secret")
        try:
            for folder in (self.root, self.keystore, self.blobs, self.state, self.logs):
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise Failure(f"cannot create the data folder {self.root}: {error.strerror}") from error

    def check_secrets(self) -> None:
        """Refuse key files that anybody but their owner can read or write."""
        kept = [path for folder in (self.keystore, self.sites) if folder.is_dir() for path in sorted(folder.iterdir())]
        check_private(*(path for path in (self.node_key, *kept) if path.exists()))

    def lock(self) -> AbstractContextManager[FolderLock]:
        """Hold the folder: at most one node runs in it. Raises Failure, Unsuited, OSError."""
        return folder_lock.hold(self._lock)

    @property
    def is_held(self) -> bool:
        """Whether a node of this machine runs in it. Raises Unsuited, OSError."""
        return folder_lock.is_held(self._lock)

    @property
    def _lock(self) -> Path:
        return self.root / "node.lock"


class NotPrivate(Failure):
    """Secrets that others may read. `mend` is how that is taken from them."""

    def __init__(self, paths: list[Path]) -> None:
        mode = stat.S_IMODE(paths[0].stat().st_mode)
        self.problem = f"{paths[0]} holds a secret but its mode is {mode:04o}"
        self.problem += f", and {len(paths) - 1} more" if len(paths) > 1 else ""
        if durable.keeps_modes(paths[0].parent):
            self.mend = shlex.join(["chmod", "600", *map(str, paths)])
            super().__init__(f"{self.problem}: run `{self.mend}`")
        else:
            self.mend = "move it to a file system that keeps modes: this one does not, so that chmod changes nothing"
            super().__init__(f"{self.problem}: {self.mend}")


def check_private(*paths: Path) -> None:
    """Raise NotPrivate unless only their owner has access to these files (mode 0600 or stricter)."""
    if wrong := [path for path in paths if stat.S_IMODE(path.stat().st_mode) & 0o077]:
        raise NotPrivate(wrong)
