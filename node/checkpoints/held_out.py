"""What members had said of a pulled version's held-out loss, in a file beside it.

SHA256SUMS does not list the file: others may say more of the version later, and its weights are the same all the same.
"""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from dlx.ground import durable
from dlx.ground.constants import MICRO
from dlx.ledger.client import LedgerClient
from dlx.ledger.errors import LedgerError
from dlx.ledger.view.run_view import RunView
from dlx.node.home.diagnostics import FAIL, PASS, Diagnosis
from dlx.node.runs.held_out import HeldOut, read_held_out
from dlx.node.runs.listing import HELD_OUT
from dlx.training.recipe.manifest import Manifest

_MAX_BYTES = 1 << 16


class Stated(Struct, frozen=True, forbid_unknown_fields=True):
    """Losses in nats, of the sealed version also where the folder has a mean."""

    version: Annotated[int, Meta(ge=1)]
    loss: float | None  # the lower median of what was said; None: nobody said anything
    per: Literal["token", "byte"]
    said: dict[str, float]  # drawn account -> loss
    missing: list[str]  # drawn accounts that had said nothing


def read_version(client: LedgerClient, view: RunView, manifest: Manifest, version: int) -> HeldOut | None:
    """None where the version is not evaluated, or the chain node does not say who was drawn for it."""
    try:
        return read_held_out(client, view, manifest, version).get(version)
    except LedgerError:
        return None


def write(folder: Path, record: HeldOut) -> Stated:
    """Raises OSError."""
    stated = Stated(record.version, record.loss, record.per, dict(record.said), list(record.missing))
    durable.write_bytes(folder / HELD_OUT, (json.dumps(msgspec.to_builtins(stated), indent=2) + "\n").encode())
    return stated


def check(folder: Path, view: RunView, version: int, again: str) -> Diagnosis | None:
    """Whether the ledger has what the file says; None without one. Who was drawn is what `audit` checks. `again`: the
    command that fetches the version anew."""
    path = folder / HELD_OUT
    if not path.exists():
        return None
    try:
        if not path.is_file() or path.stat().st_size > _MAX_BYTES:
            raise ValueError("no small file")
        stated = msgspec.json.decode(path.read_bytes(), type=Stated)
    except (OSError, ValueError, msgspec.DecodeError, RecursionError) as error:
        return Diagnosis("held-out", FAIL, f"{HELD_OUT} cannot be read: {error}", again)
    if stated.version != version:
        return Diagnosis("held-out", FAIL, f"{HELD_OUT} is of another version", again)
    for account, loss in stated.said.items():
        said = view.evaluation(account, version)
        if said is None or float(Fraction(said.sum, said.count) / MICRO) != loss:
            return Diagnosis("held-out", FAIL, f"the ledger does not have what {HELD_OUT} lets {account} say", again)
    losses = sorted(stated.said.values())
    if stated.loss != (losses[(len(losses) - 1) // 2] if losses else None):
        return Diagnosis("held-out", FAIL, f"{HELD_OUT} has another loss than the lower median of what was said", again)
    said_so = f"{len(losses)} account{'s'[: len(losses) != 1]} said on the ledger"
    return Diagnosis("held-out", PASS, f"{said_so} what {HELD_OUT} lets them say")
