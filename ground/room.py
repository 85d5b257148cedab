"""How much room folders have under a quota and above a floor of free space, without measuring them each time."""

import os
import shutil
import threading
import time
from collections.abc import Sequence
from pathlib import Path

REFRESH = 30.0  # s that a measurement counts; others write there too


class Room:
    """`quota`: bytes that the files may take (None: any number). `floor`: bytes that stay free on the disk."""

    def __init__(self, folders: Sequence[Path], quota: int | None, floor: int) -> None:
        self._folders, self.quota, self.floor = folders, quota, floor
        self._lock = threading.Lock()
        self._used = self._free = 0
        self._measured = float("-inf")

    def __str__(self) -> str:
        return f"disk quota {'none' if self.quota is None else format(self.quota, ',')}, disk floor {self.floor:,}"

    @property
    def slack(self) -> int:
        """Bytes that are worth freeing beyond what is needed: looking for them takes long."""
        return (self.quota or self.floor) // 50

    def take(self, size: int, beside: int = 0) -> int:
        """Count `size` bytes as taken, and return 0; or the bytes that are too little for them. Of the disk's so many
        more are to be written `beside`, which are none of the quota's.

        What is not written after all is found out by the next measurement.
        """
        if self.quota is None and not self.floor:
            return 0
        if time.monotonic() - self._measured > REFRESH:
            self.measure()
        with self._lock:
            over = 0 if self.quota is None else self._used + size - self.quota
            under = self.floor + size + beside - self._free if self.floor else 0
            short = max(0, over, under)
            if not short:
                self._used, self._free = self._used + size, self._free - size - beside
            return short

    def give(self, size: int) -> None:
        """Count `size` bytes as free again."""
        with self._lock:
            self._used, self._free = self._used - size, self._free + size

    def measure(self) -> int:
        """Look at all files; the bytes that they take, with those that they still will."""
        used = unwritten = 0
        for folder in self._folders:
            for entry in os.scandir(folder):
                try:
                    found = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if entry.is_file(follow_symlinks=False) and not entry.name.startswith("."):  # no index, no draft
                    used += found.st_size
                    unwritten += max(0, found.st_size - found.st_blocks * 512)
        with self._lock:
            self._used, self._free = used, shutil.disk_usage(self._folders[0]).free - unwritten
            self._measured = time.monotonic()
        return used
