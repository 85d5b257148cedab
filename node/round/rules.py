"""What every member decides alike: pure functions over the rules, the ledger's view and signed statements."""

from collections.abc import Sequence
from dataclasses import dataclass

from eth_utils import keccak, to_canonical_address

from ledger.typed import UNIT, Domain, Plan, Seal, SignedContribution, ascending, summarise
from ledger.view import RunView

NO_HASH = bytes(32)


@dataclass(frozen=True, slots=True)
class Rules:
    """What the manifest fixes for one run. Times are in seconds."""

    domain: Domain
    run: bytes
    stages: int
    rounds: int
    delay: int
    tokens_per_step: int
    plan: Plan
    max_payload_size: tuple[int, ...]  # bytes, per stage
    straggler_grace: float
    proposal_timeout: float
    round_timeout: float
    eviction_time: float


@dataclass(frozen=True, slots=True)
class OuterResult:
    """Hashes of V[s,t+1] and its outer momentum (zero where there is none), from our own arithmetic."""

    weights: bytes
    momentum: bytes


def plan_of(rules: Rules, view: RunView, stage: int, round: int) -> Plan:
    """The plan that binds `round`: a plan sealed in round t binds t + delay + 1; H always comes from stage 0's seal."""
    source = round - rules.delay - 1
    own, first = view.sealed.get((stage, source)), view.sealed.get((0, source))
    if own is None or first is None:
        return rules.plan
    return Plan(own.seal.plan_level, own.seal.plan_rank, first.seal.plan_inner_steps)


def steps_before(rules: Rules, view: RunView, round: int) -> int:
    """Inner steps of the run before `round`: the index of the learning-rate schedule."""
    return sum(plan_of(rules, view, 0, earlier).inner_steps for earlier in range(round))


def base_version(rules: Rules, round: int) -> int:
    """b = max(0, t - d): the shared version that round t starts from."""
    return max(0, round - rules.delay)


def left_out(rules: Rules, view: RunView, stage: int, own: dict[int, bytes], round: int) -> tuple[bytes, ...]:
    """Own payloads (`own`: round -> payload hash) of rounds <= t-1-d that their seals left out, oldest first."""
    found = []
    for earlier in sorted(own):
        sealed = view.sealed.get((stage, earlier))
        if earlier > round - 1 - rules.delay or sealed is None:
            continue
        if all(signed.contribution.payload != own[earlier] for signed in sealed.contributions):
            found.append(own[earlier])
    return tuple(found)


def expected_accounts(view: RunView, stage: int) -> tuple[str, ...]:
    """Holders of the stage in complete replicas, ascending: those whose contributions a full seal lists."""
    return ascending(
        {account for replica in view.complete_replicas() if (account := view.holder(replica, stage)) is not None}
    )


def proposers(rules: Rules, view: RunView, stage: int, round: int, attempt: int) -> list[str]:
    """The stage's holders in the order in which they propose: by keccak(run, round, stage, attempt, account)."""
    prefix = rules.run + round.to_bytes(4, "big") + stage.to_bytes(2, "big") + attempt.to_bytes(4, "big")
    return sorted(view.holders(stage), key=lambda account: keccak(prefix + to_canonical_address(account)))


def refusal(rules: Rules, view: RunView, signed: SignedContribution, signer: str) -> str | None:
    """Why a contribution is refused (a short metric label), or None. `signer` is recovered from the signature."""
    statement = signed.contribution
    if statement.run != rules.run:
        return "wrong_run"
    if signer != statement.account:
        return "bad_signature"
    slot = view.slot_of(statement.account)
    if slot is None:
        return "not_a_member"
    if slot != (statement.replica, statement.stage):
        return "wrong_slot"
    if statement.round >= rules.rounds:
        return "wrong_round"
    plan = plan_of(rules, view, statement.stage, statement.round)
    if statement.plan != plan.hash() or statement.inner_steps != plan.inner_steps:
        return "wrong_plan"
    if statement.tokens != statement.inner_steps * rules.tokens_per_step:
        return "wrong_tokens"
    if not 0 < statement.payload_size <= rules.max_payload_size[statement.stage]:
        return "payload_size"
    base = base_version(rules, statement.round)
    if base <= view.next_round(statement.stage) and statement.base_weights != view.weights(statement.stage, base):
        return "wrong_base"
    return None


def build_seal(
    rules: Rules, view: RunView, stage: int, round: int, listed: Sequence[SignedContribution], result: OuterResult
) -> Seal:
    """The seal that follows from `listed` (ascending accounts): every honest member builds the same one."""
    summary = summarise(listed)
    plan = plan_of(rules, view, stage, round + rules.delay)  # the fixed plan: what bound last goes on
    return Seal(
        run=rules.run,
        stage=stage,
        round=round,
        previous_weights=view.weights(stage, round),
        next_weights=result.weights,
        previous_momentum=view.momentum(stage, round),
        next_momentum=result.momentum,
        contributions_root=summary.root,
        contributions_hash=summary.hash,
        count=summary.count,
        total_tokens=summary.total_tokens,
        mean_loss=summary.mean_loss,
        plan_level=plan.level,
        plan_rank=plan.rank,
        plan_inner_steps=plan.inner_steps,
        multipliers=(UNIT,) * len(listed),
    )


def records_hash(listed: Sequence[SignedContribution]) -> bytes:
    """What a seal says of the exact contribution bytes with their signatures, in whatever order they are listed."""
    return keccak(b"".join(signed.encode() for signed in listed))
