"""What can go wrong between us and the ledger."""

from typing import Any

from dlx.ground.errors import DlxError
from dlx.ground.untrusted import printable


class LedgerError(DlxError):
    """The ledger did not do what was asked; the message says why in one line."""


class LedgerUnavailable(LedgerError):
    """The chain node gave no answer in time, or has not got so far yet. Nothing is wrong with what was asked: try again
    later."""


class AnswerTooLarge(LedgerUnavailable):
    """The chain node began to answer and was not done in time: ask for less at once."""


class AnswerUnusable(LedgerUnavailable):
    """The chain node answers, again and again, and with nothing that was asked for: ask for less at once."""


class RateExceeded(LedgerUnavailable):
    """The chain node limits the rate of requests, all the time that there was: ask for less at once, or later."""


class WrongLedger(LedgerError):
    """The chain node answers for another chain, or other code is at the address: waiting does not help."""

    exit_code = 2


class Contradiction(LedgerError):
    """What a chain node said cannot be true: it contradicts itself, or what was proven."""


class EventsLeftOut(Contradiction):
    """What chain nodes tell of old blocks is not all that the contracts say of themselves: name another."""

    exit_code = 3


class RpcError(LedgerError):
    """The chain node's own error answer."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(f"{message} (code {code})")
        self.code, self.message, self.data = code, message, data

    @property
    def revert(self) -> bytes | None:
        """What a contract said as it refused a call, empty where the chain node does not tell; None if it is no such
        error. Nodes put the data in different places."""
        data: Any = self.data.get("data") if isinstance(self.data, dict) else self.data
        try:
            return bytes.fromhex(data[2:]) if data.startswith("0x") else self._no_data
        except (AttributeError, ValueError):
            return self._no_data

    @property
    def _no_data(self) -> bytes | None:
        return b"" if "revert" in self.message.lower() else None


class Reverted(LedgerError):
    """A contract refused: the custom error's name and arguments."""

    def __init__(self, name: str, args: tuple[Any, ...] = ()) -> None:
        super().__init__(name, args)
        self.name, self.arguments = name, args

    def __str__(self) -> str:
        return f"the contract refused: {self.name}({', '.join(_show(a) for a in self.arguments)})"


def _show(value: Any) -> str:
    return "0x" + value.hex() if isinstance(value, bytes) else printable(str(value), 200)
