"""How a version of a run is cited: `dlx:CHAIN/LEDGER/RUN@VERSION`, such as dlx:31337/0x8f..e2/0x5c..c0@100.

Chain id and address say where the ledger is, the run's id (itself a hash of both) which run, the version after how many
rounds. With /average the mean that the run publishes as that version; without @VERSION the run is meant. Whoever has a
chain node of that chain can look all of it up.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from dlx.node.home.errors import UsageFailure
from dlx.node.home.values import wrong_account

SCHEME = "dlx:"
_SHORTEST_PREFIX = 6  # hex digits of a run's id
_FORM = re.compile(r"dlx:(\d{1,19})/(0x[0-9a-fA-F]{40})/((?:0x)?[0-9a-fA-F]{6,64})(?:@(\d{1,9})(/average)?)?", re.ASCII)


class Citation(NamedTuple):
    chain_id: int
    ledger: str  # 0x and 40 hex digits
    run: str  # hex, whole or its first digits
    version: int | None = None
    average: bool = False  # the mean of some versions up to that one

    def __str__(self) -> str:
        at = "" if self.version is None else f"@{self.version}"
        return f"{SCHEME}{self.chain_id}/{self.ledger}/{self.run}{at}{'/average' if self.average else ''}"


def parse(text: str) -> Citation:
    """What a citation says. Raises UsageFailure.

    Examples:
        >>> one = parse("dlx:31337/0x800c807b3345f0C5B517Afa890B61493f6EBABE2/0x5c45a2@6")
        >>> one.chain_id, one.run, one.version
        (31337, '0x5c45a2', 6)
        >>> str(one)
        'dlx:31337/0x800c807b3345f0C5B517Afa890B61493f6EBABE2/0x5c45a2@6'
        >>> parse("latest")
        Traceback (most recent call last):
        ...
        dlx.node.home.errors.UsageFailure: 'latest' is no citation: expected dlx:CHAIN/LEDGER/RUN@VERSION
    """
    found = _FORM.fullmatch(text)
    if found is None:
        raise UsageFailure(f"{text[:200]!r} is no citation: expected dlx:CHAIN/LEDGER/RUN@VERSION")
    chain_id, ledger, run, version, average = found.groups()
    if wrong := wrong_account(ledger):
        raise UsageFailure(f"{text!r} is no citation: {ledger}: {wrong}")
    return Citation(int(chain_id), ledger, run, None if version is None else int(version), average is not None)


def id_digits(given: str) -> str:
    """The lower-case hex digits of a run id or its prefix. Raises UsageFailure for what can be none."""
    text = given.lower().removeprefix("0x")
    if not set(text) <= set("0123456789abcdef") or not _SHORTEST_PREFIX <= len(text) <= 64:
        raise UsageFailure(f"{given!r} is no run id: expected 64 hex digits, or the first {_SHORTEST_PREFIX} or more")
    return text
