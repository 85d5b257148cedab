"""What accounts say that a version scored in tasks of lm-evaluation-harness: signed statements, each a public blob.

A statement is its account's word. The signature says whose it is and the ledger which weights it is of; nobody computes
it again. SHA256SUMS does not list the file of them beside a pulled version: others may say more later.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
import rfc8785
from msgspec import Meta, Struct

from dlx.ground import durable
from dlx.ground.blobs import write_blob
from dlx.ground.untrusted import decode_json
from dlx.ledger.abi import TypedError
from dlx.ledger.keys import SignatureError, account_of, recover, sign
from dlx.ledger.typed import Domain, Scores
from dlx.ledger.view.run_view import RunView
from dlx.node.audit.sources.blobs import BlobMissing, Blobs, Folder, Source
from dlx.node.home.diagnostics import FAIL, PASS, Diagnosis
from dlx.node.home.errors import Failure
from dlx.node.runs.listing import SCORES

MAX_BYTES = 1 << 16  # of a statement with its signature
_MOST = 64  # statements beside a version, of as many accounts
_TOLD = 8  # tasks on a line
_BEGIN = b'{"signature":"0x'

Standing = Literal["member", "creator", "former member", "no member"]  # who comes first
_Hash = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
_Name = Annotated[str, Meta(pattern=r"^[ -~]{1,128}\Z")]
_Count = Annotated[int, Meta(ge=0, lt=1 << 53)]


class Metric(Struct, frozen=True, forbid_unknown_fields=True):
    value: float | None  # None: not finite
    stderr: float | None  # None: it has none


class Task(Struct, frozen=True, forbid_unknown_fields=True):
    version: _Name | None
    samples: _Count | None  # None: a group of tasks
    metrics: dict[_Name, Metric]


class Statement(Struct, frozen=True, forbid_unknown_fields=True):
    """Of the sealed weights of `stages`, or the mean of the versions in `average`. `time`: Unix seconds by the
    account's clock."""

    account: Annotated[str, Meta(pattern=r"^0x[0-9a-fA-F]{40}\Z")]
    run: Annotated[str, Meta(pattern=r"^0x[0-9a-f]{64}\Z")]
    version: Annotated[int, Meta(ge=0, lt=1 << 32)]
    stages: Annotated[list[_Hash], Meta(min_length=1)]  # sha256 of each stage's weights
    average: list[_Count] | None
    model: _Hash  # sha256 of the model in one float32 file, model.safetensors
    harness: _Name  # version of lm_eval
    tasks: Annotated[dict[_Name, Task], Meta(min_length=1)]
    time: _Count


class Signed(Struct, frozen=True, forbid_unknown_fields=True):
    statement: Statement
    signature: Annotated[str, Meta(pattern=r"^0x[0-9a-f]{130}\Z")]

    def encode(self) -> bytes:
        """RFC 8785 JSON: the blob."""
        return rfc8785.dumps(msgspec.to_builtins(self))

    @property
    def name(self) -> str:
        """sha256 of the blob, in hex."""
        return hashlib.sha256(self.encode()).hexdigest()


class ScoresError(ValueError):
    """Bytes that are no statement, or one that its account has not signed, or that is of other weights."""


def publish(found: Mapping[str, Any], domain: Domain, key: bytes, time: int, blobs: Path) -> Signed:
    """Sign what `evaluate` found of tasks with the account's key (32 bytes), and write the blob to the folder `blobs`,
    whose node serves it. `time`: Unix seconds. Raises Failure for more than a statement can say, OSError."""
    tasks = {
        name: {
            "version": None if task["version"] is None else str(task["version"]),
            "samples": task["samples"],
            "metrics": {
                metric: {key: _finite(value) for key, value in one.items()} for metric, one in task["metrics"].items()
            },
        }
        for name, task in found["tasks"].items()
    }
    fields = {key: found[key] for key in ("run", "version", "model", "harness")} | {"tasks": tasks, "time": time}
    fields |= {"account": account_of(key), "stages": [stage["weights"] for stage in found["stages"]]}
    fields |= {"average": found["average"] and found["average"]["versions"]}
    try:
        statement = msgspec.convert(fields, Statement)
        signed = Signed(statement, "0x" + sign(_digest(statement, domain), key).hex())
        read(signed.encode(), domain)
    except (msgspec.ValidationError, ScoresError) as error:
        raise Failure(f"the tasks' results cannot be stated: {error}") from None
    write_blob(blobs, [signed.encode()])
    return signed


def read(data: bytes, domain: Domain) -> Signed:
    """A statement with its account's good signature; of what weights it is, `check` says. Raises ScoresError."""
    if len(data) > MAX_BYTES:
        raise ScoresError(f"more than {MAX_BYTES:,} bytes")
    try:
        signed = msgspec.convert(decode_json(data), Signed)
        if signed.encode() != data:
            raise ScoresError("no RFC 8785 JSON")
        signer = recover(_digest(signed.statement, domain), bytes.fromhex(signed.signature[2:]))
    except (ValueError, msgspec.MsgspecError, RecursionError, TypedError, SignatureError) as error:
        raise ScoresError(str(error)) from None
    if signer != signed.statement.account:
        raise ScoresError(f"{signed.statement.account} has not signed it")
    return signed


