"""A run's public data, by hash, from whoever has it: manifest, data shards, and for mirrors the first weights."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import trio

from dlx.ground.blobs import BlobStore, Kind
from dlx.ground.errors import DlxError
from dlx.ground.machine import expand
from dlx.ledger.view.run_view import RunView
from dlx.node.daemon.context import RunContext
from dlx.node.daemon.supervisor import ReportHealthy
from dlx.node.home import logs
from dlx.node.home.errors import Failure
from dlx.node.runs.find import differences
from dlx.p2p.exchange import BlobContradiction, BlobExchange, Tree
from dlx.training.data import shards
from dlx.training.data.shards import DataError, DataManifest, Shard
from dlx.training.recipe.manifest import MAX_BYTES, Manifest, parse
from dlx.training.recipe.recipe import BlobRef, WeightsRef

TRY_SECONDS = 30.0  # to fetch a blob; what came of it is kept for the next try
_AT_ONCE = 4
_BATCH = 64  # shards that a mirror asks for together, at most 1 GiB
log = logs.get(__name__)


@dataclass(frozen=True)
class PublicData:
    """Fetches into `store`. Raises BlobError, OSError where something cannot be had now: ask again, and it goes on."""

    store: BlobStore
    exchange: BlobExchange

    async def manifest(self, view: RunView) -> Manifest:
        """The manifest that the ledger names. Raises Failure, ManifestError where no node can train it."""
        manifest = parse((await self._fetch(view.config.manifest, MAX_BYTES)).read_bytes())
        if wrong := differences(manifest, view):
            raise Failure(f"the run's manifest and its registration disagree, do not train it: {'; '.join(wrong)}")
        return manifest

    async def begin(self, manifest: Manifest) -> DataManifest:
        """Have what every member needs or keeps for others from the start, sound: the list of the data, its tokenizer
        and chat template, and how the model is used. What the list says. Raises DataError."""
        named = manifest.data.manifest
        path = await self._fetch(_hash(named), min(named.size, shards.MAX_MANIFEST_BYTES))
        listed = shards.parse_data_manifest(path.read_bytes())
        await self._have(listed.files(), self._fetch_one, "what made tokens of the data")
        if manifest.usage is not None:
            await self._have([manifest.usage], self._fetch_one, "how the model is used")
        return listed

    async def first_weights(self, manifest: Manifest) -> None:
        """Have those of all stages, sound, and those of an adapter's base. A member needs only its own stage's, as any
        version of it."""
        await self._weights([*manifest.genesis, *manifest.base], "the first weights of all stages")

    async def base(self, manifest: Manifest, stage: int) -> None:
        """Have the weights of a stage that an adapter leaves as they are, sound; nothing without an adapter."""
        await self._weights(manifest.base[stage : stage + 1], "the base of the stage's adapter")

    async def shards(self, listed: DataManifest, wanted: Sequence[Shard], kind: Kind, why: str) -> None:
        """Have these shards of the data, sound, in parts from all who have some; those that are fetched are stored as
        `kind`. Raises DataError for one that no copy would mend."""
        trees = {shard.sha256: _tree(shard) for shard in wanted}

        async def one(blob: BlobRef) -> None:
            for _ in range(2):  # a damaged copy goes, and is had again
                try:
                    path = await self.exchange.fetch(
                        _hash(blob), blob.size, None, TRY_SECONDS, kind, trees[blob.sha256]
                    )
                except BlobContradiction as error:
                    raise DataError(f"data {error}") from None
                problem = await trio.to_thread.run_sync(shards.problem_of, listed, blob, path)
                if problem is None:
                    return
                if not problem.again:
                    raise DataError(f"data blob {problem.blob}: {problem.reason}")
                self.store.remove(_hash(blob))
            raise OSError(f"this disk damages what is written to it: {path}")

        await self._have([BlobRef(shard.sha256, shard.size) for shard in wanted], one, why)

    async def _weights(self, files: Sequence[WeightsRef], why: str) -> None:
        """In parts from all who have some."""
        trees = {file.sha256: _tree(file) for file in files}

        async def one(blob: BlobRef) -> None:
            await self._fetch(_hash(blob), blob.size, trees[blob.sha256])

        await self._have(files, one, why)

    async def _have(self, blobs: Sequence[BlobRef], fetch: Callable[[BlobRef], Awaitable[None]], why: str) -> None:
        """Fetch those that are not here, a few at a time. What cannot be had is raised when all were tried."""
        missing = [blob for blob in dict.fromkeys(blobs) if not self.store.has(_hash(blob))]
        if not missing:
            return
        log.info("fetching public blobs", why=why, count=len(missing), bytes=sum(blob.size for blob in missing))
        limit, errors = trio.CapacityLimiter(_AT_ONCE), list[Exception]()

        async def one(blob: BlobRef) -> None:
            async with limit:
                try:
                    await fetch(blob)
                except (DlxError, OSError) as error:
                    errors.append(error)

        async with trio.open_nursery() as nursery:
            for blob in missing:
                nursery.start_soon(one, blob)
        if errors:
            raise errors[0]
        log.info("fetched public blobs", why=why, count=len(missing))

    async def _fetch_one(self, blob: BlobRef) -> None:
        await self._fetch(_hash(blob), blob.size)

    async def _fetch(self, name: bytes, size: int, tree: Tree | None = None) -> Path:
        for _ in range(2):  # a damaged copy goes, and is had again
            path = await self.exchange.fetch(name, size, None, TRY_SECONDS, tree=tree)
            if await trio.to_thread.run_sync(self._noted, name):
                return path
        raise OSError(f"this disk damages what is written to it: {path}")

    def _noted(self, name: bytes) -> bool:
        sound = self.store.sound(name)
        if sound:
            self.store.note(name, Kind.PUBLIC)
        return sound


def private_folder(chosen: str, blobs: Path, manifest: Manifest, public: DataManifest) -> Path | None:
    """The folder of private data that the user named (""; none), checked. Raises Failure and DataError."""
    if not chosen:
        return None
    folder = expand(chosen).resolve()
    if not manifest.data.private:
        raise Failure("this run allows no private data (data.private in its manifest): start without --private-data")
    if folder.is_relative_to(blobs.resolve()):
        raise Failure(f"{folder} is served to everybody: move the private data elsewhere")
    shards.check_private(folder, public)
    log.info("training on private data", folder=str(folder))
    return folder


class DataMirror:
    """Fetches all of a run's training data and first weights, and keeps them for others (`mirror_data`)."""

    def __init__(self, context: RunContext) -> None:
        self._run, self._store = context.run, context.storage.blobs
        self._public = PublicData(context.storage.blobs, context.network.exchange)

    async def run(self, report_healthy: ReportHealthy) -> None:
        """Until all is here. Raises BlobError, OSError: what is here stays."""
        data, public = self._run.data, self._public
        await public.first_weights(self._run.manifest)
        manifest = self._run.manifest
        await trio.to_thread.run_sync(self._keep, [blob.sha256 for blob in [*manifest.genesis, *manifest.base]])
        report_healthy()
        every = list(dict.fromkeys(data.train + data.heldout))
        for at in range(0, len(every), _BATCH):
            batch = every[at : at + _BATCH]
            await public.shards(data, batch, Kind.PUBLIC, f"all data, {100 * at // len(every)}% done")
            await trio.to_thread.run_sync(self._keep, [shard.sha256 for shard in batch])
            report_healthy()
        log.info("all training data and first weights are here", shards=len(every))

    def _keep(self, names: Iterable[str]) -> None:
        for name in names:  # some were fetched for rounds
            self._store.note(bytes.fromhex(name), Kind.PUBLIC)


def _tree(named: WeightsRef | Shard) -> Tree:
    return Tree(named.size, bytes.fromhex(named.root))


def _hash(blob: BlobRef) -> bytes:
    return bytes.fromhex(blob.sha256)
