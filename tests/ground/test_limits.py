import os
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from dlx.ground import limits

HERE = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


V2 = {"proc/self/cgroup": "0::/user.slice/node.scope\n"}
V1 = {"proc/self/cgroup": "5:cpu,cpuacct:/docker/77\n4:memory:/docker/77\n1:name=systemd:/docker/77\n"}
GROUP, ABOVE = "sys/fs/cgroup/user.slice/node.scope/", "sys/fs/cgroup/user.slice/"
# What the container of such a group sees: its own files at the root, and the path of the host, or none.
INSIDE = "sys/fs/cgroup/"
V1_MEMORY = INSIDE + "memory/docker/77/memory."


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, HERE),
        (V2 | {GROUP + "cpu.max": "max 100000\n"}, HERE),
        (V2 | {GROUP + "cpu.max": "50000 100000\n"}, 1),
        (V2 | {GROUP + "cpu.max": "max 100000\n", ABOVE + "cpu.max": "100000 100000\n"}, 1),
        (V2 | {INSIDE + "cpu.max": "80000 100000\n"}, 1),
        ({"proc/self/cgroup": "0::/\n", INSIDE + "cpu.max": "100000 100000\n"}, 1),
        (V1 | {INSIDE + "cpu,cpuacct/cpu.cfs_quota_us": "-1\n", INSIDE + "cpu,cpuacct/cpu.cfs_period_us": "1\n"}, HERE),
        (V1 | {INSIDE + "cpu/cpu.cfs_quota_us": "100000\n", INSIDE + "cpu/cpu.cfs_period_us": "100000\n"}, 1),
        (V2 | {GROUP + "cpu.max": "100000 0\n"}, HERE),
        (V2 | {GROUP + "cpu.max": "\n"}, HERE),
        ({"proc/self/cgroup": "of a sandbox\n"}, HERE),
    ],
)
def test_cores_are_those_that_control_groups_leave(tmp_path: Path, files: dict[str, str], expected: int) -> None:
    assert limits.cores(machine(tmp_path, files)) == expected


def of_memory(limit: str, used: str, stat: str = "") -> dict[str, str]:
    names = (GROUP + "memory.max", GROUP + "memory.current", GROUP + "memory.stat")
    return V2 | dict(zip(names, (limit, used, stat), strict=True))


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (of_memory("4096", "1024"), 3072),
        (of_memory("4096", "4000", "anon 1000\nfile 3000\ninactive_file 2000\n"), 2096),
        (of_memory("4096", "8192"), 0),
        (V1 | {f"{V1_MEMORY}limit_in_bytes": "4096", f"{V1_MEMORY}usage_in_bytes": "96"}, 4000),
        (of_memory("max", "1024"), None),
        (of_memory(str(0x7FFFFFFFFFFFF000), "1024"), None),
        ({}, None),
    ],
)  # fmt: skip
def test_free_memory_is_what_control_groups_leave(
    tmp_path: Path, files: dict[str, str], expected: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = psutil.virtual_memory()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: now)
    found = limits.free_memory(machine(tmp_path, files))
    assert found == (now.available if expected is None else expected)


def test_what_is_here_can_be_read() -> None:
    assert 1 <= limits.cores() <= HERE and 0 < limits.free_memory() < 1 << 50
