"""What the ledger decides about one round of a slot, and what training it gave: plain data, no tensor."""

from msgspec import Struct

from dlx.training.recipe.recipe import Plan


class RoundInputs(Struct, frozen=True):
    """What the ledger decides about one round of a slot. Hashes are 32 bytes."""

    round: int  # t
    plan: Plan
    steps_before: int  # inner steps of the run before this round
    total_steps: int  # of the whole run
    base_version: int  # b = max(0, t - delay)
    base_weights: bytes  # V[b], a blob
    samples: tuple[tuple[int, int], ...] = ()  # positions low to high - 1 that the replica trains on, in this order
    left_out: tuple[bytes, ...] = ()  # own payloads of rounds <= t - 1 - delay that their seals left out
    previous: bytes | None = None  # payload of the newest own contribution: only its state may go on
    replica: int = 0
    seals: tuple[bytes, ...] = ()  # digests of those that all this follows from


class Trained(Struct, frozen=True, forbid_unknown_fields=True):
    """A finished round, ready to be published. Hashes are 32 bytes: of canonical files (see training.models.weights),
    where a state that was never used is the file of its zeros."""

    inputs: RoundInputs  # with which it began
    round: int
    payload: bytes
    payload_size: int
    payload_root: bytes  # Merkle root, see ground.merkle
    base_weights: bytes
    start_payload: bytes  # the own payload in the start; 32 zero bytes: none
    folded: tuple[bytes, ...]  # own payloads folded back, at most two
    weights_before: bytes  # start[t]
    optimiser_before: bytes
    optimiser_after: bytes
    change_before: bytes  # u of the round before, less its payload the residual; 32 zero bytes each: there is none
    payload_before: bytes
    change: bytes  # u[t], which the payload encodes
    trace: bytes  # a public blob, see training.slot.trace
    segments: int
    inner_steps: int
    tokens: int
    loss: int  # mean over the steps, in micro-nats per token, as a statement has it
    training_ms: int  # with the waiting for stage neighbours
    reset: bool  # residual and moments started from zero
    private_data: bool = False  # the replica trained on data of its own
    kept: int = 0  # see training.slot.energy; 0 where the plan's rank does not adapt
