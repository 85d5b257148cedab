"""What the contract takes as a run's config: the bounds of `Runs.check`, under which no reader's sum overflows."""

from collections.abc import Iterator

from dlx.ledger.abi import ZERO32
from dlx.ledger.typed import MAX_REPLICAS, RunConfig

MAX_STAGES = 64
_MAX_ROUNDS = 10_000_000
_MAX_TIME = 30 * 86400  # seconds
_MAX_INNER_STEPS = 100_000
_MAX_START_TIME = (1 << 36) - 1
_MAX_TOKENS_PER_STEP = (1 << 40) - 1
_MAX_TOKENS = (1 << 63) - 1  # that a whole run can count: what SQLite adds up


def problem(config: RunConfig) -> str | None:
    """Why the contract creates no run with this config, naming the field; None where it does."""
    return next(_problems(config), None)


def _problems(config: RunConfig) -> Iterator[str]:
    if config.manifest == ZERO32:
        yield "manifest: expected a hash, got zeros"
    for field, least, most in (
        ("rounds", 1, _MAX_ROUNDS),
        ("stages", 1, MAX_STAGES),
        ("max_replicas", 1, MAX_REPLICAS),
        ("min_replicas", 1, config.max_replicas),
        ("quorum_numerator", config.quorum_denominator // 2 + 1, config.quorum_denominator),
        ("round_timeout", 1, _MAX_TIME),
        ("min_round_time", 1, config.round_timeout),
        ("eviction_time", 1, _MAX_TIME),
        ("max_inner_steps", 1, _MAX_INNER_STEPS),
        ("start_time", 0, _MAX_START_TIME),
        ("tokens_per_step", 1, _MAX_TOKENS_PER_STEP),
    ):
        value = getattr(config, field)
        if not least <= value <= most:
            yield f"{field}: expected {least} to {most}, got {value}"
    tokens = config.rounds * config.max_replicas * config.max_inner_steps * config.tokens_per_step
    if tokens > _MAX_TOKENS:
        yield f"tokens_per_step: the whole run could count {tokens} tokens, of which a run can have {_MAX_TOKENS}"
