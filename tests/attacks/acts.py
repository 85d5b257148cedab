"""What a liar did, noted where it lies: an attack that attacked nobody shows nothing.

Each of its processes appends lines to one file. A line is how far what it sends is from its honest work, as a part of
that, or null where only the honest work itself would tell.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.attacks.lies import Lie, Tensors

FILE = "DLX_TEST_ACTS"  # in the environment of a liar's processes
NAME = "acts.jsonl"  # in its data folder


class NeverLied(AssertionError):
    """A liar took part and did nothing but honest work."""


def note(distance: float | None = None) -> None:
    with Path(os.environ[FILE]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(distance) + "\n")


def read(folder: Path) -> list[float | None]:
    path = folder / NAME
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def prove(lie: Lie, acts: Mapping[str, Sequence[float | None]]) -> None:
    """By node of its liars, and what each did: raises NeverLied where one did not do what its lie says."""
    if lie.is_honest:
        return
    for name, noted in acts.items():
        if not noted:
            raise NeverLied(f"{lie.name}: {name} took part and never lied: let it play for more rounds")
        told = [one for one in noted if one is not None]
        if lie.differs and (not told or statistics.median(told) < lie.differs):
            found = f"{statistics.median(told):.3g}" if told else "nothing"
            raise NeverLied(f"{lie.name}: what {name} sent is {found} from its honest work, not {lie.differs:g}")


def distance(lied: Tensors, honest: Tensors, start: Tensors | None = None) -> float:
    """Between what is sent and honest work, as a part of how far that is from the start (None: zeros)."""
    far = sum(float((lied[name] - one).double().square().sum()) for name, one in honest.items())
    moved = ((one if start is None else one - start[name]) for name, one in honest.items())
    whole = sum(float(one.double().square().sum()) for one in moved)
    return (far / whole) ** 0.5 if whole else float(far > 0)
