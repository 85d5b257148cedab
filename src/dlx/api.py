"""The API: a ledger, its runs, and what can be read, checked and fetched of each. docs/agent.md shows its use.

What is heavy is imported when a method needs it, so that `import dlx` takes no time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, cast

import msgspec

from dlx.node.audit.report import Report
from dlx.node.home.errors import UsageFailure
from dlx.node.home.extras import explained

if TYPE_CHECKING:
    from dlx.ledger.client import LedgerClient
    from dlx.ledger.view.run_view import RunView
    from dlx.node.audit.sources.places import Places
    from dlx.node.runs.find import RunSummary
    from dlx.node.runs.held_out import HeldOut
    from dlx.node.runs.leaderboard import AccountRow

Progress = Callable[[str], None]


class Round(TypedDict):
    """One round of a run's history. Lists have one entry for each stage that has sealed the round, in their order."""

    round: int  # as the ledger counts them, from 0; its seals made version `round + 1`
    time: int  # of the last seal's block, Unix seconds
    inner_steps: int | None  # that each counted contribution took; None: nothing was counted
    loss: float | None  # nats per token, the token-weighted mean of the last stage; None: not sealed yet, or empty
    held_out: float | None  # nats per token (bytes: per byte) of version `round + 1` on held-out samples, the lower
    # median of what its drawn evaluators said; None: not evaluated
    tokens: int  # counted in this round
    total_tokens: int  # of the run up to and including this round
    sealed: bool  # by every stage
    contributions: list[int]  # counted
    signers: list[int]
    weights: list[str]  # sha256 of the version that the seal made, 64 hex digits
    transactions: list[str]  # of the seals, 0x hex


class Account(TypedDict):
    """What the seals of a run count of one account, and what became of its drawn work. None: not known here."""

    account: str
    runs: int  # that counted any of its work
    tokens: int  # of the inner steps that counted, each at its own stage
    share: float  # its part of all accounts' tokens, 0 to 1
    steps: int  # inner steps that counted
    rounds: int  # that counted it
    first: int | None  # when a seal first counted it, Unix seconds; None: never
    last: int | None
    days: float  # from the first to the last
    drawn: int | None  # segments of its work, of the rounds whose draw is known
    honest: int | None  # of those, by what most checkers say of each
    withheld: int | None
    false: int | None
    convictions: int
    improvement: float | None  # nats of held-out loss that went with its work; None also over runs


def connect(
    rpc_url: str | Sequence[str],
    ledger: str,
    *,
    chain_id: int | None = None,
    blobs: Iterable[str | Path] = (),
    bootstrap: Iterable[str] = (),
) -> Ledger:
    """The ledger at an address ("0x" and 40 hex digits) of the chain behind a JSON-RPC endpoint, or behind
    several, of which the first that is well is asked.

    Its events are kept in `dlx-node` of the user's cache folder (XDG_CACHE_HOME), where that can be written; nothing
    else is.

    `chain_id` insists on a chain, else the endpoint says which it is. Blobs (weights, payloads) are looked for in the
    folders `blobs`, as files named by the hex of their sha256. Then they are looked for among the peers that the ledger
    names and those of `bootstrap`, multiaddrs with /p2p/... at the end.

    Raises LedgerUnavailable where the endpoint is silent, or has no code at the address (yet, if it still syncs).
    Raises DlxError for a URL or an address that cannot be, another chain, or contracts that are not those of this
    version.

    Examples:
        >>> connect(rpc_url, address)
        <dlx.Ledger 0x... on chain 31337>
        >>> connect(rpc_url, "the ledger")
        Traceback (most recent call last):
        ...
        dlx.node.home.errors.UsageFailure: ledger 'the ledger': expected an address of 0x and 40 hex digits
    """
    from dlx.node.home.values import wrong_account

    if wrong := wrong_account(ledger):
        raise UsageFailure(f"ledger {ledger!r}: {wrong}")
    from dlx.ledger.abi import checksum
    from dlx.ledger.client import LedgerClient
    from dlx.node.audit.sources.places import Places
    from dlx.node.home.ledgers import index_folder

    address, folder = checksum(bytes.fromhex(ledger[2:])), index_folder(None)
    client = LedgerClient(rpc_url, address, chain_id=chain_id, folder=folder)
    client.connect()
    return Ledger(client, Places(own=tuple(map(Path, blobs)), bootstrap=tuple(bootstrap)))


