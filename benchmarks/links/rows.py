"""The ways to train that are compared, and what each is told for a link."""

import json
import math
import sysconfig
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from dlx.node.runs.upkeep import checked
from dlx.training.balance.costs import costs
from dlx.training.balance.seconds import Conditions, Seconds, seconds
from dlx.training.recipe.draft import Draft, draft_from_toml

MATCHED = 356  # an all-reduce in float32 takes as many times as long as computing
LEAST = 40  # inner steps of a round with a delay, so that a node's own work once a round stays small beside them
SHARE = 1 / 128  # of the work that is checked: on slow links the states of drawn segments are what limits it
MARGIN = 1.3  # of the inner steps of a round over the fewest behind which `run plan` says that its exchange hides
_RUN: dict[str, Any] = {
    "name": "links",
    "rounds": 100_000,  # more than are trained
    "confirmations": 0,  # the embedded chain never takes a block back
    "model": {
        "config": {
            "model_type": "llama",
            "vocab_size": 256,
            "hidden_size": 128,
            "intermediate_size": 344,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "max_position_embeddings": 128,
        }
    },
    "data": {
        "source": [str(Path(sysconfig.get_paths()["stdlib"]) / "*.py")],
        "sequence_length": 128,
        "batch_size": 8,
        "micro_batches": 4,
    },
    "inner": {"optimiser": "muon"},
}
_DELAYED = {"delay": 1, "lr": 0.8, "alpha": 0.8}


@dataclass(frozen=True)
class Row:
    """One way to train. Of a rival `method` is told; of our nodes the draft's preset and what it changes of it."""

    what: str
    method: str | None = None
    package: str | None = None  # that it needs
    hides: bool = False  # so its rounds are as long as it takes
    preset: str = "default"
    outer: dict[str, Any] = field(default_factory=dict)
    stages: int = 1  # of two machines each, in a site


ROWS: dict[str, Row] = {
    "ddp": Row("torch DDP over gloo: float32 gradients in every step", "ddp"),
    "diloco": Row("DiLoCo in plain torch over gloo, float32; as many inner steps as `delay1`", "diloco", hides=True),
    "torchft": Row("torchft 0.2's DiLoCo over gloo, float32; as many", "torchft", "torchft", hides=True),
    "hivemind": Row("hivemind 1.1's averager, weights in 16 bits; as many", "hivemind", "hivemind", hides=True),
    "default": Row("our nodes as they come: int4, delay 0, 10 inner steps"),
    "delay1": Row("our nodes: int4, delay 1, as many inner steps as the plan says", hides=True, outer=_DELAYED),
    "sparse": Row("our nodes, preset sparse: delay 0, 5 inner steps", preset="sparse"),
    "sparse1": Row(
        "our nodes, preset sparse with delay 1, as many inner steps as the plan says",
        hides=True,
        preset="sparse",
        outer=_DELAYED | {"momentum": 0, "nesterov": False},
    ),
    "dilocox": Row("our nodes, preset dilocox: low rank, delay 1, 125 inner steps or more", preset="dilocox"),
    "sites": Row(
        "our nodes as `delay1`, each replica a site of two machines, a stage each", hides=True, outer=_DELAYED, stages=2
    ),
}


def draft_text(row: Row, replicas: int, inner_steps: int | None = None, timeout: int | None = None) -> str:
    """A run's draft, as TOML. Without `inner_steps` those of the preset; `timeout`: of a round, in seconds."""
    layers = _RUN["model"]["config"]["num_hidden_layers"]
    bounds = [layers * stage // row.stages for stage in range(row.stages + 1)]
    run = _RUN | {
        "preset": row.preset,
        "stages": [list(pair) for pair in pairwise(bounds)],
        "min_replicas": replicas,
        "max_replicas": replicas,
        "outer": row.outer,
        "plan": {} if inner_steps is None else {"inner_steps": inner_steps},
        "timing": {} if timeout is None else {"round_timeout": timeout},
        "audit": {"share": SHARE},
    }
    return _toml(run)


def planned(row: Row, replicas: int, step_seconds: float, speed: float | None) -> tuple[str, int]:
    """The row's draft for this link (bits per second), and its inner steps, where one machine alone computes a whole
    step in so long."""
    text = draft_text(row, replicas)
    draft = _read(text)
    inner_steps = draft.plan.inner_steps
    for _ in range(2 if row.hides else 0):  # what checkers fetch of a longer round may be more
        hiding = _times(_read(text), replicas, step_seconds, speed).hiding_steps
        inner_steps = max(LEAST, math.ceil(MARGIN * hiding))
        text = draft_text(row, replicas, inner_steps)
    round = _times(_read(text), replicas, step_seconds, speed).round
    if (timeout := math.ceil(4 * round)) > draft.timing.round_timeout:
        text = draft_text(row, replicas, inner_steps, timeout)
    return text, inner_steps


def expected_seconds(row: Row, replicas: int, step_seconds: float, speed: float | None, inner_steps: int) -> float:
    """Of one round of a rival."""
    size = (2 if row.method == "hivemind" else 4) * parameters()  # bytes
    return inner_steps * step_seconds + (all_reduce_bits(size, replicas) / speed if speed else 0.0)


def matched_speed(replicas: int, step_seconds: float) -> float:
    """Bits per second of the link on which a step's float32 all-reduce takes MATCHED times as long as its computing."""
    return all_reduce_bits(4 * parameters(), replicas) / (MATCHED * step_seconds)


def all_reduce_bits(size: float, replicas: int) -> float:
    """That each replica sends, and receives, in a ring."""
    return 8 * size * 2 * (replicas - 1) / replicas


@cache
def parameters() -> int:
    """Of the model that all train."""
    return sum(cost.parameters for cost in costs(_read(draft_text(ROWS["default"], 1))))


def speed_of(link: str) -> float | None:
    """Bits per second of a link such as 235kbit or 10mbit; None for "none". Raises ValueError."""
    if link == "none":
        return None
    for unit, size in (("kbit", 1e3), ("mbit", 1e6), ("gbit", 1e9)):
        if link.endswith(unit):
            return float(link.removesuffix(unit)) * size
    raise ValueError(link)


def _times(draft: Draft, replicas: int, step_seconds: float, speed: float | None) -> Seconds:
    found = costs(draft)
    flops = sum(cost.flops for cost in found) * draft.data.batch_size * draft.data.sequence_length / step_seconds
    # The optimiser's time is in that of the step. A link that is not shaped is as fast as memory.
    conditions = Conditions(
        flops=flops,
        float32=math.inf,
        ranks=1,
        recomputed=1.0,
        link=speed or 1e10,
        lan=1e10,
        replicas=replicas,
        served=checked(draft, found, replicas, site=True),
    )
    return seconds(draft, found, conditions)


def _read(text: str) -> Draft:
    with NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(text)
        file.flush()
        return draft_from_toml(Path(file.name))


def _toml(table: dict[str, Any], name: str = "") -> str:
    """Its values are also JSON's."""
    plain = [f"{key} = {json.dumps(value)}" for key, value in table.items() if not isinstance(value, dict)]
    inner = [_toml(value, f"{name}.{key}".lstrip(".")) for key, value in table.items() if isinstance(value, dict)]
    return "\n".join([*([f"[{name}]"] if name else []), *plain, *inner]) + "\n"