def check(said: Statement, view: RunView, average: Sequence[int] | None, model: str | None) -> None:
    """Whether it is of a version's weights on the ledger and of their merged file, which has the mean of the versions
    `average`. `model`: that file's sha256 (hex); None where it is not at hand, as beside an adapter. Raises
    ScoresError."""
    if said.stages != [view.weights(stage, said.version).hex() for stage in range(view.config.stages)]:
        raise ScoresError(f"{said.account} says it of other weights than the ledger has of version {said.version}")
    if (said.average, said.model) != (None if average is None else list(average), model or said.model):
        raise ScoresError(f"{said.account} says it of another model")


def gather(
    view: RunView, found: Mapping[str, Any], sources: Sequence[Source], named: Iterable[bytes], work: Path
) -> tuple[list[Signed], list[str]]:
    """What accounts say of a pulled version (`found`, see pull): the newest statement of each, members first, and what
    is wrong with others. Looks through folders, and asks all sources for blobs that are `named` (sha256)."""
    problems, blobs = list[str](), Blobs(sources, work)
    datas = [data for one in sources if isinstance(one, Folder) for data in one.beginning(_BEGIN, MAX_BYTES)]
    for digest in named:
        try:
            datas.append(blobs.get(digest, MAX_BYTES).read_bytes())
        except BlobMissing as missing:
            problems.append(f"scores {missing}")
    newest: dict[str, Signed] = {}
    for data in dict.fromkeys(datas):
        try:
            signed = read(data, view.domain)
            said = signed.statement
            if (said.run, said.version) != (found["run"], found["version"]):
                continue
            if (said.average is None) != (found["average"] is None):  # of the other of the two that may be pulled
                continue
            check(said, view, found["average"], found["model"] if found["merged"] or not found["base"] else None)
        except ScoresError as error:
            problems.append(f"scores {hashlib.sha256(data).hexdigest()[:16]} are not shown: {error}")
            continue
        kept = newest.get(said.account)
        if kept is None or (kept.statement.time, kept.name) < (said.time, signed.name):
            newest[said.account] = signed
    ordered = sorted(
        newest.values(), key=lambda one: (get_args(Standing).index(standing(view, one.statement.account)), one.name)
    )
    return ordered[:_MOST], problems


def write(folder: Path, statements: Sequence[Signed]) -> None:
    """Beside a version, a blob a line; nothing where there are none. Raises OSError."""
    if statements:
        durable.write_bytes(folder / SCORES, b"".join(one.encode() + b"\n" for one in statements))


def check_folder(
    folder: Path, view: RunView, version: int, average: Sequence[int] | None, model: str | None
) -> Iterator[Diagnosis]:
    """What the statements beside a version come to, whose `model` its provenance names (None: it has an
    adapter alone); nothing without any."""
    path, mend = folder / SCORES, f"remove {SCORES}"
    if not path.exists():
        return
    try:
        if not path.is_file() or path.stat().st_size > _MOST * (MAX_BYTES + 1):
            raise ValueError("no small file")
        lines = path.read_bytes().splitlines()
        if len(lines) > _MOST:
            raise ValueError(f"more than {_MOST} lines")
    except (OSError, ValueError) as error:
        yield Diagnosis("scores", FAIL, f"{SCORES} cannot be read: {error}", mend)
        return
    for number, line in enumerate(lines, 1):
        try:
            said = read(line, view.domain).statement
            if (said.run, said.version) != ("0x" + view.run.hex(), version):
                raise ScoresError("it is of another version")
            check(said, view, average, model)
        except ScoresError as error:
            yield Diagnosis("scores", FAIL, f"line {number} of {SCORES}: {error}", mend)
        else:
            yield Diagnosis("scores", PASS, told(said, view))


def standing(view: RunView, account: str) -> Standing:
    """What the account is to the run now."""
    if view.slot_of(account) is not None:
        return "member"
    if account == view.creator:
        return "creator"
    try:
        view.joined_at(account)
    except KeyError:
        return "no member"
    return "former member"


def described(signed: Signed, view: RunView) -> dict[str, Any]:
    """The statement as plain data, with the `blob`'s name, the account's `standing`, and `told`, all on one line."""
    said = signed.statement
    more = {"blob": signed.name, "standing": standing(view, said.account), "told": told(said, view)}
    return msgspec.to_builtins(said) | more


def told(said: Statement, view: RunView) -> str:
    """Who says what, on one line."""
    results = [f"{name} {_metrics(task)}" for name, task in said.tasks.items() if task.metrics]
    more = f" and {len(results) - _TOLD} more tasks" if len(results) > _TOLD else ""
    who = f"said by {said.account} ({standing(view, said.account)} of the run)"
    return f"{who}, lm_eval {said.harness}: {'; '.join(results[:_TOLD])}{more}"


def _metrics(task: Task) -> str:
    values = [f"{name} {'none' if one.value is None else f'{one.value:.4g}'}" for name, one in task.metrics.items()]
    of = "" if task.samples is None else f" ({task.samples:,} samples)"
    return ", ".join(values[:4]) + of


def _digest(statement: Statement, domain: Domain) -> bytes:
    """What the account signs."""
    content = hashlib.sha256(rfc8785.dumps(msgspec.to_builtins(statement))).digest()
    return Scores(bytes.fromhex(statement.run[2:]), statement.version, content).digest(domain)


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)
