"""Which training state a node keeps on disk: the stage that it goes on with, and the others only until that is safe.

A run's folder has `stage-<s>/slot/` for each stage that the node has held; its `slot.json` names the last finished
round (see training.slot.files). A stage without that file has no state yet.
"""

import shutil
from pathlib import Path


def kept_stage(directory: Path) -> int | None:
    """The stage of the newest finished round, which a node that lost its slot asks for; None where there is none."""
    states = _states(directory)
    return max(states, key=lambda stage: states[stage].stat().st_mtime_ns, default=None)


def drop_other_stages(directory: Path, stage: int) -> None:
    """Changing stage clears residual and moments of the old one, once the new stage has finished a round of its own.

    Until then the old state is all there is: a node that is given its old stage back goes on with it.
    """
    if stage not in _states(directory):
        return
    for slot in directory.glob("stage-*/slot"):
        if slot.parent.name != f"stage-{stage}":
            (slot / "slot.json").unlink(missing_ok=True)  # first: a kill must leave no state that names lost files
            shutil.rmtree(slot, ignore_errors=True)


def _states(directory: Path) -> dict[int, Path]:
    files = directory.glob("stage-*/slot/slot.json")
    return {int(path.parent.parent.name.removeprefix("stage-")): path for path in files}
