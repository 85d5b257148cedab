"""What a ledger consists of: the contracts that it names, and the libraries that they link."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from dlx import contracts
from dlx.ledger.abi import ZERO_ACCOUNT
from dlx.ledger.bindings import Interface
from dlx.ledger.errors import Contradiction

# By the view that says where it is; also, with a `_` behind it, by the argument of a constructor.
PARTS = {
    "registry": "NodeRegistry",
    "invitations": "Invitations",
    "bonds": "Bonds",
    "proofs": "OuterProofs",
}


@dataclass(frozen=True)
class Part:
    """One contract or library, and the code that a chain node says is there: not yet compared."""

    contract: Interface
    address: str
    code: bytes

    @property
    def name(self) -> str:
        return str(self.contract.artifact["contractName"])

    @property
    def is_ours(self) -> bool:
        """Whether the code is this version's. A library's own address is in its code, where it was created."""
        return self.contract.same_code(self.code)


def parts_of(
    ledger: str, code: Callable[[str], bytes], read: Callable[[str, str, str], tuple[Any, ...]]
) -> Iterator[Part]:
    """The ledger, then whatever it names or links, each once. Whoever takes a part looks at its code (`is_ours`) before
    it asks for the next: what foreign code names is not ours either.

    `code` gives the runtime code at an address. `read` gives the answer of a view, by its contract's name, that one's
    address and the view's name. Raises Contradiction for an address that the code of its contract does not name.
    """
    waiting, seen = [("TrainingLedger", ledger)], {ledger}
    while waiting:
        name, address = waiting.pop(0)
        part = Part(Interface(name), address, code(address))
        yield part
        found = list(part.contract.linked(part.code).items())
        for view in sorted(PARTS.keys() & part.contract.views()):
            (there,) = read(name, address, view)
            if bytes.fromhex(there[2:]).rjust(32, b"\0") not in part.contract.immutables(part.code):
                raise Contradiction(f"{there} is not the {PARTS[view]} that the code of the {name} at {address} names")
            if there != ZERO_ACCOUNT and PARTS[view] in contracts.names():
                found.append((PARTS[view], there))
        waiting += [one for one in found if one[1] not in seen]
        seen.update(there for _, there in found)
