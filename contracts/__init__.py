"""The contracts as Python sees them: the committed ABI and bytecode of NodeRegistry and TrainingLedger."""

import json
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def load(name: str) -> dict[str, Any]:
    """The artifact of contract `name`: contractName, compiler, abi, bytecode, deployedBytecode ("0x" hex) and
    immutableReferences (list of {start, length}, the bytes of the deployed code that a constructor fills in).

    The result is shared: do not change it. Raises FileNotFoundError for a name there is no artifact of.
    """
    artifact: dict[str, Any] = json.loads((files(__name__) / "artifacts" / f"{name}.json").read_bytes())
    return artifact
