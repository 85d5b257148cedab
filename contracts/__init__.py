"""The contracts as Python sees them: their committed ABI and bytecode."""

import json
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def load(name: str) -> dict[str, Any]:
    """The artifact of contract `name`: contractName, compiler, abi, bytecode, deployedBytecode ("0x" hex) and
    immutableReferences (list of {start, length}, the bytes of the deployed code that a constructor fills in); links and
    deployedLinks (library -> starts of the 20 bytes of its address, in bytecode and deployedBytecode).

    The result is shared: do not change it. Raises FileNotFoundError for a name there is no artifact of.
    """
    artifact: dict[str, Any] = json.loads((files(__name__) / "artifacts" / f"{name}.json").read_bytes())
    return artifact


@cache
def names() -> frozenset[str]:
    """Of all contracts and libraries that there is an artifact of."""
    folder = files(__name__) / "artifacts"
    return frozenset(one.name.removesuffix(".json") for one in folder.iterdir() if one.name.endswith(".json"))
