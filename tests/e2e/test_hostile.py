"""A running devnet under attack: every lie is refused and counted, and the nodes and the rounds go on."""

import hashlib
import os
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import psutil
import pytest
import trio
from coincurve import PrivateKey

from dlx.ledger.bindings import Interface
from dlx.ledger.bonds import TwoStatements, decode_evidence
from dlx.ledger.client import seal_argument
from dlx.ledger.deployment import fund
from dlx.ledger.errors import Reverted
from dlx.ledger.events import Evicted
from dlx.ledger.keys import sign
from dlx.ledger.rpc.rpc_client import RpcClient
from dlx.ledger.transactions.sender import Sender
from dlx.ledger.typed import SIGNED_SIZE, Seal, entries
from dlx.p2p import wire
from dlx.p2p.pipe import PipeRefused
from dlx.p2p.streams import StreamBroken
from tests.e2e.attacker import Attacker, Fault, Overheard, agreed_peers, claim, domain_of, lie, refusals, stolen
from tests.e2e.devnets import REPLICAS, STAGES, Timing, Watched, create

pytestmark = pytest.mark.slow

# A round in which a member contradicts itself lacks a quorum, and waits for the timeout.
TIMING = Timing(grace=5, proposal=1, timeout=10, eviction=120)
QUORUM = 2  # of two


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    devnet = create(tmp_path_factory.mktemp("hostile") / "devnet", 100_000, steps=5, timing=TIMING)
    try:
        devnet.start()
        watched = Watched(devnet)
        watched.until_all_count()
        yield watched
    finally:
        devnet.stop()


@pytest.fixture(autouse=True)
def unharmed(watched: Watched) -> Iterator[None]:
    """After the attack the same processes run, every round since was sealed by and for honest members, nobody left."""
    devnet, before = watched.devnet, watched.sealed_rounds()
    pids = {name: devnet.pid(name) for name in devnet.names}
    yield
    watched.until_all_count(after=watched.sealed_rounds() + 1)
    assert {name: devnet.pid(name) for name in devnet.names} == pids
    for seal in watched.seals():
        for record, account in zip(seal.records, seal.accounts, strict=True):
            assert seal.round < before or watched.stated(record).account == account
    assert not watched.of(Evicted) and len(watched.view.members()) == REPLICAS * STAGES
    watched.assert_sealed_once()


def attacking(watched: Watched, directory: Path, program: Callable[[Attacker], Awaitable[None]]) -> None:
    async def run() -> None:
        attacker = Attacker(watched, directory)
        async with attacker.connected():
            await program(attacker)

    trio.run(run)


def test_false_contributions(watched: Watched, tmp_path: Path) -> None:
    member = stolen(watched, "node-0")

    async def attack(attacker: Attacker) -> None:
        async def once() -> None:
            await trio.to_thread.run_sync(watched.read)
            for fault in Fault:
                await attacker.contribute(lie(fault, watched, member, attacker.domain))

        await attacker.until_refused(attacker.victims, [fault.value for fault in Fault], once)

    attacking(watched, tmp_path, attack)


def test_a_second_contribution_is_kept_as_evidence(watched: Watched, tmp_path: Path) -> None:
    member = stolen(watched, "node-0")
    stage = watched.view.slot_of(member.address)[1]
    (peer,) = [name for name in of_stage(watched, stage) if name != "node-0"]

    async def attack(attacker: Attacker) -> None:
        async def once() -> None:
            await trio.to_thread.run_sync(watched.read)
            await attacker.contribute(claim(watched, member.address).sign(attacker.domain, member.secret))

        await attacker.until_refused([peer], ["equivocation"], once)

    attacking(watched, tmp_path, attack)
    state = watched.devnet.folder(peer).state
    kept = watched.until("the evidence", lambda: list(state.glob(f"*/stage-{stage}/evidence/*")))
    evidence = decode_evidence(kept[0].read_bytes())
    assert isinstance(evidence, TwoStatements) and evidence.place[1] == stage
    assert evidence.offender(domain_of(watched)) == member.address


