"""How long a run's rounds take: computing, the pipes, the exchange of payloads and the work on them."""

import math
from collections.abc import Sequence

from msgspec import Struct

from dlx.ground.rounding import two_digits
from dlx.training.balance.costs import StageCost, samples_of_a_rank
from dlx.training.models.placement import Checkpoint
from dlx.training.recipe.recipe import MOST_SECONDS, Recipe, activation_bytes, embedding_bytes

# Nanoseconds of processor time, as `python -m benchmarks.round` measured them at 97.5 million parameters and int4.
SLOT_NS = 31.0  # of a slot's round, per parameter: start, change, payload, hashes, files, the outer step
PAYLOAD_NS = 5.0  # of checking and adding a received payload, per parameter
SEAL = 0.3  # seconds by the clock from the last payload to the seal that all have seen, on the embedded chain

# Operations with checkpointing: a layer's forward pass is a third of its training, and all of it or none is repeated.
RECOMPUTED: dict[Checkpoint, float] = {"none": 1.0, "layers": 4 / 3, "selective": 1.0}


class Conditions(Struct, frozen=True):
    """What a run is to run on, the same at every replica."""

    flops: float  # that one rank reaches in the run's precision, per second
    float32: float  # and in float32, which Muon's and Shampoo's steps are in
    ranks: int  # of a stage
    recomputed: float  # operations with checkpointing, as a multiple of those without
    link: float  # bits per second between replicas, each way
    lan: float | None  # and between the stages of a replica that is one site, which share its link; None: `link`
    replicas: int
    seal: float = SEAL  # seconds of votes and the chain, once a round
    served: int = 0  # bytes of drawn work through a replica's link in a round, as expected: what checkers fetch
    parallel: int = 1  # of the ranks, that share every matrix product
    trial_steps: int = 0  # inner steps of a replica's first round, or two with a delay; 0: as any other


class StageSeconds(Struct, frozen=True):
    micro_batch: float  # forward and backward
    optimiser: float  # once an inner step
    slot: float  # work on its own payload and files, once a round
    payloads: float  # work on those of the other replicas, once a round
    sent: int  # bytes of payloads to the other replicas, once a round; as many come from them


class Seconds(Struct, frozen=True):
    """Of one inner step, or of one round."""

    stages: list[StageSeconds]
    message: float  # one activation through a pipe
    compute: float  # of an inner step, without its pipes
    step: float  # of an inner step, as long as the slowest of pipes and stages makes it
    training: float  # of a round, with the work on the slot's own state
    transfer: float  # of a round's payloads: those of a site share its link
    exchange: float  # of a round: the transfer, the work on what arrived, and the seal
    checks: float  # of a round: the link's for drawn work, beside the transfer
    round: float
    first_round: float
    hides: bool  # the exchange, and what the link carries beside it, behind the training of the next round
    hiding_steps: int  # the fewest inner steps of a round behind which they hide
    sent: int  # bytes through a link in a round, and as many the other way
    tokens_per_second: float  # of all replicas


def seconds(recipe: Recipe, costs: Sequence[StageCost], conditions: Conditions) -> Seconds:
    """The replicas work at once, stages have `conditions.ranks` devices each, links their speed both ways."""
    here, micro_batches, inner_steps = conditions, recipe.data.micro_batches, recipe.plan.inner_steps
    step_tokens = recipe.data.batch_size * recipe.data.sequence_length
    tokens = samples_of_a_rank(recipe, here.ranks // here.parallel) * recipe.data.sequence_length  # of a micro-batch
    others, stages = here.replicas - 1, []
    for cost in costs:
        stages.append(
            StageSeconds(
                micro_batch=tokens * cost.flops * here.recomputed / (here.flops * here.parallel),
                optimiser=cost.optimiser_flops / (here.float32 * here.ranks),
                slot=SLOT_NS * 1e-9 * cost.parameters / here.ranks,
                payloads=PAYLOAD_NS * 1e-9 * cost.parameters * others / here.ranks,
                sent=others * cost.payload,
            )
        )
    message = 8 * activation_bytes(recipe) / (here.lan or here.link) if len(costs) > 1 else 0.0
    lent = 2 * 8 * embedding_bytes(recipe) * (len(costs) - 1) / (here.lan or here.link)  # there and back
    compute, step = (_inner_step(stages, one, micro_batches) for one in (0.0, message))
    step += lent
    slot = max(one.slot for one in stages)
    training = inner_steps * step + slot
    sent = (sum if here.lan else max)(one.sent for one in stages)
    transfer = 8 * sent / here.link
    exchange = transfer + max(one.payloads for one in stages) + here.seal
    checks = 8 * here.served / here.link
    link = transfer + checks  # payloads go first, but the link has to carry both

    def lasts(inner_steps: int) -> float:
        trained = inner_steps * step + slot
        longest = max(trained, exchange, link) if recipe.outer.delay else max(trained + exchange, link)
        return max(longest, recipe.timing.min_round_time)

    trial = min(here.trial_steps or inner_steps, inner_steps)
    return Seconds(
        stages,
        message=message,
        compute=compute,
        step=step,
        training=training,
        transfer=transfer,
        exchange=exchange,
        checks=checks,
        round=lasts(inner_steps),
        first_round=lasts(trial),
        hides=bool(recipe.outer.delay) and max(exchange, link) <= training,
        hiding_steps=max(1, math.ceil((max(exchange, link) - slot) / step)),
        sent=sent,
        tokens_per_second=here.replicas * inner_steps * step_tokens / lasts(inner_steps),
    )


def ample_timeout(round: float) -> int:
    """Whole seconds for `timing.round_timeout`: three times a round of so many, to two digits, upwards. The most that a
    manifest can say, where that is less."""
    return min(two_digits(math.ceil(3 * round)), MOST_SECONDS)


def _inner_step(stages: list[StageSeconds], message: float, micro_batches: int) -> float:
    """The first micro-batch passes through all stages and back, the others follow at the pace of the slowest stage, or
    of a pipe that carries no more; then all optimisers step at once."""
    first = sum(one.micro_batch for one in stages) + 2 * message * (len(stages) - 1)
    neighbours = min(2, len(stages) - 1)
    pace = max(*(one.micro_batch for one in stages), neighbours * message)
    return first + (micro_batches - 1) * pace + max(one.optimiser for one in stages)
