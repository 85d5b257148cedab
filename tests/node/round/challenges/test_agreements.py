"""Who of neighbours lies about what went between them: who signed another thing than it published."""

from itertools import product

import pytest
from msgspec.structs import replace

from dlx.ground.constants import NO_HASH
from dlx.ledger.typed import Agreement, Domain, account_of, sign
from dlx.node.round.challenges.agreements import agreement_faults
from dlx.training.slot.segments import SegmentState
from dlx.training.slot.trace import NO_SIGNATURE, Boundary, Step, Trace, agreement

DOMAIN = Domain(31337, "0x" + "22" * 20)
RUN, ROUND, REPLICA, STAGES = b"r" * 32, 7, 3, 3
KEYS = [bytes([0x11 + stage]) * 32 for stage in range(STAGES)]
MAKERS = dict(enumerate(map(account_of, KEYS)))


def _trace(stage: int, sent: dict[int, bytes] | None = None, norms: dict[int, float] | None = None) -> Trace:
    """`sent`: the activations of each link, by its earlier stage; `norms`: the sums of squares."""
    tensors = {0: b"a" * 32, 1: b"b" * 32} | (sent or {})
    squares = {-1: 0.0, 0: 0.5, 1: 1.0, 2: 1.5} | (norms or {})
    boundary = Boundary(
        tensors.get(stage - 1, NO_HASH), b"g" * 32 if stage + 1 < STAGES else NO_HASH,
        tensors.get(stage, NO_HASH), b"g" * 32 if stage else NO_HASH,
    )  # fmt: skip
    state = SegmentState(b"w" * 32, b"o" * 32)
    return Trace((state, state), (boundary,), (Step(squares[stage - 1], squares[stage], 2.0, 3.0),))


def _signed(trace: Trace, stage: int, behind: bool, key: bytes, other: dict[str, object] | None = None) -> Trace:
    """With the signature of `key` over what this trace says of a link."""
    recorded = agreement(trace.boundaries, trace.steps, behind=behind)
    values = {"run": RUN, "round": ROUND, "replica": REPLICA, "stage": stage - behind, "recorded": recorded} | (
        other or {}
    )
    signature = sign(Agreement(**values).digest(DOMAIN), key)  # type: ignore[arg-type]
    before, after = trace.agreed
    return replace(trace, agreed=(signature, after) if behind else (before, signature))


def _honest() -> dict[int, Trace]:
    traces = {stage: _trace(stage) for stage in range(STAGES)}
    for stage, behind in product(range(STAGES), (True, False)):
        if 0 <= (other := stage + (-1 if behind else 1)) < STAGES:
            traces[stage] = _signed(traces[stage], stage, behind, KEYS[other])
    return traces


def _false(traces: dict[int, Trace], makers: dict[int, str] = MAKERS) -> list[int]:
    """The stages that are to blame."""
    return [
        stage for stage in traces if agreement_faults(DOMAIN, (RUN, ROUND, REPLICA, stage), makers, traces)
    ]  # fmt: skip


def test_honest_neighbours_have_each_others_signatures() -> None:
    assert _false(_honest()) == []
    alone = {stage: one for stage, one in _honest().items() if stage == 1}
    assert _false(alone) == [], "its neighbours serve no trace"


@pytest.mark.parametrize("liar", range(STAGES))
@pytest.mark.parametrize("about", ["tensors", "norms"])
def test_who_publishes_another_trace_than_it_agreed_on_is_false_and_nobody_else(liar: int, about: str) -> None:
    """It has no signature for that, and its neighbour has its own for what they agreed on."""
    for link in {liar - 1, liar} & {0, 1}:
        traces = _honest()
        other = _trace(liar, sent={link: b"x" * 32}) if about == "tensors" else _trace(liar, norms={link: 0.75})
        traces[liar] = replace(other, agreed=traces[liar].agreed)
        assert _false(traces) == [liar]
        faults = agreement_faults(DOMAIN, (RUN, ROUND, REPLICA, liar), MAKERS, traces)
        assert any("has not signed" in one for one in faults) and any("agreed with stage" in one for one in faults)


def test_who_signs_two_things_and_publishes_one_is_false() -> None:
    """Its neighbour, which works with it, publishes the other: both have signed both."""
    traces = _honest()
    other = _signed(_signed(_trace(1, sent={0: b"x" * 32}), 1, True, KEYS[0]), 1, False, KEYS[2])
    assert _false(traces | {1: other}) == [0, 1]


@pytest.mark.parametrize("other", [{"run": b"s" * 32}, {"round": 6}, {"replica": 2}, {"stage": 1}])
def test_a_signature_is_for_one_pipe_of_one_round(other: dict[str, object]) -> None:
    traces = _honest()
    traces[1] = _signed(traces[1], 1, True, KEYS[0], other)
    assert _false(traces) == [1]


@pytest.mark.parametrize("signature", [NO_SIGNATURE, b"\xff" * 65])
def test_a_trace_without_signatures_is_false(signature: bytes) -> None:
    traces = _honest()
    traces[1] = replace(traces[1], agreed=(signature, traces[1].agreed[1]))
    assert _false(traces) == [1]
    assert _false(traces, {stage: account for stage, account in MAKERS.items() if stage}) == [], "nobody to ask"


def test_a_stranger_s_trace_blames_nobody() -> None:
    """As of a member that took the slot later: the makers are those whom the seals count."""
    traces = _honest()
    traces[0] = _signed(_trace(0, sent={0: b"x" * 32}), 0, False, b"\x77" * 32)
    assert _false(traces) == [0]
