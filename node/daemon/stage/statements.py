"""Own contributions, made from what was trained."""

from dlx.ground.constants import NO_HASH
from dlx.ledger.typed import PRIVATE_DATA, STATE_RESET, Contribution, SignedContribution
from dlx.ledger.typed import Plan as LedgerPlan
from dlx.training.slot.rounds import Trained


def make_contribution(
    trained: Trained,
    *,
    run: bytes,
    account: str,
    replica: int,
    stage: int,
    plan: LedgerPlan,
    exchange_ms: int,
    own: dict[int, SignedContribution],
    was_counted: bool = False,
) -> Contribution:
    """The statement about one trained round; `own` are the account's earlier contributions to the stage, as far as it
    still has them, and `was_counted` says whether the ledger counted any contribution of it before.

    The adaptive plan compares the exchange of the round before (`exchange_ms`, 0: not measured) with the time that this
    round's training took, in which the exchange hides. Waiting for stage neighbours is part of that time.
    """
    earlier = [round for round in own if round < trained.round]
    previous = own[max(earlier)].contribution.hash() if earlier else NO_HASH
    folded = (*trained.folded, NO_HASH, NO_HASH)
    return Contribution(
        run=run,
        round=trained.round,
        stage=stage,
        replica=replica,
        account=account,
        base_weights=trained.base_weights,
        payload=trained.payload,
        payload_size=trained.payload_size,
        payload_root=trained.payload_root,
        plan=plan.hash(),
        inner_steps=trained.inner_steps,
        loss=trained.loss,
        previous=previous,
        start_payload=trained.start_payload,
        folded_payload=folded[0],
        folded_payload2=folded[1],
        weights_before=trained.weights_before,
        optimiser_before=trained.optimiser_before,
        optimiser_after=trained.optimiser_after,
        change_before=trained.change_before,
        payload_before=trained.payload_before,
        change=trained.change,
        trace=trained.trace,
        segments=trained.segments,
        compute_ms=min(trained.training_ms, 2**32 - 1),
        exchange_ms=min(exchange_ms, 2**32 - 1),
        kept=trained.kept,
        flags=_flags(trained, previous != NO_HASH or was_counted),
    )


def _flags(trained: Trained, contributed: bool) -> int:
    reset = STATE_RESET if trained.reset and contributed else 0
    return reset | (PRIVATE_DATA if trained.private_data else 0)
