"""JSON-RPC messages: requests as bytes, what answers mean, and the numbers and bytes in them. Pure functions."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec
from web3 import Web3

from dlx.ground.untrusted import printable
from dlx.ledger.errors import LedgerError, RpcError

Request = tuple[str, Sequence[Any]]  # a method and its params

STORED = 63  # bits of what SQLite holds: of blocks, times, indices and chain ids
LIMIT_EXCEEDED = -32005  # too many results, and of all but logs also too many requests
MAX_ANSWER = 64 << 20  # bytes
LONGEST_WAIT = 120.0  # seconds that a chain node may ask us to wait

_INTERNAL_ERROR = -32603
_REVERTED = 3  # the error code whose message is a contract's word
_LIMITED = (429, -32007)  # what providers answer, inside an HTTP 200, to those who ask too often
_RATE_LIMIT = re.compile(r"rate.?limit|request rate|rate exceeded|too many requests|requests? (count|limit)|"
                         r"compute units|throughput|throttl", re.IGNORECASE)  # fmt: skip


class NoAnswer(Exception):
    """No answer, or one that another try may improve."""


class Unusable(NoAnswer):
    """An answer that is none: where it comes again, a smaller one may be had."""


class SlowAnswer(NoAnswer):
    """The answer began and was not whole in time: a smaller one may be."""


class RateLimited(NoAnswer):
    """A refusal because we asked too often; `wait` has the seconds that the chain node named, if it did."""

    def __init__(self, message: str, wait: float | None) -> None:
        pause = f", and wants a pause of {wait:.0f} s" if wait else ""
        super().__init__(f"it limits the rate of requests{message and ': '}{message}{pause}")
        self.wait = wait


def encode(requests: Sequence[Request], first_id: int = 0) -> bytes:
    """The message for one request, or the batch for several, whose ids count from `first_id`. The params may be web3's
    own types."""
    messages = [
        {"jsonrpc": "2.0", "id": identity, "method": method, "params": params}
        for identity, (method, params) in enumerate(requests, first_id)
    ]
    text = Web3.to_json(messages[0] if len(messages) == 1 else messages)  # type: ignore[arg-type]
    return msgspec.json.format(text.encode(), indent=-1)  # without the spaces


def results(requests: Sequence[Request], answer: Any, wait: float | None = None, first_id: int = 0) -> list[Any]:
    """The result of each request; in a batch the RpcError that answers one stands in its place. `wait`: the seconds
    that the chain node wants us to wait.

    Raises RpcError where the one request, or the whole batch, is refused, NoAnswer where another try may help.
    """
    method = requests[0][0]
    if len(requests) == 1:
        return [_result(method, answer, wait)]
    if not isinstance(answer, list):
        _result(method, answer, wait)  # says why there is no batch
        raise Unusable("an answer that is no batch")
    by_id = {each.get("id"): each for each in answer if isinstance(each, dict)}
    ids = range(first_id, first_id + len(requests))
    if len(answer) != len(requests) or set(by_id) != set(ids):
        if is_refusal(answer):
            _result(method, next(each for each in answer if isinstance(each, dict) and each.get("error")), wait)
        raise Unusable("a batch of other answers than were asked for")
    return [_result_or_error(method, by_id[i], wait) for (method, _), i in zip(requests, ids, strict=True)]


def is_refusal(answer: Any) -> bool:
    """Whether a chain node says by JSON-RPC that it does not answer: one request, or something of a batch."""
    return any(
        isinstance(each, dict) and each.get("error") for each in (answer if isinstance(answer, list) else [answer])
    )


def refusal_of_batch(answer: Any) -> RpcError | None:
    """What a chain node says against a batch, whatever the status it says it with."""
    refusal = answer.get("error") if isinstance(answer, dict) else None
    message = printable(str(refusal.get("message")), 500) if isinstance(refusal, dict) else ""
    return RpcError(LIMIT_EXCEEDED, message) if "batch" in message.lower() else None


def may_be_answered_elsewhere(error: RpcError) -> bool:
    """Whether the chain node says that it failed itself, so that another may have the answer."""
    return error.code == _INTERNAL_ERROR


def quantity(text: Any, bits: int = 256) -> int:
    """A number of at most so many bits, from its hex digits. Raises TypeError, ValueError."""
    number = int(text, 16)
    if number < 0 or number.bit_length() > bits:
        raise ValueError(f"{text[:40]!r} is no number of at most {bits} bits")
    return number


def as_number(text: Any, bits: int = 256) -> int:
    """What a chain node answers as a quantity. Raises LedgerError."""
    try:
        return quantity(text, bits)
    except (TypeError, ValueError):
        raise LedgerError(f"not a number: {str(text)[:40]!r}") from None


def octets(text: Any, size: int = 0) -> bytes:
    """JSON-RPC bytes; 0: of any size. Raises ValueError, AttributeError."""
    found = bytes.fromhex(text.removeprefix("0x"))
    if size and len(found) != size:
        raise ValueError(f"{len(found)} bytes instead of {size}")
    return found


def _result(method: str, answer: Any, wait: float | None) -> Any:
    refusal = answer.get("error") if isinstance(answer, dict) else None
    if refusal is not None:
        raise _error(method, refusal if isinstance(refusal, dict) else {"message": str(refusal)}, wait)
    if not isinstance(answer, dict) or "result" not in answer:
        raise Unusable("an answer that is no JSON-RPC")
    return answer["result"]


def _result_or_error(method: str, answer: Any, wait: float | None) -> Any:
    try:
        return _result(method, answer, wait)
    except RpcError as error:
        return error


def _error(method: str, error: dict[str, Any], wait: float | None) -> Exception:
    code, data = error.get("code"), error.get("data")
    message = printable(" ".join(str(error.get("message", "")).split()), 500)
    limited = code in _LIMITED or (code == LIMIT_EXCEEDED and method != "eth_getLogs")
    if limited or (code != _REVERTED and _RATE_LIMIT.search(message)):
        return RateLimited(message, _named_wait(data) if wait is None else wait)
    return RpcError(code if isinstance(code, int) else 0, message, data)


def _named_wait(data: Any) -> float | None:
    """The seconds that Infura names inside its error."""
    rate = data.get("rate", data) if isinstance(data, dict) else None
    seconds = rate.get("backoff_seconds") if isinstance(rate, dict) else None
    return min(max(0.0, float(seconds)), LONGEST_WAIT) if isinstance(seconds, int | float) else None
