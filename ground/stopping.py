"""The signals that ask a program to stop."""

import signal


def signals() -> tuple[signal.Signals, ...]:
    """Of Ctrl-C, of a service, and of a terminal that closes, unless the program was started to outlive it (nohup)."""
    asked = signal.SIGINT, signal.SIGTERM
    return asked if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (*asked, signal.SIGHUP)