def test_a_payload_with_a_flipped_byte(watched: Watched, tmp_path: Path) -> None:
    member = stolen(watched, "node-0")
    stage = watched.view.slot_of(member.address)[1]
    good = os.urandom(claim(watched, member.address).payload_size)
    name, flipped = hashlib.sha256(good).digest(), bytes([good[0] ^ 1]) + good[1:]
    fooled = of_stage(watched, stage)

    async def attack(attacker: Attacker) -> None:
        attacker.serve_as(name, flipped)

        async def once() -> None:
            await trio.to_thread.run_sync(watched.read)
            statement = claim(watched, member.address, payload=name)
            await attacker.contribute(statement.sign(attacker.domain, member.secret))

        await attacker.until_refused(fooled, ["bad_blob"], once)
        for victim in fooled:
            peers = await trio.to_thread.run_sync(agreed_peers, watched, victim)
            assert attacker.host.peer_id not in peers and len(peers) == len(attacker.victims) - 1

    attacking(watched, tmp_path, attack)
    for victim in watched.devnet.names:
        assert not (watched.devnet.folder(victim).blobs / name.hex()).exists()
    assert all(name != one.payload for seal in watched.seals() for one in map(watched.stated, seal.records))


def test_a_gossip_message_of_100_megabytes(watched: Watched, tmp_path: Path) -> None:
    def memory() -> int:
        return psutil.Process(watched.devnet.pid("node-0")).memory_info().rss

    def received() -> int:
        traffic = watched.status("node-0").traffic
        return sum(kind.received for kind in (getattr(traffic, name) for name in traffic.__struct_fields__))

    async def attack(attacker: Attacker) -> None:
        before, at_first = memory(), received()

        async def once() -> None:
            with pytest.raises(StreamBroken):
                await attacker.flood("node-0", 100 << 20)

        await attacker.until_refused(["node-0"], ["oversize_rpc", "abuse"], once)
        assert memory() - before < 32 << 20
        assert received() - at_first < 32 << 20
        assert attacker.host.peer_id not in agreed_peers(watched, "node-0")

    attacking(watched, tmp_path, attack)


def test_gossip_that_is_no_statement(watched: Watched, tmp_path: Path) -> None:
    reply = wire.encode(wire.BlobReply(1, None, 1))
    attacks = {
        "malformed": [b"\xc1", reply[:-1], wire.encode(wire.ContributionMessage(b"\xff" * SIGNED_SIZE))],
        "schema": [reply, b"\x81\xa4type\xa8proposal"],
        "oversize": [bytes(wire.GOSSIP_LIMIT + 1)],
    }

    async def attack(attacker: Attacker) -> None:
        for reason, messages in attacks.items():
            for message in messages:
                await attacker.until_refused(
                    attacker.victims, [reason], partial(attacker.say, attacker.contributions, message)
                )

    attacking(watched, tmp_path, attack)


def test_a_lying_proposer(watched: Watched, tmp_path: Path) -> None:
    """Next weights that the payloads do not give, proposed by the member whose turn it is, with a stranger's vote."""
    name, peer = of_stage(watched, 0)
    proposer, lies = stolen(watched, name), set()

    async def attack(attacker: Attacker) -> None:
        async def once() -> None:
            heard = await attacker.overhear(stage=0, votes=1)
            while heard.proposer != proposer.address:
                heard = await attacker.overhear(stage=0, votes=1)
            seal = replace(heard.seal, outcome=replace(heard.seal.outcome, weights=os.urandom(32)))
            lies.add(seal.outcome.weights)
            digest = seal.digest(attacker.domain)
            proposal = msgspec.structs.replace(
                heard.message, seal=seal.encode(), signature=sign(digest, proposer.secret)
            )
            vote = wire.AttestationMessage(
                attacker.run, seal.stage, seal.round, digest, sign(digest, PrivateKey().secret)
            )
            await attacker.say(attacker.seals, wire.encode(proposal), wire.encode(vote))

        await attacker.until_refused([peer], ["wrong_seal", "not_a_member"], once)

    attacking(watched, tmp_path, attack)
    assert lies and not lies & {seal.outcome.weights for seal in watched.seals()}


