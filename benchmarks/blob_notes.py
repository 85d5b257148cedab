"""`dlx-node`, which also notes when it reaches each phase of a round: a line in FOLDER for each, on the wall clock.

`python -m benchmarks.blob_notes start ...`, with the folder of the notes in FOLDER.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from dlx.ledger.rpc.http_transport import HttpTransport
from dlx.ledger.rpc.json_rpc import Request
from dlx.node.cli import app
from dlx.node.daemon.slot.executor import Executor, Work
from dlx.node.daemon.slot.session import Session
from dlx.node.round import actions as a
from dlx.node.round import events as e
from dlx.node.trainer import messages as m

FOLDER = "LATENCY_FOLDER"  # of the environment
_DONE = {
    "Contribute": "contribution signed",
    "GossipContribution": "contribution sent",
    "CheckStatement": "statement checked",
    "FetchPayload": "payload fetched and checked",
    "ComputeOuter": "outer step done",
    "SignSeal": "seal signed",
    "AdoptVersion": "version adopted",
    "HaveSamples": "samples here",
}
PHASES = (
    "training ends",
    "payload encoded",
    "contribution signed",
    "contribution sent",
    "contribution heard",
    "statement checked",
    "payload fetched and checked",
    "outer step done",
    "seal signed",
    "vote or proposal heard",
    "quorum",
    "transaction sent",
    "transaction mined",
    "seal seen",
    "version adopted",
    "samples here",
    "the next round begins",
)
_ASKED = "asked"


class Note(NamedTuple):
    """`more`: the thread and the method of what was `asked` of the chain node."""

    at: float  # Unix seconds
    what: str
    round: int
    more: str = ""


def read(folder: Path, name: str) -> list[Note]:
    return [Note(*json.loads(line)) for line in (folder / f"{name}.notes").read_text().splitlines()]


def last(notes: list[Note], what: str, round: int) -> float | None:
    """What says a thing again and again said it when it did so first, but for what every contribution takes."""
    found = [note.at for note in notes if (note.what, note.round) == (what, round)]
    each = what in ("contribution heard", "statement checked", "payload fetched and checked")
    return (max if each else min)(found) if found else None


def asked(notes: list[Note]) -> int:
    """How many exchanges with the chain node."""
    return sum(note.what == _ASKED for note in notes)


def asked_before_sending(notes: list[Note]) -> list[list[str]]:
    """What threads asked of the chain node from when they began with a seal until its transaction was sent."""
    found, begun = [], None
    for index, note in enumerate(notes):
        begun = index if note.what == "quorum" else begun
        if begun is not None and note.more.endswith(" eth_sendRawTransaction"):
            thread = note.more.partition(" ")[0]
            own = (one for one in notes[begun : index + 1] if one.what == _ASKED)
            found.append([one.more.partition(" ")[2] for one in own if one.more.startswith(f"{thread} ")])
            begun = None
    return found


def main() -> None:
    """Runs the command line like the program itself."""
    root = Path(sys.argv[sys.argv.index("--datadir") + 1])
    with Path(os.environ[FOLDER], f"{root.name}.notes").open("a", buffering=1) as file:
        _watch(_Notes(file))
        app.main()


class _Notes:
    def __init__(self, file: TextIO) -> None:
        self._file = file

    def __call__(self, what: str, round: int, more: str = "") -> None:
        self._file.write(json.dumps([time.time(), what, round, more]) + "\n")


def _watch(note: _Notes) -> None:
    """Wrap what each phase goes through."""
    sealing = -1
    emit, on_trainer, carry_out = Session.emit, Session._on_trainer, Session._carry_out
    on_ledger, start_round, ask = Session.on_ledger, Executor._start_round, HttpTransport.ask

    def emitting(self: Session, event: e.Event) -> bool:
        match event:
            case e.Done(action=a.SendSeal(seal=seal)):
                note("transaction mined", seal.round)
            case e.Done(action=action) if type(action).__name__ in _DONE:
                note(_DONE[type(action).__name__], _round(action))
            case e.ContributionSeen():
                note("contribution heard", event.signed.contribution.round)
            case e.ProposalSeen():
                note("vote or proposal heard", event.seal.round)
            case e.AttestationSeen():
                note("vote or proposal heard", event.round)
        return emit(self, event)

    def from_trainer(self: Session, message: m.FromTrainer) -> None:
        match message:
            case m.Step() if message.step == self.progress.steps:
                note("training ends", message.round)
            case m.Finished():
                note("payload encoded", message.trained.round)
        on_trainer(self, message)

    async def carrying_out(self: Session, task: a.Task, work: Work) -> None:
        nonlocal sealing
        if isinstance(task, a.SendSeal):
            sealing = task.seal.round
            note("quorum", task.seal.round)
        await carry_out(self, task, work)
        if isinstance(task, a.GossipContribution):
            note(_DONE["GossipContribution"], task.signed.contribution.round)

    def seeing(self: Session, view: Any, block: int) -> None:
        before = self.machine.unsealed if self.machine else 0
        if view.next_round(self.stage) > before:
            note("seal seen", before)
        on_ledger(self, view, block)

    def starting(self: Executor, order: a.StartRound) -> None:
        note("the next round begins", order.round - 1)
        start_round(self, order)

    def asking(self: HttpTransport, requests: Sequence[Request], timeout: float) -> list[Any]:
        method = requests[0][0]
        note(_ASKED, -1, f"{threading.get_ident()} {method}")
        answer = ask(self, requests, timeout)
        if method == "eth_sendRawTransaction":
            note("transaction sent", sealing)
        return answer

    for owner, name, wrapper in (
        (Session, "emit", emitting),
        (Session, "_on_trainer", from_trainer),
        (Session, "_carry_out", carrying_out),
        (Session, "on_ledger", seeing),
        (Executor, "_start_round", starting),
        (HttpTransport, "ask", asking),
    ):
        setattr(owner, name, wrapper)


def _round(action: Any) -> int:
    match action:
        case a.Contribute():
            return action.trained.round
        case a.FetchPayload() | a.CheckStatement():
            return action.signed.contribution.round
        case a.SignSeal():
            return action.seal.round
        case a.AdoptVersion():
            return action.version - 1
        case a.HaveSamples():
            return action.round - 1
    return int(action.round)


if __name__ == "__main__":
    main()