class Ledger:
    """One TrainingLedger contract; `connect` makes it. For one thread."""

    def __init__(self, client: LedgerClient, places: Places) -> None:
        self._client, self._places = client, places

    def __repr__(self) -> str:
        return f"<dlx.Ledger {self.address} on chain {self.chain_id}>"

    @property
    def chain_id(self) -> int:
        return self._client.chain_id

    @property
    def address(self) -> str:
        return self._client.ledger

    def runs(self) -> list[Run]:
        """Every run of the ledger, oldest first. Raises LedgerUnavailable.

        Examples:
            >>> [run.summary().name for run in ledger.runs()]
            ['guides']
        """
        return [Run(self._client, self._places, run) for run in self._client.runs()]

    def accounts(self) -> list[Account]:
        """Who did what, over all runs of the ledger; see `Run.accounts`. Anybody may make a run of accounts that are
        all their own: look at the runs before you believe sums. Raises LedgerUnavailable."""
        from dlx.node.audit.leaderboards import LeaderboardReader
        from dlx.node.runs.find import view_of
        from dlx.node.runs.leaderboard import over_runs

        with self._client.events() as index:
            reader = LeaderboardReader(self._client, index, self._places.own)
            boards = [reader.read(view_of(self._client, index, run)) for run in index.runs()]
            return _accounts(over_runs(boards).accounts)

    def run(self, id: str | None = None) -> Run:
        """The run of an id: 64 hex digits with or without 0x, or the first six or more of them; None where the ledger
        has a single run. Raises DlxError where no run, or more than one, is meant."""
        from dlx.node.runs.find import resolve

        with self._client.events() as index:
            return Run(self._client, self._places, resolve(index, id))