def test_a_pipe_in_a_members_name(watched: Watched, tmp_path: Path) -> None:
    (victim,) = [name for name in of_stage(watched, 1) if watched.status(name).replica == 0]
    neighbour = watched.view.member_at(0, 0)
    before = refusals(watched, victim).get("pipe_refused", 0)

    async def attack(attacker: Attacker) -> None:
        hello = wire.PipeHello(attacker.run, 0, 0, bytes.fromhex(neighbour[2:]))
        with pytest.raises(PipeRefused, match="not the member of the previous stage"):
            await attacker.pipes.open(attacker.victims[victim], hello)

    attacking(watched, tmp_path, attack)
    assert refusals(watched, victim)["pipe_refused"] > before


def test_an_altered_seal_from_an_outsider(watched: Watched, tmp_path: Path) -> None:
    """Anybody may send a seal. One with another byte in a record or in its outcome reverts, and so does one that lacks
    a vote, where the honest one succeeds: in the block before it was sealed."""
    settings, key = watched.devnet.settings, PrivateKey().secret
    rpc = RpcClient(settings.rpc_url)
    ledger = Interface("TrainingLedger", rpc)
    outsider = Sender(rpc, settings.chain_id, key, None)
    fund(settings.rpc_url, outsider.account)

    def lies_of(heard: Overheard) -> list[tuple[Seal, bytes]]:
        first, *others = heard.seal.records
        votes, founder = votes_of(heard)
        return [
            (replace(heard.seal, records=(replace(first, loss=first.loss ^ 1), *others)), entries(votes, {}, founder)),
            (replace(heard.seal, outcome=replace(heard.seal.outcome, weights=b"w" * 32)), entries(votes, {}, founder)),
            (heard.seal, entries(dict([next(iter(votes.items()))]), {})),
        ]

    def votes_of(heard: Overheard) -> tuple[dict[str, tuple[int, bytes]], bytes | None]:
        """Those of the stage's members, and a founder's, which a young stage needs."""
        slots = {account: watched.view.slot_of(account) for account in heard.votes}
        members = {a: (slot[0], heard.votes[a]) for a, slot in slots.items() if slot is not None and slot[1] == 0}
        return members, next((heard.votes[one] for one in watched.view.founders if one in heard.votes), None)

    def send(heard: Overheard) -> bool:
        """Whether the seal that was heard is the one that the honest sent."""
        # An attacker does not ask first. The honest seal may be there before: these revert all the same.
        to, lies = watched.view.domain.ledger, lies_of(heard)
        sent = [outsider.send(to, ledger.call_data("seal", seal_argument(*altered)), 2_000_000) for altered in lies]
        watched.until("the honest seal", lambda: watched.read().next_round(0) > heard.seal.round)
        sealed = watched.view.sealed[0, heard.seal.round]
        for one in sent:
            asking = partial(rpc.call, "eth_getTransactionReceipt", one.hashes[-1])
            assert watched.until("a lie in a block", asking)["status"] == "0x0"
        if sealed.digest != heard.seal.digest(watched.view.domain):
            return False

        def ask(seal: Seal, votes: bytes) -> None:
            ledger.call(to, "seal", seal_argument(seal, votes), block=sealed.at.block - 1)

        votes, founder = votes_of(heard)
        if founder is None:
            return False
        ask(heard.seal, entries(votes, {}, founder))
        for altered in lies:
            with pytest.raises(Reverted) as refused:
                ask(*altered)
            # Whoever signed another seal signed neither this one nor its record.
            assert refused.value.name in ("RecordUnsigned", "QuorumMissing")
        return True

    async def attack(attacker: Attacker) -> None:
        while not await trio.to_thread.run_sync(send, await attacker.overhear(stage=0, votes=QUORUM)):
            pass

    attacking(watched, tmp_path, attack)


def of_stage(watched: Watched, stage: int) -> list[str]:
    """The names of the nodes that hold a slot of the stage."""
    return [name for name, status in watched.everybody().items() if status.stage == stage]
