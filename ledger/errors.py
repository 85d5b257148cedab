"""What can go wrong between us and the ledger."""

from typing import Any

from dlx.ground.errors import DlxError


class LedgerError(DlxError):
    """The ledger did not do what was asked; the message says why in one line."""


class LedgerUnavailable(LedgerError):
    """The chain node gave no answer in time, or has not got so far yet. Nothing is wrong with what was asked: try again
    later."""


class AnswerTooLarge(LedgerUnavailable):
    """The chain node began to answer and was not done in time: ask for less at once."""


class WrongLedger(LedgerError):
    """The chain node answers for another chain, or other code is at the address: waiting does not help."""


class RpcError(LedgerError):
    """The chain node's own error answer."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(f"{message} (code {code})")
        self.code, self.message, self.data = code, message, data


class Reverted(LedgerError):
    """A contract refused: the custom error's name and arguments."""

    def __init__(self, name: str, args: tuple[Any, ...] = ()) -> None:
        super().__init__(name, args)
        self.name, self.arguments = name, args

    def __str__(self) -> str:
        return f"the contract refused: {self.name}({', '.join(_show(a) for a in self.arguments)})"


def _show(value: Any) -> str:
    return "0x" + value.hex() if isinstance(value, bytes) else str(value)
