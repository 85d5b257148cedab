"""Signals that a process hears where it does not expect them."""

import ctypes
import os
import signal

import psutil

from tests.patience import until


def to_another_thread(process: int, number: signal.Signals) -> None:
    """Once the first thread of the process rests, sends a signal to another one, as the kernel does now and then where
    one comes while the process is stopped: after Ctrl-Z, say."""
    threads = psutil.Process(process).threads
    seen: list[float] = []

    def rests() -> bool:
        seen.append(next(one.user_time + one.system_time for one in threads() if one.id == process))
        return seen[-5:] == [seen[-1]] * 5

    until("its first thread rests", rests)
    other = next(one.id for one in threads() if one.id != process)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.tgkill(process, other, number):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
