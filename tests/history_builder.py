"""A small but real history: embedded chain, the real contracts, four accounts, a tiny Llama, real payloads and seals.

Only the inner steps are left out: each "trained" update is small noise. Everything after them (codec, outer step,
statements, signatures, seals) is what nodes do. Use it with `pytest_plugins = ["tests.history_builder"]`.
PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

os.environ["HF_HUB_OFFLINE"] = "1"

import torch

from dlx.ground.blobs import write_blob
from dlx.ground.constants import MICRO, UNIT
from dlx.ground.merkle import tree_root
from dlx.ledger.chain import serve
from dlx.ledger.client import LedgerClient
from dlx.ledger.deployment import deploy, fund
from dlx.ledger.errors import Reverted
from dlx.ledger.typed import (
    Agreement,
    Contribution,
    Domain,
    Outcome,
    Seal,
    SignedContribution,
    account_of,
    entries,
    sign,
)
from dlx.ledger.typed import Plan as LedgerPlan
from dlx.ledger.view.run_view import RunView
from dlx.node.round.rules.pace import trial_steps
from dlx.node.round.rules.plans import manifest_plan
from dlx.node.runs.find import config_of, genesis_of
from dlx.training import codecs
from dlx.training.data.prepare import prepare
from dlx.training.inner.states import unused
from dlx.training.models import weights
from dlx.training.models.stages import initialise, stage_shapes
from dlx.training.outer import policy
from dlx.training.outer.step import SealedPayload, apply_round, measure_round, start_hash
from dlx.training.recipe.draft import Draft, DraftData, complete
from dlx.training.recipe.manifest import Manifest, canonical_bytes
from dlx.training.recipe.recipe import BlobRef, Model, Outer, Plan, Timing, WeightsRef
from dlx.training.recipe.usage import Generation, Usage
from dlx.training.recipe.usage import canonical_bytes as usage_bytes
from dlx.training.slot.segments import SegmentState, segments_in
from dlx.training.slot.trace import NO_SIGNATURE, Boundary, Step, Trace, agreement
from tests.patience import PATIENCE

ZERO = bytes(32)
STAGES, REPLICAS = 2, 2
TINY: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "initializer_range": 0.02,
    "rope_scaling": None,
    "tie_word_embeddings": False,
}
USAGE = Usage(version=1, chat_templates={"default": "{{ messages }}"}, generation=Generation(temperature=0.5))


def _same_statement(statement: Contribution) -> Contribution:
    return statement


def _same_trace(statement: Contribution, trace: bytes) -> bytes:
    return trace


def _same_outcome(stage: int, round: int, made: Outcome) -> Outcome:
    return made


def trace_of(statement: Contribution, stages: int) -> Trace:
    """One that fits the statement, and those that fit the replica's others."""

    def named(what: str) -> bytes:
        return hashlib.sha256(f"{what} {statement.round} {statement.replica}".encode()).digest()

    def sent(segment: int, stage: int, between: str) -> bytes:
        return named(f"{between} {segment} {stage}") if 0 <= stage < stages - 1 else ZERO

    here, before, loss = statement.stage, statement.stage - 1, statement.loss / MICRO
    last = statement.segments - 1
    within = [SegmentState(named(f"weights {n} {here}"), named(f"state {n} {here}")) for n in range(last)]
    first = SegmentState(statement.weights_before, statement.optimiser_before)
    end = SegmentState(statement.change, statement.optimiser_after)
    return Trace(
        (first, *within, end),
        tuple(
            Boundary(sent(n, before, "forth"), sent(n, here, "back"), sent(n, here, "forth"), sent(n, before, "back"))
            for n in range(statement.segments)
        ),
        (Step(float(here), here + 1.0, float(stages), loss),) * statement.inner_steps,
    )


def _same_multipliers(stage: int, round: int, honest: tuple[int, ...]) -> tuple[int, ...]:
    return honest


def _same_size(round: int, replica: int, honest: float) -> float:
    return honest


def _same_plan(stage: int, round: int, kept: LedgerPlan) -> LedgerPlan:
    return kept


