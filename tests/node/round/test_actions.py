"""What actions are called, and what the machine makes of what comes of them."""

from dlx.node.round import actions as a
from dlx.node.round import events as e
from tests.node.round.simulation import Simulation, make_rules


def test_transactions_are_named_and_told_apart_by_what_they_are_about() -> None:
    evict, deal, move = a.Send("evict", "0x1"), a.Send("deal", 3), a.Send("move_down")
    assert [action.name for action in (evict, deal, move)] == ["SendEvict", "SendDeal", "SendMoveDown"]
    assert len({action.key() for action in (evict, a.Send("evict", "0x2"), a.Send("accuse", "0x1"), deal, move)}) == 5


def test_what_is_said_late_of_another_round_does_not_end_the_one_under_way() -> None:
    sim = Simulation(make_rules(stages=1, delay=0), replicas=1, seed=3)
    (member,) = sim.members.values()
    assert sim.run(lambda: member.machine.training == 1, 60)
    sim.feed(member, e.RoundAbandoned(0, "a blob was damaged"))
    assert member.machine.training == 1
    sim.feed(member, e.RoundAbandoned(1, "a blob was damaged"))
    assert member.machine.training is None
