"""Statements and seals of one account, as short as tests want them."""

from dlx.ground.constants import NO_HASH, UNIT
from dlx.ledger.keys import account_of
from dlx.ledger.typed import Contribution, Domain, Outcome, Plan, Record, Seal

KEY = b"\x07" * 32
ACCOUNT = account_of(KEY)
DOMAIN = Domain(31337, account_of(b"\x08" * 32))
RUN = b"r" * 32


def digest(number: int) -> bytes:
    return number.to_bytes(32, "big")


def contribution(round: int = 4, stage: int = 0, payload: int = 1, run: bytes = RUN) -> Contribution:
    return Contribution(
        run=run, round=round, stage=stage, replica=1, account=ACCOUNT, base_weights=digest(1), payload=digest(payload),
        payload_size=10, payload_root=digest(10), plan=digest(2), inner_steps=10, loss=1, previous=NO_HASH,
        start_payload=NO_HASH, folded_payload=NO_HASH, folded_payload2=NO_HASH, weights_before=digest(3),
        optimiser_before=digest(5), optimiser_after=digest(6), change_before=digest(7), payload_before=digest(4),
        change=digest(8), trace=digest(9),
        segments=1, compute_ms=1, exchange_ms=1, kept=0, flags=0,
    )  # fmt: skip


def seal(
    round: int = 4, stage: int = 0, next: int = 50, run: bytes = RUN, multipliers: tuple[int, ...] = (UNIT,)
) -> Seal:
    outcome = Outcome(digest(next), digest(51), digest(52), digest(53), 10, Plan(4, 0, 10))
    records = tuple(Record(r, digest(60 + r), 1, 10, 0, by) for r, by in enumerate(multipliers))
    return Seal(run, stage, round, digest(40), outcome, records)
