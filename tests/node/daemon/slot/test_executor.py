"""What the executor makes of an action: the ledger's call for each transaction, and the event that it comes to."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from dlx.ledger.errors import Reverted
from dlx.node.daemon.slot.executor import Executor
from dlx.node.daemon.stage.open_stage import OpenStage
from dlx.node.round import actions as a
from dlx.node.round import events as e
from tests.node.daemon.contexts import NOT_GIVEN, make_context
from tests.node.round.simulation import RUN, Simulation, make_rules

BLOCK = 17
SEAL: Any = object()


@dataclass
class Client:
    """Every transaction is mined in the same block, unless `refused` says why not."""

    refused: str = ""
    sent: list[tuple[Any, ...]] = field(default_factory=list)

    def _send(self, *call: Any) -> Any:
        if self.refused:
            raise Reverted(self.refused)
        self.sent.append(call)
        return SimpleNamespace(block=BLOCK)

    def seal(self, seal: Any, signatures: bytes) -> Any:
        return self._send("seal", seal, signatures)

    def accuse(self, run: bytes, account: str) -> Any:
        return self._send("accuse", run, account)

    def answer(self, run: bytes) -> Any:
        return self._send("answer", run)

    def deal(self, run: bytes, replica: int) -> Any:
        return self._send("deal", run, replica)

    def evict(self, run: bytes, account: str) -> Any:
        return self._send("evict", run, account)

    def move_down(self, run: bytes) -> Any:
        return self._send("move_down", run)


def executor(client: Client, refused: list[tuple[str, str]]) -> Executor:
    sim = Simulation(make_rules(), replicas=1, seed=0)
    machine = next(iter(sim.members.values())).machine
    manifest: Any = SimpleNamespace(retention=None)
    context = make_context(
        client=client, manifest=manifest, reject=lambda reason, source: refused.append((reason, source))
    )
    slot = OpenStage(context, sim.rules, 0, NOT_GIVEN, NOT_GIVEN)
    return Executor(slot, 0, machine, NOT_GIVEN, NOT_GIVEN, NOT_GIVEN, NOT_GIVEN, NOT_GIVEN)


@pytest.mark.parametrize(
    ("action", "call"),
    [
        (a.SendSeal(SEAL, b"entries"), ("seal", SEAL, b"entries")),
        (a.Send("accuse", "0x1"), ("accuse", RUN, "0x1")),
        (a.Send("answer"), ("answer", RUN)),
        (a.Send("deal", 3), ("deal", RUN, 3)),
        (a.Send("evict", "0x1"), ("evict", RUN, "0x1")),
        (a.Send("move_down"), ("move_down", RUN)),
    ],
    ids=lambda value: value.name if isinstance(value, a.Task) else "",
)
def test_each_transaction_is_a_call_of_the_ledger(action: a.Task, call: tuple[Any, ...]) -> None:
    client = Client()

    async def main() -> e.Event | None:
        return await executor(client, []).do(action)

    assert trio.run(main) == e.Mined(BLOCK) and client.sent == [call]


def test_a_transaction_that_the_ledger_refuses_may_be_sent_again() -> None:
    async def main() -> None:
        await executor(Client(refused="NotYet"), []).do(a.Send("answer"))

    with pytest.raises(a.ActionFailed, match="NotYet") as error:
        trio.run(main)
    assert not isinstance(error.value, a.LocalFault)


def test_what_is_carried_out_at_once_leaves_nothing_to_wait_for() -> None:
    refused: list[tuple[str, str]] = []
    executor(Client(), refused).do(a.Reject("wrong_seal", "0x1"))
    assert refused == [("wrong_seal", "0x1")]


def test_an_action_that_nobody_knows_is_a_fault_of_this_program() -> None:
    with pytest.raises(AssertionError):
        executor(Client(), []).do(a.Send("evict", 3))  # an account is no number
