"""Presets and kinds: sets of a draft's keys under one name. A key that the draft states itself wins, then one of its
kind, which says what a run starts from; then one of its preset, which says how it trains.

The defaults of the manifest's keys are the preset `default`: what measured best (`python -m benchmarks.convergence`).
"""

from typing import Any, TypeGuard

INNER_STEPS = 10  # of a round, where a draft says nothing
MIN_INNER_STEPS = 5  # of a plan that adapts

# Found at 0.23M parameters, 20 tokens each, and 256 tokens a replica and step. A replica's few samples touch a token's
# row rarely, and with beta2 0.95 its second moment is forgotten by then.
_MUON = {"lr": 0.0057, "matrix_lr": 0.008, "matrix_momentum": 0.9, "weight_decay": 0.03, "beta2": 0.99, "final": 0.02}
_SPARSE: dict[str, dict[str, Any]] = {
    "inner": _MUON,
    "outer": {"momentum": 0.5, "nesterov": True, "ahead": 0.5},
    "codec": {"name": "topk"},
    "plan": {"level": 2, "rank": 128, "inner_steps": 5},
}

# What a run starts from. A trained model bears a tenth of the rates that drawn weights want.
KINDS: dict[str, dict[str, dict[str, Any]]] = {
    "pretrain": {},
    "finetune": {"inner": {"lr": 4e-4, "matrix_lr": 1e-3}},
    "lora": {"inner": {"optimiser": "adamw", "lr": 1e-2}, "adapter": {}},
}

# Of a large model. AdamW's are the usual ones: of all weights, of factors. Nobody measured the others: steps of Muon
# and Shampoo are about as large as AdamW's, and `matrix_lr` is to `lr` as in `finetune`.
LARGE_RATES: dict[str, dict[str, float]] = {
    "finetune": {"lr": 2e-5, "matrix_lr": 5e-5},
    "lora": {"lr": 2e-4, "matrix_lr": 5e-4},
}

PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "default": {},
    # DiLoCoX (arXiv 2506.21263) with its outer rate; with a lower momentum than its 0.9, and with the own change in a
    # round's start: without that its pair diverges here, and the nearest that does not ends 4% higher after 250 rounds.
    "dilocox": {
        "inner": {"optimiser": "adamw", "lr": 0.004, "weight_decay": 0.03, "beta2": 0.99, "final": 0.02},
        "outer": {"lr": 0.7, "momentum": 0.5, "nesterov": True, "delay": 1, "alpha": 0.7},
        "codec": {"name": "lowrank"},
        "plan": {"level": 4, "rank": 32, "inner_steps": 125},
        "adaptive": {},
    },
    # SparseLoCo (arXiv 2508.15706): a 32nd of the values, two bits each, exchanged often.
    "sparse": _SPARSE,
    # With what loses least in rounds, for more state, operations and values: 362 times less than gradients.
    "shampoo": _SPARSE
    | {
        "inner": _MUON | {"optimiser": "shampoo", "lr": 0.008, "matrix_lr": 0.0057},
        "plan": _SPARSE["plan"] | {"rank": 216},
    },
    # A quarter of the rounds of `sparse`, so fewer bytes beside payloads.
    "ternary": {
        "inner": _MUON,
        "outer": {"momentum": 0.6, "nesterov": True, "ahead": 0.5},
        "codec": {"name": "ternary"},
        "plan": {"level": 2, "inner_steps": 20},
    },
}


def expand(raw: dict[str, Any]) -> dict[str, Any]:
    """The draft with its `preset` and its `kind` written out: where it states none, `lora` with an adapter, else the
    first. Raises KeyError where there is no such one.

    A plan that adapts spans as many inner steps as the rounds have with the first plan, unless the draft says it; the
    rounds are then as many as that takes at most.
    """
    kind = raw.get("kind", "lora" if "adapter" in raw else "pretrain")
    own = {key: value for key, value in raw.items() if key != "preset"} | {"kind": kind}
    for tables in (KINDS[kind], PRESETS[raw.get("preset", "default")]):
        for table, keys in tables.items():
            stated = own.get(table, {})
            own[table] = keys | stated if isinstance(stated, dict) else stated
    plan, adaptive, rounds = own.get("plan", {}), own.get("adaptive"), own.get("rounds")
    if isinstance(plan, dict) and isinstance(adaptive, dict) and "inner_steps" not in adaptive:
        steps, fewest = plan.get("inner_steps", INNER_STEPS), adaptive.get("min_inner_steps", MIN_INNER_STEPS)
        # Anything but whole numbers above zero is refused later, by name.
        if _whole(rounds) and _whole(steps) and _whole(fewest):
            own["adaptive"] = adaptive | {"inner_steps": rounds * steps}
            own["rounds"] = -(-(rounds * steps) // fewest)
    return own


def _whole(value: Any) -> TypeGuard[int]:
    return type(value) is int and value > 0
