"""Level 1: are the ledger's seals complete, in order, signed by those who were members, by the expected bytecode?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace

from dlx.ledger.abi import TypedError
from dlx.ledger.bindings import Interface
from dlx.ledger.client import LedgerClient
from dlx.ledger.errors import Contradiction, Reverted
from dlx.ledger.events import Convicted, Event, RunCreated, Sealed, decode_log
from dlx.ledger.index.event_index import EventIndex, Place
from dlx.ledger.keys import SignatureError
from dlx.ledger.parts import parts_of
from dlx.ledger.proof.history import History, Pin, pinned, proven, proves_code, told
from dlx.ledger.rpc.headers import ProvenHeader
from dlx.ledger.typed import Domain, run_id
from dlx.ledger.view.recount import Problem, verify_conviction, verify_seal
from dlx.ledger.view.run_state import ViewError
from dlx.ledger.view.run_view import RunView
from dlx.node.audit.chain_trust import name_source
from dlx.node.audit.report import Report
from dlx.node.home.errors import Failure
from dlx.node.home.formatting import bar
from dlx.node.home.program import line

LEVEL = 1

# What a recount can find wrong, by the line of the report it belongs to; all else is about contributions.
_SEAL = {"order", "digest", "plan", "empty seal", "outcome", "time"}
_QUORUM = {"quorum", "signatures"}


def audit_ledger(
    report: Report, client: LedgerClient, pin: Pin | None, progress: Callable[[str], None], stack: ExitStack
) -> tuple[RunView, History] | None:
    """Add the checks of level 1; returns the run as its events give it, and the chain that they are from: proven to the
    pinned block, else as the chain node tells it. None where they cannot be relied on at all. Both are of use until the
    stack ends: the seals are in the history's index.

    The client need not be connected: what `connect` refuses is a finding here. Raises Failure where the ledger knows
    no such run, LedgerUnavailable where the chain node is silent.
    """
    report.source = f"trusting {client.rpc.name} for the chain" if pin is None else f"not proven to --head {pin}"
    try:
        return _audit_ledger(report, client, pin, progress, stack)
    except Contradiction as error:
        report.add(LEVEL, "chain node", "FAIL", str(error))
        report.cannot_establish("anything that follows from what this chain node says")
        return None


def _audit_ledger(
    report: Report, client: LedgerClient, pin: Pin | None, progress: Callable[[str], None], stack: ExitStack
) -> tuple[RunView, History] | None:
    run = report.run
    domain = Domain(client.rpc.chain_id(), client.ledger)
    report.facts |= {"chain id": domain.chain_id, "ledger": domain.ledger}
    top = None if pin is None else pinned(client.rpc, pin)
    registry = _bytecode(report, client, top)
    if registry is None:
        return None
    report.facts["registry"] = registry
    if top is None:
        # Asked before the events are read, so that a seal that comes in between cannot look like a missing one.
        stored = _stored(client, run)
        history: History = stack.enter_context(told(client, progress))
    else:
        stored = None  # the proof that no log is left out says more
        history = stack.enter_context(proven(client, run, top, progress))
    name_source(report, client, history)
    index = history.index
    view = Recount(report, index, domain, progress).run()
    if any(check.verdict == "FAIL" for check in report.checks):
        stack.callback(index.forget)  # when all is read: the next audit asks the chain node again
    if not view.created:
        report.add(LEVEL, "completeness", "FAIL", "the contract has the run, but no event shows its creation", hash=run)
        return None
    _completeness(report, view, stored)
    return view, history


def _bytecode(report: Report, client: LedgerClient, top: ProvenHeader | None) -> str | None:
    """The registry's address, if all contracts are ours; proven by the state of the block `top`, if there is one."""

    def read(name: str, address: str, view: str) -> tuple[str, ...]:
        return Interface(name, client.rpc).call(address, view)

    found = {}
    for part in parts_of(client.ledger, client.code, read):
        if not part.is_ours:
            there = f"{len(part.code)} bytes of foreign code" if part.code else "no code"
            report.add(LEVEL, "bytecode", "FAIL", f"{there} at {part.address}, not this version's {part.name}")
            report.cannot_establish(f"everything else: the {part.name} is not the contract that this audit knows")
            return None
        _code_is_proven(report, client, top, part.name, part.address, part.code)
        found[part.name] = part.address
    return found["NodeRegistry"]


def _code_is_proven(
    report: Report, client: LedgerClient, top: ProvenHeader | None, name: str, address: str, code: bytes
) -> None:
    if top is None or proves_code(client.rpc, top, address, code):
        report.add(LEVEL, "bytecode", "PASS", f"{name} at {address}")
    else:
        lacking = f"the chain node at {client.rpc.name} has no proof of the state of block {top.number}"
        advice = "name one with --rpc-url that keeps old states, or a newer --head"
        report.add(LEVEL, "bytecode", "WARN", f"that {name} is at {address} is its word: {lacking}; {advice}")


def _stored(client: LedgerClient, run: bytes) -> tuple[list[int], list[bytes]]:
    """The contract's own count of sealed rounds for each stage, and the head that it stores: of that round's seal or,
    where one came in between, a later one's."""
    try:
        (config,) = client.read("runConfig", run)
        stages = range(config[2])
        due = [client.read("nextRound", run, stage)[0] for stage in stages]
        return due, [client.read("head", run, stage)[0] for stage in stages]
    except Reverted as error:
        see = line("run", "list", of_ledger=True)
        raise Failure(f"ledger {client.ledger} knows no run 0x{run.hex()} ({error}): see `{see}`") from None


