from hypothesis import given
from hypothesis import strategies as st

from dlx.p2p.token_buckets import TokenBuckets

STEPS = st.lists(st.tuples(st.floats(0, 10), st.floats(0, 5)), max_size=50)


@given(STEPS, st.booleans())
def test_nobody_gets_more_than_the_burst_and_the_rate(steps, in_debt):
    """Taken only where there is enough; or at once and then waited for."""
    now = 0.0
    buckets = TokenBuckets(2.0, burst=5.0, clock=lambda: now)
    got = 0.0
    for pause, amount in steps:
        now += pause
        if in_debt:
            wait = buckets.owe("a", amount)
            got += amount
            assert got <= 5.0 + 2.0 * (now + wait) + 1e-6
        elif buckets.take("a", amount):
            got += amount
            assert got <= 5.0 + 2.0 * now + 1e-6
    assert TokenBuckets(2.0, burst=5.0, clock=lambda: now).owe("b", 7.0) == 1.0  # another's is its own


def test_the_least_recently_used_names_are_forgotten():
    buckets = TokenBuckets(1.0, burst=1.0, names=2, clock=lambda: 0.0)
    assert buckets.take("a") and buckets.take("b") and not buckets.take("a") and buckets.take("c")
    assert not buckets.take("a") and buckets.take("b")
