"""What of a replay in exact arithmetic is not what was claimed: every bit counts, whatever it weighs."""

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from dlx.training.inner.pipeline import Norms
from dlx.training.models import weights
from dlx.training.slot.trace import Step

Arrays = weights.Lazy[np.ndarray]
_ORDER = ("embedding", "activation", "loss", "gradient", "tied gradient", "gradient norm")  # what a step comes to


def states_apart(what: str, claimed: Arrays, found: Mapping[str, Tensor] | Arrays) -> list[str]:
    """One line on how many values of a state differ, and which is the first by the tensors' names; nothing of equal
    states."""
    apart, first = 0, ""
    for name in sorted(found):
        theirs, ours = claimed[name].reshape(-1), weights.array(found[name]).reshape(-1)
        places = np.flatnonzero(theirs.view(np.uint32) != ours.view(np.uint32))
        if len(places) and not apart:
            place = int(places[0])
            where = ", ".join(map(str, map(int, np.unravel_index(place, found[name].shape))))
            first = f"{name}[{where}] is {ours[place]!s}, not {theirs[place]!s}"
        apart += len(places)
    counted = "1 value differs" if apart == 1 else f"{apart:,} values differ"
    return [f"{what}: {counted}, the first: {first}"] if apart else []


def steps_apart(
    first: int, norms: Sequence[Norms], losses: Sequence[float], said: Sequence[Step], sent: Mapping[str, int]
) -> list[str]:
    """One line on the first inner step that came to something else than was stated or `sent` (kind -> the first step
    in which that differs). `first`: the number of the first step."""
    found = dict(sent)
    for step, (norm, loss, it) in enumerate(zip(norms, losses, said, strict=True), first):
        if loss != it.loss:
            found.setdefault("loss", step)
        if (norm.passed_on, norm.replica) != (it.norm_out, it.norm):
            found.setdefault("gradient norm", step)
    if not found:
        return []
    kind = min(found, key=lambda kind: (found[kind], _ORDER.index(kind)))
    return [f"inner step {found[kind]} is the first that differs, in its {kind}"]
