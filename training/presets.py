"""Presets: sets of a draft's keys under one name. A key that the draft states itself wins.

The defaults of the manifest's keys are the preset `default`: what measured best (`python -m benchmarks.convergence`).
"""

from typing import Any

INNER_STEPS = 10  # of a round, where a draft says nothing

PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "default": {},
    # DiLoCoX (arXiv 2506.21263), with the outer rate and momentum nearest to its 0.7 and 0.9 that stay stable here.
    "dilocox": {
        "outer": {"lr": 0.4, "momentum": 0.9, "nesterov": True, "delay": 1, "alpha": 0.0},
        "codec": {"name": "lowrank"},
        "plan": {"level": 4, "rank": 32, "inner_steps": 125},
        "adaptive": {},
    },
    # SparseLoCo (arXiv 2508.15706): a 32nd of the values, two bits each, exchanged often.
    "sparse": {
        "codec": {"name": "topk"},
        "plan": {"level": 2, "rank": 128, "inner_steps": 5},
    },
}


def expand(raw: dict[str, Any]) -> dict[str, Any]:
    """The draft with its `preset` written out. Raises KeyError where there is no such preset.

    A plan that adapts spans as many inner steps as the rounds have with the first plan, unless the draft says it.
    """
    preset = PRESETS[raw.get("preset", "default")]
    own = {key: value for key, value in raw.items() if key != "preset"}
    for table, keys in preset.items():
        stated = own.get(table, {})
        own[table] = keys | stated if isinstance(stated, dict) else stated
    plan, adaptive = own.get("plan", {}), own.get("adaptive")
    if isinstance(plan, dict) and isinstance(adaptive, dict):
        rounds, steps = own.get("rounds"), plan.get("inner_steps", INNER_STEPS)
        if isinstance(rounds, int) and isinstance(steps, int):
            own["adaptive"] = {"inner_steps": rounds * steps} | adaptive
    return own
