"""All of a run's training data, fetched in the background and kept for others (the setting `mirror_data`)."""

import trio

from dlx.ground.blobs import Kind
from dlx.node.daemon.context import RunContext
from dlx.node.daemon.public import PublicData
from dlx.node.daemon.supervisor import Well
from dlx.node.home import logs
from dlx.training.data.shards import Shard

_BATCH = 64  # shards, at most 1 GiB
log = logs.get(__name__)


class Mirror:
    """Of one run."""

    def __init__(self, context: RunContext) -> None:
        self._context = context

    async def run(self, well: Well) -> None:
        """Until all is here. Raises BlobError, OSError: what is here stays."""
        data, public = self._context.data, PublicData(self._context.store, self._context.exchange)
        every = list(dict.fromkeys(data.train + data.heldout))
        for at in range(0, len(every), _BATCH):
            batch = every[at : at + _BATCH]
            await public.shards(data, batch, Kind.PUBLIC, f"all data, {100 * at // len(every)}% done")
            await trio.to_thread.run_sync(self._keep, batch)
            well()
        log.info("all training data is here", shards=len(every))

    def _keep(self, batch: list[Shard]) -> None:
        for shard in batch:  # some were fetched for rounds
            self._context.store.note(bytes.fromhex(shard.sha256), Kind.PUBLIC)
