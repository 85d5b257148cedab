"""What a contribution says of a trained round."""

from dlx.ground.constants import NO_HASH
from dlx.ledger.typed import STATE_RESET, Domain, Plan, SignedContribution, account_of
from dlx.node.daemon.stage.statements import make_contribution
from dlx.training.recipe.recipe import Plan as ManifestPlan
from dlx.training.slot.rounds import RoundInputs, Trained
from tests.node.made_statements import digest

KEY = b"\x07" * 32
DOMAIN = Domain(31337, account_of(b"\x08" * 32))


def trained(round: int, reset: bool = False, folded: tuple[bytes, ...] = ()) -> Trained:
    inputs = RoundInputs(round, ManifestPlan(inner_steps=10), 0, 100, round, digest(1))
    return Trained(
        inputs=inputs, round=round, payload=digest(100 + round), payload_size=1000, payload_root=digest(50),
        base_weights=digest(1), start_payload=digest(2), folded=folded, weights_before=digest(3),
        optimiser_before=digest(5), optimiser_after=digest(6), change_before=digest(7), payload_before=digest(4),
        change=digest(8), trace=digest(9),
        segments=1, inner_steps=10, tokens=640, loss=5_000_000, training_ms=2**40, reset=reset,
    )  # fmt: skip


def contribution(what: Trained, own: dict[int, SignedContribution]) -> SignedContribution:
    return make_contribution(
        what, run=digest(10), account=account_of(KEY), replica=1, stage=2, plan=Plan(4, 0, 10), exchange_ms=250,
        own=own,
    ).sign(DOMAIN, KEY)  # fmt: skip


def test_a_contribution_says_what_was_trained_and_names_the_one_before() -> None:
    own: dict[int, SignedContribution] = {}
    for round in (3, 4, 7):
        own[round] = contribution(trained(round, reset=True, folded=(digest(20),)), own)
        own[round].verify(DOMAIN)
    first, second, third = (signed.contribution for signed in own.values())
    assert first.previous == NO_HASH and first.flags == 0, "a slot's first state is no reset"
    assert (second.previous, third.previous) == (first.hash(), second.hash())
    assert second.flags == STATE_RESET
    assert (first.folded_payload, first.folded_payload2) == (digest(20), NO_HASH)
    assert (first.replica, first.stage, first.inner_steps) == (1, 2, 10)
    assert (first.payload, first.payload_root) == (digest(103), digest(50))
    assert (first.compute_ms, first.exchange_ms) == (2**32 - 1, 250), "as much as the field takes"
    earlier = contribution(trained(4), own).contribution
    assert earlier.previous == first.hash(), "later ones are not before it"
