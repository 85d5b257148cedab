"""How numbers are written for people; exact ones are in --json and in the logs. And whether terminals get styles."""

import os
from collections.abc import Mapping
from typing import Literal

DAY = 86_400.0  # seconds
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def color_system() -> Literal["auto"] | None:
    """What a rich console is given: None where NO_COLOR asks for plain text, with neither colours nor bold."""
    return None if os.environ.get("NO_COLOR") else "auto"


def size(count: float) -> str:
    """Bytes: 0 B, 999 B, 1.0 kB, 464.8 MB. A kB is 1,000 B."""
    for unit in _UNITS:
        if abs(count) < 999.95 or unit == _UNITS[-1]:
            return f"{count:,.0f} B" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1000
    raise AssertionError(count)


def lasting(seconds: float) -> str:
    """As people say it: 3.4 ms, 12.3 s, 4.1 min, 7.6 h, 12.3 days, 2.4 years."""
    for unit, size, most in (("ms", 1e-3, 0.9995), ("s", 1.0, 300.0), ("min", 60.0, 7200.0), ("h", 3600.0, 172800.0)):
        if seconds < most:
            return f"{seconds / size:.3g} {unit}"
    days = seconds / DAY
    return f"{days:,.1f} days" if days < 730 else f"{days / 365.25:,.1f} years"


def bar(done: float, total: float) -> str:
    """How much of something is done: [#####...............] 25%."""
    part = min(1.0, max(0.0, done / total)) if total else 1.0
    filled = int(20 * part)
    return f"[{'#' * filled}{'.' * (20 - filled)}] {part:.0%}"


def counted(contributions: list[int], replicas: int) -> str:
    """How much of the replicas' work the seals of a round count, one number for each stage: 2 of 3 replicas, or
    1 to 2 of 3 replicas where stages differ."""
    low, high = min(contributions), max(contributions)
    some = str(low) if low == high else f"{low} to {high}"
    return f"{some} of {replicas} replica{'' if replicas == 1 else 's'}"


def steps(inner_steps: int, taken: Mapping[int, int]) -> str:
    """The inner steps of a round, with the replicas that did fewer; `taken`: counted replica -> its steps."""
    short = ", ".join(f"{replica}: {its}" for replica, its in sorted(taken.items()) if its < inner_steps)
    return f"{inner_steps}" + (f" (replica {short})" if short else "")
