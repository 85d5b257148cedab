"""Which process of a slot stands still, as the kernel tells it."""

import psutil

_STILL = {
    psutil.STATUS_STOPPED: "is stopped",
    psutil.STATUS_TRACING_STOP: "is stopped by a debugger",
    psutil.STATUS_DISK_SLEEP: "waits for a disk",
}


def stuck(pid: int) -> list[str]:
    """Of a training process and its ranks those that do not run, in words."""
    found = []
    try:
        root = psutil.Process(pid)
        processes = [root, *root.children(recursive=True)]
    except psutil.Error:
        return []
    for process in processes:
        try:
            if (why := _STILL.get(process.status())) is not None:
                rank = process.environ().get("RANK")
                found.append(f"process {process.pid}{'' if rank is None else f', rank {rank},'} {why}")
        except psutil.Error:  # it ended meanwhile
            continue
    return found
