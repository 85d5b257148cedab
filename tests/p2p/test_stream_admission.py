import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from dlx.p2p.admission import SHARE
from dlx.p2p.stream_admission import ServedStream, ServedStreams

LIMIT, PER_PEER = 8, 3
MEMBERS = {"m0", "m1", "m2"}
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("open"), st.sampled_from(sorted(MEMBERS) + [f"s{index}" for index in range(9)])),
        st.tuples(st.sampled_from(["close", "rest"]), st.integers(0, 20)),
    ),
    max_size=60,
)


@given(STEPS)
def test_streams_are_bounded_and_members_find_a_place(steps):
    gone: list[str] = []
    open_: list[tuple[ServedStream, trio.Event]] = []

    async def main() -> None:
        streams = ServedStreams(LIMIT, PER_PEER, MEMBERS.__contains__, gone.append)

        async def hold(peer: str, task_status: trio.TaskStatus[ServedStream | None]) -> None:
            over = trio.Event()
            with streams.admit(peer, "203.0.113.0/24") as served:
                task_status.started(served)
                if served is not None:
                    open_.append((served, over))
                    await over.wait()
            open_[:] = [item for item in open_ if item[0] is not served]

        async with trio.open_nursery() as nursery:
            for step, what in steps:
                if step == "open":
                    peers, told = [served.peer for served, _ in open_], len(gone)
                    served = await nursery.start(hold, what)
                    if peers.count(what) == PER_PEER:
                        assert served is None and gone[told:] == [what]
                    elif len(peers) < LIMIT:
                        assert served is not None and gone[told:] == []
                    else:
                        assert len(gone) == told + 1  # somebody had to go, for a member a stranger
                        if what in MEMBERS and sum(peer not in MEMBERS for peer in peers) > (LIMIT + 1) // SHARE:
                            assert served is not None and gone[-1] not in MEMBERS
                elif open_ and step == "close":
                    open_[what % len(open_)][1].set()
                elif open_:
                    open_[what % len(open_)][0].busy = False
                await wait_all_tasks_blocked()  # who had to go has gone
                assert len(streams) == len(open_) <= LIMIT
            nursery.cancel_scope.cancel()

    trio.run(main)


async def test_what_has_to_go_is_cancelled():
    streams = ServedStreams(1, 1, {"member"}.__contains__, lambda peer: None)
    with streams.admit("stranger", "203.0.113.0/24") as first:
        with streams.admit("member", "203.0.113.0/24") as second:
            assert second is not None
        await trio.sleep_forever()
    assert first is not None and first.scope.cancelled_caught and not len(streams)