class Recount:
    """Applies the run's events one by one and recounts every seal from what went before it."""

    def __init__(
        self,
        report: Report,
        index: EventIndex,
        domain: Domain,
        progress: Callable[[str], None],
    ) -> None:
        self._report = report
        self._index = index
        self._domain = domain
        self._progress = progress
        self._seals: dict[tuple[int, int], tuple[Place, tuple[str, ...]]] = {}
        self._makers: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._view = RunView(report.run, domain, 1, self._read)

    def run(self) -> RunView:
        count = 0
        try:
            for event in self._events():
                self._take(event)
                count += 1
        except (ViewError, SignatureError, TypedError) as error:
            # What follows would rest on a history with a hole in it: nothing sure can be said about it.
            self._report.add(LEVEL, "events", "FAIL", f"after {count} events: {error}")
            self._report.cannot_establish(f"what happened on the ledger after its first {count} events of this run")
        else:
            self._report.add(LEVEL, "events", "PASS", f"{count} events, each possible where it stands")
        return self._view

    def _read(self, stage: int, round: int) -> Sealed:
        place, accounts = self._seals[stage, round]
        event = self._index.event_at(place)
        assert isinstance(event, Sealed)
        return replace(event, accounts=accounts)

    def _events(self) -> Iterator[Event]:
        for log, time in self._index.logs(self._report.run):
            event = decode_log(log, time)
            if event is None:
                raise TypedError(f"block {log.block}, log {log.log_index} is no event of the ledger")
            yield event

    def _take(self, event: Event) -> None:
        view = self._view
        match event:
            case RunCreated():
                self._created(event)
            case Sealed():
                if not view.created:
                    raise ViewError("a seal before the run was created")
                self._seal(event)
            case Convicted():
                if not view.created:
                    raise ViewError("a conviction before the run was created")
                self._convicted(event)
        view.apply(event)
        if isinstance(event, Sealed):
            sealed = view.sealed[event.stage, event.round]
            makers = self._makers.setdefault(sealed.accounts, sealed.accounts)  # mostly those of the round before
            self._seals[event.stage, event.round] = (event.at.block, event.at.log_index), makers

    def _created(self, event: RunCreated) -> None:
        expected = run_id(self._domain.chain_id, self._domain.ledger, event.creator, event.config.manifest)
        if expected == event.run:
            detail = f"from chain id, ledger, creator {event.creator} and manifest"
            self._report.add(LEVEL, "run id", "PASS", detail, hash=event.run)
        else:
            detail = f"creator {event.creator} and the manifest give {expected.hex()}"
            self._report.add(LEVEL, "run id", "FAIL", detail, hash=event.run)

    def _seal(self, event: Sealed) -> None:
        rounds = self._view.config.rounds
        self._progress(
            f"{bar(event.round, rounds)} seals: round {event.round}, stage {event.stage}, of {rounds} rounds"
        )
        problems = verify_seal(self._view, event)
        by_line: dict[str, list[Problem]] = {"seal": [], "quorum": [], "contributions": []}
        for problem in problems:
            line = "seal" if problem.check in _SEAL else "quorum" if problem.check in _QUORUM else "contributions"
            by_line[line].append(problem)
        for line, wrong in by_line.items():
            for problem in wrong:
                detail = f"{problem.check}: {problem.detail}"
                self._report.add(
                    LEVEL, line, "FAIL", detail, round=event.round, stage=event.stage, hash=problem.hash or event.digest
                )
            if not wrong:
                self._report.add(LEVEL, line, "PASS", round=event.round, stage=event.stage, hash=event.digest)

    def _convicted(self, event: Convicted) -> None:
        round, stage, statement = event.round, event.stage, event.statement
        problems = verify_conviction(self._view, event)
        for problem in problems:
            detail = f"{problem.check}: {problem.detail}"
            self._report.add(LEVEL, "conviction", "FAIL", detail, round=round, stage=stage, hash=statement)
        if not problems:
            detail = f"of {event.account}"
            self._report.add(LEVEL, "conviction", "PASS", detail, round=round, stage=stage, hash=statement)


def _completeness(report: Report, view: RunView, stored: tuple[list[int], list[bytes]] | None) -> None:
    """`stored`: what the contract stores; None where the events are proven to be all."""
    config = view.config
    due, heads = stored or ([], [])
    for stage in range(config.stages):
        sealed, expected = view.next_round(stage), due[stage] if stage < len(due) else 0
        if sealed < expected:
            detail = f"the contract has sealed {expected} rounds, the events show {sealed}"
            report.add(LEVEL, "completeness", "FAIL", detail, round=sealed, stage=stage)
        else:
            report.add(LEVEL, "completeness", "PASS", f"{sealed} of {config.rounds} rounds sealed", stage=stage)
            if stored is not None:
                _head(report, view, stage, expected, heads[stage])
    complete = min(view.next_round(stage) for stage in range(config.stages))
    all_stages = f" by all {config.stages} stages" if config.stages > 1 else ""
    report.facts["rounds"] = f"{complete} of {config.rounds} sealed" + all_stages
    report.facts["state"] = "complete" if view.finished else "not started" if view.open_round is None else "open"


def _head(report: Report, view: RunView, stage: int, due: int, stored: bytes) -> None:
    """The contract keeps the digest of a stage's newest seal, which names the one before it, and so on: the events must
    be of the seals that the contract accepted."""
    later = {view.sealed[stage, round].digest for round in range(max(0, due - 1), view.next_round(stage))}
    known = later if due else later | {view.genesis[stage]}
    verdict, detail = ("PASS", "") if stored in known else ("FAIL", f"the contract stores {stored.hex()}")
    report.add(LEVEL, "stored digest", verdict, detail, stage=stage, hash=view.head(stage))  # type: ignore[arg-type]
