"""Whether a contribution's trace is what its maker agreed on with its neighbours: from traces and signatures alone.

At a round's end both ends of a pipe sign what they recorded of it, once a round, and each keeps the other's signature
in its trace. So where two traces contradict each other, who published another one than it agreed on has signed both.
Who followed the rules is never to blame.
"""

from collections.abc import Mapping
from dataclasses import replace

from dlx.ledger.typed import Agreement, Domain, SignatureError, recover
from dlx.ledger.view.run_view import RunView
from dlx.training.slot.trace import Trace, agreement


def answerable(view: RunView, round: int, delay: int, stage: int, makers: Mapping[int, str]) -> dict[int, str]:
    """Of the makers those whose missing signature is held against the maker of `stage`, and that one.

    Who came to its slot after the round could begin may not be who trained it: the signature is of who left.
    """
    base = round - 1 - delay
    found = {stage: makers[stage]}
    for other in makers.keys() & {stage - 1, stage + 1}:
        sealed = view.sealed.get((other, base))
        began = sealed.at.time if sealed is not None else (view.started_at or 0) if base < 0 else -1
        if makers[other] in view.accounts and view.joined_at(makers[other]) <= began:
            found[other] = makers[other]
    return found


def agreement_faults(
    domain: Domain, place: tuple[bytes, int, int, int], makers: Mapping[int, str], traces: Mapping[int, Trace]
) -> list[str]:
    """What the trace of one contribution says against what its maker and its neighbours signed.

    `place`: run, round, replica, stage of the contribution. `makers`: the accounts whose contributions the round's
    seals count of the replica, by stage. `traces`: its own, and its neighbours' as far as they are to be had. A
    neighbour that no seal counts is not asked for.
    """
    run, round, replica, stage = place
    faults = []
    for other, behind in ((stage - 1, True), (stage + 1, False)):
        if other not in makers:
            continue
        link = Agreement(run, round, replica, min(stage, other), b"")
        recorded, signer = _signed(domain, link, traces[stage], behind)
        if signer != makers[other]:
            faults.append(f"trace: the member of stage {other} has not signed what it says of the pipe between them")
        if other in traces:
            theirs, signer = _signed(domain, link, traces[other], not behind)
            if theirs != recorded and signer == makers[stage]:
                faults.append(f"trace: its maker agreed with stage {other} on other tensors or norms than it published")
    return faults


def _signed(domain: Domain, link: Agreement, trace: Trace, behind: bool) -> tuple[bytes, str | None]:
    """What the trace's maker recorded of a pipe, and who else has signed that."""
    recorded = agreement(trace.boundaries, trace.steps, behind=behind)
    try:
        return recorded, recover(replace(link, recorded=recorded).digest(domain), trace.agreed[0 if behind else 1])
    except SignatureError:
        return recorded, None