@dataclass(frozen=True)
class Mischief:
    """What the members of a history do wrong, all together: the chain lets all of it pass."""

    statement: Callable[[Contribution], Contribution] = _same_statement  # before it is signed
    trace: Callable[[Contribution, bytes], bytes] = _same_trace  # (statement, honest one) -> what they publish
    outcome: Callable[[int, int, Outcome], Outcome] = _same_outcome  # (stage, round, honest one) -> what they seal
    multipliers: Callable[[int, int, tuple[int, ...]], tuple[int, ...]] = _same_multipliers  # in the same way
    plan: Callable[[int, int, LedgerPlan], LedgerPlan] = _same_plan  # the one that went before -> what they seal
    size: Callable[[int, int, float], float] = _same_size  # (round, replica, honest one) -> of what they send


@dataclass(frozen=True)
class History:
    """A run with sealed rounds. `blobs` has everything ever published: manifest, genesis, payloads, statements,
    all versions."""

    rpc_url: str
    registry: str
    ledger: str
    run: bytes
    manifest: Manifest
    blobs: Path
    keys: dict[str, bytes]  # account -> its key
    node_keys: dict[str, bytes]
    slots: dict[str, tuple[int, int]]  # account -> (replica, stage)
    versions: dict[tuple[int, int], bytes]  # (stage, version) -> weights hash, as sealed
    payloads: dict[tuple[int, int], list[bytes]]  # (stage, round) -> payload hashes, ascending replicas
    statements: dict[tuple[int, int], list[bytes]]  # the names of theirs

    def client(self) -> LedgerClient:
        """A connected read-only client."""
        client = LedgerClient(self.rpc_url, self.ledger)
        client.connect()
        return client

    def view(self) -> RunView:
        """The run as its events say."""
        client = self.client()
        view = RunView(self.run, client.domain)
        for event in client.poll(client.feed(self.run)).events:
            view.apply(event)
        return view


@contextmanager
def embedded_chain(directory: Path) -> Iterator[str]:
    """The URL of a quick embedded chain that runs in a thread."""
    stop, ready, urls = threading.Event(), threading.Event(), []

    def on_ready(url: str) -> None:
        urls.append(url)
        ready.set()

    options = {"block_time": 0.02, "time_lapse": True, "on_ready": on_ready, "stop": stop}
    server = threading.Thread(target=serve, args=(directory,), kwargs=options, daemon=True)
    server.start()
    if not ready.wait(PATIENCE):
        raise TimeoutError("the embedded chain did not start")
    try:
        yield urls[0]
    finally:
        stop.set()
        server.join(PATIENCE)


