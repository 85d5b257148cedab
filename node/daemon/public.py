"""A run's public data, by hash, from whoever has it: manifest, data shards, first weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import trio

from dlx.ground.blobs import BlobStore, Kind
from dlx.ledger.view import RunView
from dlx.node.home import logs
from dlx.node.home.errors import Failure
from dlx.node.runs.fit import differences
from dlx.p2p.exchange import BlobExchange
from dlx.training.data import shards
from dlx.training.data.shards import DataManifest
from dlx.training.recipe.manifest import MAX_BYTES, Manifest, parse
from dlx.training.recipe.recipe import BlobRef

TRY_SECONDS = 30.0  # to fetch a blob; what came of it is kept for the next try
_AT_ONCE = 4
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

    async def everything(self, manifest: Manifest) -> DataManifest:
        """Have the data and the first weights, sound; what the data manifest says. Raises DataError."""
        named = manifest.data.manifest
        path = await self._fetch(_hash(named), min(named.size, shards.MAX_MANIFEST_BYTES))
        listed = shards.parse_data_manifest(path.read_bytes())
        await self._fetch_all([*listed.blobs(), *manifest.genesis])
        while damaged := await trio.to_thread.run_sync(shards.verify_shards, path, self.store.folder):
            for name in damaged:
                self.store.remove(bytes.fromhex(name))
            await self._fetch_all(listed.blobs())
        return listed

    async def _fetch_all(self, blobs: Sequence[BlobRef]) -> None:
        missing = [blob for blob in blobs if not self.store.has(_hash(blob))]
        if missing:
            log.info("fetching public blobs", count=len(missing), bytes=sum(blob.size for blob in missing))
        limit = trio.CapacityLimiter(_AT_ONCE)

        async def one(blob: BlobRef) -> None:
            async with limit:
                await self._fetch(_hash(blob), blob.size)

        async with trio.open_nursery() as nursery:
            for blob in missing:
                nursery.start_soon(one, blob)

    async def _fetch(self, name: bytes, size: int) -> Path:
        for _ in range(2):  # a damaged copy goes, and is had again
            path = await self.exchange.fetch(name, size, None, TRY_SECONDS)
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
    folder = Path(chosen).expanduser().resolve()
    if not manifest.data.private:
        raise Failure("this run allows no private data (data.private in its manifest): start without --private-data")
    if folder.is_relative_to(blobs.resolve()):
        raise Failure(f"{folder} is served to everybody: move the private data elsewhere")
    shards.check_private(folder, public)
    log.info("training on private data", folder=str(folder))
    return folder


def _hash(blob: BlobRef) -> bytes:
    return bytes.fromhex(blob.sha256)
