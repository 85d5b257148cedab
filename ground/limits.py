"""What the kernel lets this process use: cores and memory. In a container that is often less than the machine has.

Limits are those of its control groups and of all groups above them, of either version (man 7 cgroups). Where a
container hides which groups they are, its own are at the root of the file system that it sees. Other systems have none.
"""

import math
import os
from collections.abc import Iterator
from pathlib import Path

import psutil

_GROUPS = Path("sys/fs/cgroup")
_ENDLESS = 1 << 60  # bytes: the first version writes a number where there is no limit


def cores(root: Path = Path("/")) -> int:
    """As many as this process may use at a time, at least one: a quota of CPU time is rounded up to whole cores."""
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([here, *(math.ceil(quota) for quota in _quotas(root))]))


def free_memory(root: Path = Path("/")) -> int:
    """Bytes that this process can still take without swapping."""
    return max(0, min([psutil.virtual_memory().available, *_rooms(root)]))


def _quotas(root: Path) -> Iterator[float]:
    """Cores that a group's CPU time comes to."""
    for group in _groups(root, "cpu"):
        given = _words(group / "cpu.max") or [*_words(group / "cpu.cfs_quota_us"), *_words(group / "cpu.cfs_period_us")]
        if len(given) == 2 and all(word.isdigit() for word in given) and int(given[1]):  # else "max", or -1
            yield int(given[0]) / int(given[1])


def _rooms(root: Path) -> Iterator[int]:
    """Bytes that a group has left; what it has of files that can be read again counts as left."""
    for group in _groups(root, "memory"):
        limit = _words(group / "memory.max") or _words(group / "memory.limit_in_bytes")
        used = _words(group / "memory.current") or _words(group / "memory.usage_in_bytes")
        if limit and used and limit[0].isdigit() and used[0].isdigit() and int(limit[0]) < _ENDLESS:
            stat = _words(group / "memory.stat")
            numbers = dict(zip(stat[::2], stat[1::2], strict=False))
            cached = numbers.get("total_inactive_file") or numbers.get("inactive_file") or "0"
            yield int(limit[0]) - int(used[0]) + int(cached)


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """The folders of this process's groups and of those above, which may limit that."""
    for line in _lines(root / "proc/self/cgroup"):
        if line.count(":") < 2:  # not the kernel's
            continue
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        for name in (controllers, controller) if controllers else ("", "unified"):
            top = root / _GROUPS / name
            group = top / path.strip("/")
            yield from (one for one in (group, *group.parents) if one == top or top in one.parents)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except (OSError, UnicodeDecodeError):  # no such group here, or another system
        return []


def _words(path: Path) -> list[str]:
    return [word for line in _lines(path) for word in line.split()]
