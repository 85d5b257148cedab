"""What every member decides alike: pure functions over the rules, the ledger's view and signed statements."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from eth_utils import keccak, to_canonical_address

from dlx.ground.constants import UNIT
from dlx.ledger.events import Sealed
from dlx.ledger.typed import PRIVATE_DATA, Contribution, Domain, Outcome, Plan, Seal, SignedContribution
from dlx.ledger.view.run_state import ViewError
from dlx.ledger.view.run_view import RunView
from dlx.node.round.rules.pace import fewest_steps, trial_steps
from dlx.node.round.rules.plans import CATCH_UP_ROUNDS, RESET_WINDOW, Terms, has_round, plan_of
from dlx.training.recipe.manifest import Manifest
from dlx.training.slot.segments import segments_in

Sizes = tuple[Mapping[int, int], ...]  # of each stage: rank -> the largest payload in bytes


@dataclass(frozen=True, kw_only=True)
class Rules(Terms):
    """What the manifest fixes for one run. Times are in seconds."""

    domain: Domain
    run: bytes
    stages: int
    policy: str
    max_payload_sizes: Sizes
    straggler_grace: float
    proposal_timeout: float
    round_timeout: float
    confirmations: int  # blocks that must follow an event before the view of the ledger has it

    @classmethod
    def of_run(cls, manifest: Manifest, domain: Domain, run: bytes, max_payload_sizes: Sizes) -> "Rules":
        timing = manifest.timing
        return cls(
            **vars(Terms.of(manifest)),
            domain=domain,
            run=run,
            stages=len(manifest.stages),
            policy=manifest.outer.policy,
            max_payload_sizes=max_payload_sizes,
            straggler_grace=timing.straggler_grace,
            proposal_timeout=timing.proposal_timeout,
            round_timeout=timing.round_timeout,
            confirmations=manifest.confirmations,
        )

    def max_payload_size(self, stage: int, plan: Plan) -> int:
        """Bytes of the stage's largest payload under the plan."""
        sizes = self.max_payload_sizes[stage]
        return sizes.get(plan.rank, max(sizes.values()))  # a rank off the ladder: a quorum may seal anything


@dataclass(frozen=True, slots=True)
class PayloadFacts:
    """What a payload's statement has to say of it: bytes, and the Merkle root of its bytes."""

    size: int
    root: bytes


@dataclass(frozen=True, slots=True)
class OuterResult:
    """What our own arithmetic gives: hashes of V[s,t+1] and its outer momentum and the Merkle roots of the two files.
    Zeros for a momentum that there is not, and all four for an empty seal."""

    weights: bytes
    momentum: bytes
    weights_root: bytes
    momentum_root: bytes


NOTHING = OuterResult(bytes(32), bytes(32), bytes(32), bytes(32))  # what an empty seal comes to


def base_version(terms: Terms, round: int) -> int:
    """b = max(0, t - d): the shared version that round t starts from."""
    return max(0, round - terms.delay)


def left_out(
    rules: Rules, view: RunView, stage: int, own: Mapping[int, SignedContribution], round: int
) -> tuple[bytes, ...]:
    """The payloads of own contributions that their seals left out and that `round` folds back, oldest first."""
    due = [own[earlier].contribution for earlier in sorted(own) if is_folded(rules, earlier, round)]
    return tuple(one.payload for one in due if is_left_out(view, stage, one.round, one.hash()))


def is_folded(terms: Terms, earlier: int, round: int) -> bool:
    """Whether `round` may fold back a payload of round `earlier`: its seal is there by then, and every member still has
    it, however long the maker was away."""
    return round - CATCH_UP_ROUNDS <= earlier <= round - 1 - terms.delay


def is_left_out(view: RunView, stage: int, round: int, name: bytes) -> bool:
    """Whether the round is sealed without the contribution of this name."""
    sealed = view.sealed.get((stage, round))
    return sealed is not None and all(record.statement != name for record in sealed.records)


def may_count(view: RunView, statement: Contribution) -> bool:
    """Whether its account may be the maker of the statement's record: in the stage's next seal that is who had the slot
    at the last one, wherever it sits now; in later ones the member."""
    if statement.round == view.next_round(statement.stage):
        return view.admissible(statement.account, statement.stage, statement.replica)
    return view.slot_of(statement.account) == (statement.replica, statement.stage)


def may_train(view: RunView, account: str, round: int) -> bool:
    """Whether what the member trains in `round`, which its stage has not sealed, may count: not while somebody else
    makes the record of its slot."""
    slot = view.slot_of(account)
    if slot is None or round > view.next_round(slot[1]):
        return slot is not None
    return view.admissible(account, slot[1], slot[0])


def has_votes(view: RunView, account: str, stage: int, now: float) -> bool:
    """Whether the account's own weight counts for the stage's next seal, wherever its slot is."""
    return view.seal_votes(stage, (account,), int(now)) > 0


def weight_share(view: RunView, account: str, stage: int, now: float) -> float:
    """The account's part of the stage's weight, 0 to 1."""
    return view.seal_votes(stage, (account,), int(now)) / view.total(stage, int(now))


def proposers(rules: Rules, view: RunView, stage: int, round: int, attempt: int) -> tuple[str, ...]:
    """The stage's members in the order in which they propose, by keccak(run, round, stage, attempt, account).

    Those with weight come first, because nothing is sealed without them. As long as there is none, those in complete
    replicas do."""
    prefix = rules.run + round.to_bytes(4, "big") + stage.to_bytes(2, "big") + attempt.to_bytes(4, "big")
    return _ordered(prefix, view.members_in(stage), view.voters(stage))