class Network:
    """Contracts on a chain and four registered accounts; `run` makes histories."""

    def __init__(self, rpc_url: str, folder: Path, rounds: int) -> None:
        self.rpc_url, self.blobs, self._rounds = rpc_url, folder / "blobs", rounds
        self.blobs.mkdir(parents=True)
        (folder / "text.txt").write_text("".join(f"line {n} of a text with structure: {n % 7}\n" for n in range(200)))
        self._data = prepare([folder / "text.txt"], self.blobs)
        keys = [hashlib.sha256(f"account {n}".encode()).digest() for n in range(STAGES * REPLICAS)]
        self.keys = {account_of(key): key for key in keys}
        self.node_keys = {account: hashlib.sha256(b"node" + key).digest() for account, key in self.keys.items()}
        with ThreadPoolExecutor(len(keys)) as pool:
            list(pool.map(lambda account: fund(rpc_url, account), self.keys))
            contracts = deploy(rpc_url, keys[0])
            self.registry, self.ledger = contracts.registry, contracts.ledger
            self.clients = {a: LedgerClient(rpc_url, self.ledger, key) for a, key in self.keys.items()}
            addresses = ["/ip4/127.0.0.1/tcp/1"]  # nobody listens there
            list(pool.map(lambda a: self.clients[a].register(self.node_keys[a], addresses), self.keys))

    def run(
        self,
        name: str,
        mischief: Mischief = Mischief(),
        outer: Outer = Outer(lr=0.7, momentum=0.9, nesterov=True, delay=1, alpha=0.7, policy="mean"),
        empty: Collection[tuple[int, int]] = (),
        left_out: Collection[tuple[int, int, int]] = (),
        **changes: Any,
    ) -> History:
        """A new run whose rounds are all sealed; `name` also seeds the noise. `empty`: the (stage, round) that time
        out without a contribution, which costs 2 to 5 seconds each. `left_out`: the (stage, round, replica) whose
        contribution the seal does not count. `changes` are other fields of the draft."""
        manifest = self._manifest(name, outer, changes)
        content = canonical_bytes(manifest)
        creator = next(iter(self.clients.values()))
        run = creator.create_run(config_of(manifest), manifest.name, genesis_of(manifest))
        write_blob(self.blobs, [content])
        with ThreadPoolExecutor(len(self.clients)) as pool:
            if bond := config_of(manifest).bond:
                list(pool.map(lambda one: one.deposit(run, one.account, bond), self.clients.values()))
            slots = dict(zip(self.clients, pool.map(lambda c: c.join_run(run), self.clients.values()), strict=True))
            domain = Domain(creator.chain_id, self.ledger)
            plans: dict[tuple[int, int], LedgerPlan] = {}
            members = [
                _Stage(self, manifest, run, domain, stage, slots, mischief, empty, left_out, plans)
                for stage in range(STAGES)
            ]
            for round in range(self._rounds):
                list(pool.map(_Stage.seal, members, [round] * STAGES))
        return History(
            rpc_url=self.rpc_url,
            registry=self.registry,
            ledger=self.ledger,
            run=run,
            manifest=manifest,
            blobs=self.blobs,
            keys=self.keys,
            node_keys=self.node_keys,
            slots=slots,
            versions={(s.stage, t): digest for s in members for t, (digest, _) in enumerate(s.versions)},
            payloads={(s.stage, t): digests for s in members for t, digests in enumerate(s.payloads)},
            statements={(s.stage, t): digests for s in members for t, digests in enumerate(s.statements)},
        )

    def _manifest(self, name: str, outer: Outer, changes: dict[str, Any]) -> Manifest:
        values: dict[str, Any] = dict(
            name=name,
            model=Model(TINY),
            stages=[(0, 1), (1, 2)],
            data=DraftData(source=["text.txt"], sequence_length=16, batch_size=4, micro_batches=2, seed=7),
            outer=outer,
            plan=Plan(inner_steps=4),
            rounds=self._rounds,
            tokens_per_step=64,
            timing=Timing(round_timeout=2, straggler_grace=1, proposal_timeout=1, eviction_time=2),
            min_replicas=REPLICAS,
            max_replicas=4,
        )
        draft = Draft(**{**values, **changes})
        genesis = [self._weights(draft, stage) for stage in range(STAGES)]
        plain = msgspec.structs.replace(draft, adapter=None)
        base = [self._weights(plain, stage) for stage in range(STAGES)] if draft.adapter else []
        content = usage_bytes(USAGE)
        usage = BlobRef(write_blob(self.blobs, [content]).hex(), len(content))
        return complete(draft, genesis, self._data, usage=usage, base=base)

    def _weights(self, draft: Draft, stage: int) -> WeightsRef:
        content = weights.serialise(initialise(draft, stage))
        name = write_blob(self.blobs, [content]).hex()
        return WeightsRef(name, len(content), tree_root([content]).hex())


