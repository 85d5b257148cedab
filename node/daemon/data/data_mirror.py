"""All of a run's training data and first weights, fetched in the background and kept for others (`mirror_data`)."""

from collections.abc import Iterable

import trio

from dlx.ground.blobs import Kind
from dlx.node.daemon.context import RunContext
from dlx.node.daemon.data.public_data import PublicData
from dlx.node.daemon.supervisor import ReportHealthy
from dlx.node.home import logs

_BATCH = 64  # shards, at most 1 GiB
log = logs.get(__name__)


class DataMirror:
    """Of one run."""

    def __init__(self, context: RunContext) -> None:
        self._run, self._store = context.run, context.storage.blobs
        self._public = PublicData(context.storage.blobs, context.network.exchange)

    async def run(self, report_healthy: ReportHealthy) -> None:
        """Until all is here. Raises BlobError, OSError: what is here stays."""
        data, public = self._run.data, self._public
        await public.first_weights(self._run.manifest)
        await trio.to_thread.run_sync(self._keep, [blob.sha256 for blob in self._run.manifest.genesis])
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