@lru_cache(maxsize=64)  # a member asks for the last and next attempts of one round again and again
def _ordered(prefix: bytes, accounts: tuple[str, ...], first: tuple[str, ...]) -> tuple[str, ...]:
    """Ascending by keccak(prefix, account), `first` before the others."""
    return tuple(
        sorted(accounts, key=lambda account: (account not in first, keccak(prefix + to_canonical_address(account))))
    )


def attempt_at(rules: Rules, view: RunView, now: float) -> int:
    """Which attempt to seal the open round it is: one begins every proposal timeout from when the ledger takes the
    first seals of it, so all members are at the same one. Raises ViewError if no round is open."""
    if view.opened_at is None:
        raise ViewError("no round is open")
    return max(0, int((now - view.opened_at - view.config.min_round_time) / rules.proposal_timeout))


def refusal(rules: Rules, view: RunView, signed: SignedContribution, signer: str) -> str | None:
    """Why a contribution is refused (a short metric label), or None. `signer` is recovered from the signature."""
    statement = signed.contribution
    if statement.run != rules.run:
        return "wrong_run"
    if signer != statement.account:
        return "bad_signature"
    if not may_count(view, statement):
        return "not_a_member" if view.slot_of(statement.account) is None else "wrong_slot"
    if not has_round(rules, view, statement.round):
        return "wrong_round"
    plan = plan_of(rules, view, statement.stage, statement.round)
    if plan is None:
        return "wrong_plan"
    most = most_steps(rules, view, statement.stage, statement.account, statement.round, plan)
    if fault := statement_fault(rules, statement, plan, most):
        return fault
    if not 0 < statement.payload_size <= rules.max_payload_size(statement.stage, plan):
        return "payload_size"
    base = base_version(rules, statement.round)
    if base <= view.next_round(statement.stage) and statement.base_weights != view.weights(statement.stage, base):
        return "wrong_base"
    return None


def has_ledgers_base_and_plan(terms: Terms, view: RunView, statement: Contribution) -> bool:
    """Whether a statement of a sealed round starts from the version and follows the plan that the ledger has for it."""
    plan = plan_of(terms, view, statement.stage, statement.round)
    base = view.weights(statement.stage, base_version(terms, statement.round))
    return plan is not None and (statement.base_weights, statement.plan) == (base, plan.hash())


def most_steps(terms: Terms, view: RunView, stage: int, account: str, round: int, plan: Plan) -> int:
    """The inner steps that a contribution of the account to `round` may state at most: all of its `plan`, once a seal
    of the stage counts the account with a multiplier above 0.

    Before that the round is a trial. Where nobody is known yet, others do a trial too, and one that stated all steps
    would be nearly all of the round. The replica does not vouch for its member: in a slot that a convicted one left
    sits perhaps the same person. Only seals before the base version are looked at, within RESET_WINDOW rounds: whoever
    can judge the statement has these.
    """
    first = max(view.sealed.oldest(stage), round - RESET_WINDOW + 1)
    rounds = range(min(base_version(terms, round), view.next_round(stage)) - 1, first - 1, -1)
    known = (_counts(view.sealed[stage, at], account) for at in rounds)
    return plan.inner_steps if any(known) else trial_steps(plan.inner_steps)


def _counts(sealed: Sealed, account: str) -> bool:
    records = zip(sealed.records, sealed.accounts, strict=True)
    return any(maker == account and record.multiplier > 0 for record, maker in records)


def statement_fault(terms: Terms, statement: Contribution, plan: Plan, most: int) -> str | None:
    """What a statement says against the manifest or `plan`, that of its round (a short metric label), or None. `most`:
    what `most_steps` gives for it."""
    if statement.plan != plan.hash():
        return "wrong_plan"
    if not fewest_steps(plan.inner_steps) <= statement.inner_steps <= most:
        return "wrong_steps"
    if statement.segments != segments_in(statement.inner_steps, terms.segment_steps):
        return "wrong_segments"
    if not 0 <= statement.kept <= (UNIT if terms.ladders.rank_adapts else 0):
        return "wrong_kept"
    if statement.flags & PRIVATE_DATA and not terms.private_data:
        return "private_data"
    return None


def unit_multipliers(count: int) -> tuple[int, ...]:
    """What the policy `mean` seals."""
    return (UNIT,) * count


def build_seal(
    rules: Rules,
    view: RunView,
    stage: int,
    round: int,
    listed: Sequence[SignedContribution],
    multipliers: tuple[int, ...],
    plan: Plan,
    result: OuterResult,
) -> Seal:
    """The stage's next seal, of `round`, as it follows from `listed` (ascending replicas), their multipliers and the
    plan for a later round: with the same three every honest member builds the same one.

    Raises KeyError where the view has not the seals that give the round's own plan.
    """
    current = plan_of(rules, view, stage, round)
    if current is None:
        raise KeyError((stage, round))
    return Seal(
        run=rules.run,
        stage=stage,
        round=round,
        previous=view.head(stage),
        outcome=Outcome(
            weights=result.weights,
            momentum=result.momentum,
            weights_root=result.weights_root,
            momentum_root=result.momentum_root,
            inner_steps=current.inner_steps,
            plan=plan,
        ),
        records=tuple(
            signed.contribution.record(multiplier) for signed, multiplier in zip(listed, multipliers, strict=True)
        ),
    )