class Run:
    """One training run; `Ledger.run` and `Ledger.runs` make it. Every call reads the chain as it is then."""

    def __init__(self, client: LedgerClient, places: Places, run: bytes) -> None:
        from dlx.node.runs.find import RunReader

        self._client, self._places, self._run = client, places, run
        self._reader = RunReader(client, run)

    def __repr__(self) -> str:
        return f"<dlx.Run {self.id}>"

    @property
    def id(self) -> str:
        """0x and 64 hex digits."""
        return "0x" + self._run.hex()

    def summary(self) -> RunSummary:
        """What the run is and how far: `name`, `creator`, `manifest`, `rounds`, `sealed_rounds`, `stages`, `members`,
        `state` (where the plan adapts, only the manifest's blob says when it ends). Raises LedgerUnavailable.

        Examples:
            >>> summary = run.summary()
            >>> summary.name, summary.sealed_rounds, summary.rounds, summary.stages
            ('guides', 2, 2, 2)
        """
        from dlx.node.runs.find import summary

        return summary(self._view(), self._places.own)

    def history(self) -> list[Round]:
        """One row for each round that some stage has sealed, oldest first, from the chain's events alone. No blob is
        needed, but for `held_out` that of the run's manifest. `pandas.DataFrame(run.history())`
        makes a table of it. Raises LedgerUnavailable.

        Examples:
            >>> [(row["round"], row["loss"], row["sealed"]) for row in run.history()]
            [(0, 5.5, True), (1, 5.2, True)]
        """
        from dlx.node.runs.history import history

        view = self._view()
        said = self._held_out(view) if view.evaluations else {}
        return [
            Round(
                round=row.round,
                time=row.time,
                inner_steps=row.inner_steps,
                loss=row.loss,
                held_out=row.held_out,
                tokens=row.tokens,
                total_tokens=row.total_tokens,
                sealed=row.sealed,
                contributions=[stage.contributions for stage in row.stages],
                signers=[stage.signers for stage in row.stages],
                weights=[stage.weights for stage in row.stages],
                transactions=[stage.transaction for stage in row.stages],
            )
            for row in history(self._reader.index, view, held_out=said).rounds
        ]

    def accounts(self) -> list[Account]:
        """Who did what in the run, those with most work first. Raises LedgerUnavailable.

        What was drawn is known where a folder of `blobs` has the run's manifest, and what checkers found where one is
        the blob folder of a node. Else it is None.

        Examples:
            >>> [(row["share"], row["rounds"], row["convictions"]) for row in run.accounts()]
            [(0.25, 2, 0), (0.25, 2, 0), (0.25, 2, 0), (0.25, 2, 0)]
        """
        from dlx.node.audit.leaderboards import LeaderboardReader

        view = self._view()
        return _accounts(LeaderboardReader(self._client, self._reader.index, self._places.own).read(view).accounts)

    def cite(self, round: int) -> str:
        """How a version (numbered as for `pull`) is cited: dlx:CHAIN/LEDGER/RUN@VERSION, which commands take as
        --run.

        Examples:
            >>> run.cite(2)
            'dlx:31337/0x.../0x...@2'
        """
        from dlx.node.home.citation import Citation

        return str(Citation(self._client.chain_id, self._client.ledger, self.id, round))

    def checkpoints(self, round: int) -> list[dict[str, str]]:
        """Who says where a version (numbered as for `pull`) can be had, oldest first: `account`, `uri`, `checkpoint`
        (the sha256 of the SHA256SUMS there, 64 hex digits). Anybody's word: what `pull` returns says which are true.
        Raises LedgerUnavailable."""
        from dlx.node.runs.listing import published

        return published(self._view(), round)

    def pull(
        self,
        out: str | Path,
        round: int | None = None,
        *,
        sealed: bool = False,
        merged: bool = False,
        progress: Progress = lambda line: None,
    ) -> dict[str, Any]:
        """Write a version of the model to the new or empty folder `out`, for `AutoModelForCausalLM.from_pretrained`.

        `round` is the version's number, the rounds that made it: 0 is the genesis, None the newest that every stage has
        sealed. Of a run whose manifest has an average it is the mean of that version and some before it, unless you ask
        for the `sealed` one. Of a run that trains an adapter it is a folder for `PeftModel.from_pretrained`, or the
        whole model, `merged`. Only bytes with the sealed hashes are used; versions that nobody keeps are recomputed
        from the payloads. `progress` hears a line for each step. Returns what `out/provenance.json` says, with
        `checkpoint`, the sha256 of `out/SHA256SUMS`, and `published`: what `checkpoints` says, and whether it is the
        `same`. `scores` has what accounts say that it scored in tasks. The folder appears complete or not at all.

        Raises DlxError where the version is not sealed, `out` is in use, or a blob cannot be had; OSError.

        Examples:
            >>> pulled = run.pull("model", round=1)
            >>> pulled["version"], len(pulled["stages"]), len(pulled["model"])
            (1, 2, 64)
            >>> run.pull("model")
            Traceback (most recent call last):
            ...
            dlx.node.home.errors.UsageFailure: ...model already exists: name a new or an empty folder
        """
        with explained():
            from dlx.node.checkpoints.pull import pull_run
            from dlx.training.models.model_files import Form

            where, averaged = Path(out).absolute(), False if sealed else None
            how = progress, progress, averaged, (), Form(merged=merged)
            return pull_run(self._client, self._view(), round, where, self._places, *how)

    def audit(self, *, head: str | None = None, progress: Progress = lambda line: None) -> Report:
        """Recount every seal from the chain's events, and replay every outer step bit for bit from the payloads.

        What is wrong with the run is no exception: `report.failed` says whether anything is, `report.established`
        whether all that was asked for holds. `report.verdict` says it of ledger, outer steps and training each.
        `report.checks` has every check that did not pass, `report.text()` and `report.json()` have all of it. It takes
        room for three versions of each stage in the folder for temporary files.

        `head` names a block whose hash you trust, "BLOCK:0xHASH": all that is used of the chain is then proven to it,
        else the chain node is believed. Raises LedgerUnavailable, UsageFailure, DlxError, OSError.

        Examples:
            >>> report = run.audit()
            >>> report.established, str(report.verdict)
            (True, 'ledger PASS, outer steps PASS, training: not checked')
        """
        with explained():
            from dlx.ledger.proof.history import parse_pin
            from dlx.node.audit.request import AuditRequest
            from dlx.node.audit.run import audit

            try:
                pin = None if head is None else parse_pin(head)
            except ValueError as error:
                raise UsageFailure(f"head: {error}") from None
            return audit(self._client, AuditRequest(self._run, self._places, pin), progress, progress)

    def load(self, round: int | None = None, *, folder: str | Path | None = None) -> Any:
        """The version as a `transformers` model (float32, on the CPU, in evaluation mode).

        Pulled into `folder`, which must be new or empty and is kept; without one into a temporary folder. Raises as
        `pull`.
        """
        with explained():
            import tempfile

            import torch  # noqa: F401  transformers does not say so clearly where it is missing
            from transformers import AutoModelForCausalLM

            with tempfile.TemporaryDirectory(prefix="dlx-model-") as temporary:
                out = Path(temporary) if folder is None else Path(folder)
                self.pull(out, round)
                return AutoModelForCausalLM.from_pretrained(out, local_files_only=True)

    def _held_out(self, view: RunView) -> Mapping[int, HeldOut]:
        """By version; only the manifest says who was drawn to say it."""
        from dlx.node.runs.find import read_manifest
        from dlx.node.runs.held_out import read_held_out

        manifest = read_manifest(view, self._places.own)
        return {} if manifest is None else read_held_out(self._client, view, manifest)

    def _view(self) -> RunView:
        return self._reader.view()


def _accounts(rows: Iterable[AccountRow]) -> list[Account]:
    return [cast(Account, msgspec.structs.asdict(row)) for row in rows]