class _Stage:
    """The members of one stage, who agree on everything."""

    def __init__(
        self,
        network: Network,
        manifest: Manifest,
        run: bytes,
        domain: Domain,
        stage: int,
        slots: dict[str, tuple[int, int]],
        mischief: Mischief,
        empty: Collection[tuple[int, int]],
        left_out: Collection[tuple[int, int, int]],
        plans: dict[tuple[int, int], LedgerPlan],
    ) -> None:
        self.stage = stage
        self.versions = [(bytes.fromhex(manifest.genesis[stage].sha256), ZERO)]
        self.payloads: list[list[bytes]] = []
        self.statements: list[list[bytes]] = []
        self._head = self.versions[0][0]
        self._network, self._manifest, self._run, self._domain = network, manifest, run, domain
        self._mischief, self._empty, self._left_out = mischief, empty, left_out
        self._slots = slots
        self._replicas = {a: slot[0] for a, slot in slots.items() if slot[1] == stage}
        self._members = sorted(self._replicas, key=lambda account: self._replicas[account])
        self._shapes = stage_shapes(manifest, stage)
        self._codec = codecs.codec(manifest.codec.name)
        self._plans = plans  # as sealed, by (stage, round)
        self._unused = unused(manifest, stage)
        self._stated: dict[str, list[Contribution]] = {account: [] for account in self._members}  # newest first

    def plan(self, round: int) -> LedgerPlan:
        """The one in force: its stage's level and rank, stage 0's inner steps."""
        source, first = round - self._manifest.outer.delay - 1, self._manifest.plan
        if source < 0 or self._manifest.adaptive is None:
            return LedgerPlan(first.level, first.rank, first.inner_steps)
        return replace(self._plans[self.stage, source], inner_steps=self._plans[0, source].inner_steps)

    def seal(self, round: int) -> None:
        """Publish, propose, attest, seal: as one."""
        blobs, before = self._network.blobs, self.versions[round]
        listed = [] if (self.stage, round) in self._empty else self._members
        every = [self._contribution(account, round).contribution for account in listed]
        names = [write_blob(blobs, [one.encode()]) for one in every]
        signed = [one for one in every if (self.stage, round, one.replica) not in self._left_out]
        self.payloads.append([one.payload for one in signed])
        self.statements.append([name for name in names if name in {one.hash() for one in signed}])
        bound, planned = self.plan(round), self.plan(round + self._manifest.outer.delay)
        plan = manifest_plan(bound)
        counted = [SealedPayload(blobs / one.payload.hex(), one.inner_steps, UNIT, plan) for one in signed]
        honest = (UNIT,) * len(signed)
        if self._manifest.outer.policy != "mean":
            honest = policy.multipliers(measure_round(self._manifest, self.stage, counted))
        weighed = self._mischief.multipliers(self.stage, round, honest)
        counted = [replace(one, multiplier=by) for one, by in zip(counted, weighed, strict=True)]
        sealed_plan = self._plans[self.stage, round] = self._mischief.plan(self.stage, round, planned)
        outcome, after = Outcome.empty(bound.inner_steps, sealed_plan), before
        if counted:
            momentum = None if before[1] == ZERO else blobs / before[1].hex()
            made = apply_round(self._manifest, self.stage, blobs / before[0].hex(), momentum, counted, blobs)
            hashes = made.weights, made.momentum, made.weights_root, made.momentum_root
            honest_outcome = Outcome(*hashes, bound.inner_steps, sealed_plan)
            outcome = self._mischief.outcome(self.stage, round, honest_outcome)
            after = outcome.weights, outcome.momentum
        self.versions.append(after)
        records = tuple(one.record(by) for one, by in zip(signed, weighed, strict=True))
        seal = Seal(self._run, self.stage, round, self._head, outcome, records)
        self._head = digest = seal.digest(self._domain)
        keys = self._network.keys
        founder = sign(digest, next(iter(keys.values())))  # of who created the run
        signatures = {account: (self._replicas[account], sign(digest, keys[account])) for account in self._members}
        while True:
            try:
                self._network.clients[self._members[0]].seal(seal, entries(signatures, {}, founder))
                return
            except Reverted as error:
                if error.name != "TooEarlyToSeal":
                    raise
                time.sleep(0.2)  # the chain's clock decides

    def _agreed(self, statement: Contribution, trace: Trace) -> Trace:
        """With the signatures of the neighbours."""
        signatures = [NO_SIGNATURE, NO_SIGNATURE]
        for side, other in enumerate((self.stage - 1, self.stage + 1)):
            for account, slot in self._slots.items():
                if slot == (statement.replica, other):
                    recorded = agreement(trace.boundaries, trace.steps, behind=side == 0)
                    place = self._run, statement.round, statement.replica, min(self.stage, other)
                    signed = Agreement(*place, recorded).digest(self._domain)
                    signatures[side] = sign(signed, self._network.keys[account])
        return Trace(trace.states, trace.boundaries, trace.steps, (signatures[0], signatures[1]))

    def _contribution(self, account: str, round: int) -> SignedContribution:
        seed = f"{self._manifest.name} {self.stage} {round} {self._replicas[account]}"
        noise = torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(seed.encode()).digest()[:6], "big"))
        replica = self._replicas[account]
        scale = self._mischief.size(round, replica, 1e-2 * (1 + replica))  # so that norms differ
        update = {name: torch.randn(shape, generator=noise) * scale for name, shape in self._shapes.items()}
        plan = self.plan(round)
        payload = self._codec.encode(update, manifest_plan(plan))
        base, outer = max(0, round - self._manifest.outer.delay), self._manifest.outer
        previous = next(iter(self._stated[account]), None)
        weights_before, start = self.versions[base][0], ZERO
        if previous is not None and previous.round == round - 1 and outer.delay and outer.alpha:
            start, blobs = previous.payload, self._network.blobs
            earlier = manifest_plan(self.plan(round - 1))
            weights_before = start_hash(
                self._manifest, self.stage, blobs / weights_before.hex(), blobs / start.hex(), earlier
            )
        decided = [one for one in self._stated[account] if one.round == round - 1 - outer.delay]
        folded = [one.payload for one in decided if one.hash() not in self.statements[one.round]]
        # All stages of a replica take the same steps.
        made = [[(stage, at) for at in range(base) if (stage, at) not in self._empty] for stage in range(STAGES)]
        counted = all(any((*one, replica) not in self._left_out for one in places) for places in made)
        steps = plan.inner_steps if counted else trial_steps(plan.inner_steps)
        statement = Contribution(
            run=self._run,
            round=round,
            stage=self.stage,
            replica=replica,
            account=account,
            base_weights=self.versions[base][0],
            payload=write_blob(self._network.blobs, [payload]),
            payload_size=len(payload),
            payload_root=tree_root([payload]),
            plan=plan.hash(),
            inner_steps=steps,
            loss=5_500_000 - 300_000 * round,
            previous=previous.hash() if previous else ZERO,
            start_payload=start,
            folded_payload=folded[0] if folded else ZERO,
            folded_payload2=ZERO,
            weights_before=weights_before,
            optimiser_before=previous.optimiser_after if previous else self._unused,
            optimiser_after=hashlib.sha256(f"optimiser {seed}".encode()).digest(),
            change_before=previous.change if previous else ZERO,
            payload_before=previous.payload if previous else ZERO,
            change=hashlib.sha256(f"change {seed}".encode()).digest(),
            trace=ZERO,
            segments=segments_in(steps, 20),
            compute_ms=1,
            exchange_ms=1,
            kept=0 if self._manifest.adaptive is None else UNIT * 55 // 100,  # the rank is right
            flags=0,
        )
        stated = self._mischief.statement(statement)
        if stated.trace == ZERO:
            trace = self._agreed(stated, trace_of(stated, STAGES)).encode()
            stated = replace(stated, trace=write_blob(self._network.blobs, [self._mischief.trace(stated, trace)]))
        self._stated[account].insert(0, stated)
        return stated.sign(self._domain, self._network.keys[account])


@pytest.fixture(scope="session")
def history_network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    folder = tmp_path_factory.mktemp("history")
    with embedded_chain(folder / "chain") as url:
        yield Network(url, folder, rounds=3)


@pytest.fixture(scope="session")
def honest_history(history_network: Network) -> History:
    """3 rounds of 2 replicas x 2 stages with Nesterov momentum and delay 1. Read-only: copy blobs to change them."""
    return history_network.run("honest")
