from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dlx.p2p.admission import (
    QUIET,
    SAVED,
    SHARE,
    TRICKLE,
    Leftover,
    Place,
    networks,
    next_in_line,
    owner,
    prefix,
    worst,
)

PLACES = st.lists(
    st.builds(
        Place,
        peer=st.sampled_from("abcdefgh"),
        networks=st.tuples(st.sampled_from("ab"), st.sampled_from("123")),
        registered=st.booleans(),
        in_use=st.booleans(),
        turn=st.floats(-10, 10),
    ),
    min_size=1,
    max_size=40,
)


@pytest.mark.parametrize(
    "address, network",
    [
        ("203.0.113.7", "203.0.113.0/24"),
        ("::ffff:203.0.113.7", "203.0.113.0/24"),
        ("2001:db8:1:2::3", "2001:db8:1::/48"),
        ("fe80::1%eth0", "fe80::/48"),
        ("not an address", "not an address"),
    ],
)
def test_an_owner_of_many_addresses_is_one(address, network):
    assert prefix(address) == networks(address)[-1] == network


@given(PLACES)
def test_who_goes_first(places):
    """Each rule of the order, where the rules before it leave the choice."""
    gone = places[worst(places)]
    strangers = [place for place in places if not place.registered]
    members = [place for place in places if place.registered]
    group = strangers if len(strangers) > len(places) // SHARE or not members else members
    assert gone in group
    if any(not place.in_use for place in group):
        group = [place for place in group if not place.in_use]
    assert gone in group
    crowds = Counter(network for place in (members if gone.registered else strangers) for network in place.networks)
    for at in range(2):
        most = max(crowds[other.networks[at]] for other in group)
        group = [place for place in group if crowds[place.networks[at]] == most]
        assert gone in group
    peers = Counter(place.peer for place in places)
    group = [place for place in group if peers[place.peer] == max(peers[other.peer] for other in group)]
    assert gone in group
    assert gone.turn == min(place.turn for place in group)


ARRIVALS = st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=200)


@given(ARRIVALS, st.integers(8, 24))
@example([(False, 0)] * 100 + [(True, 0)] * 30, 16)
def test_whoever_comes_in_whatever_order_members_and_sparse_strangers_get_in(arrivals, limit):
    """Connections, as they come: the youngest of its kind gives way."""
    held: list[Place] = []
    for time, (registered, network) in enumerate(arrivals):
        new = Place(str(time), (str(network),), registered, False, -time)
        held.append(new)
        if len(held) > limit:
            strangers = [place for place in held if not place.registered]
            crowds = Counter(place.networks for place in strangers)
            gone = held.pop(worst(held))
            if new.registered and len(strangers) > (limit + 1) // SHARE:
                assert not gone.registered
            if not new.registered and crowds[new.networks] < max(crowds.values()):
                assert gone is not new
        # nobody is sent away for nothing: members leave an eighth, and strangers give way to no stranger alike
        members = sum(place.registered for place in held)
        wanted = sum(registered for registered, _ in arrivals[: time + 1])
        assert members >= min(wanted, limit - (limit + 1) // SHARE)


@given(st.integers(1, 200), st.integers(8, 64))
def test_peers_that_are_invented_in_one_place_keep_nobody_out(invented, limit):
    held = [
        Place(f"invented{index}", networks(f"2001:db8:{index}::1"), False, False, -index)
        for index in range(min(invented, limit))
    ]
    for index in range(4):  # from elsewhere
        held.append(Place(f"honest{index}", networks(f"2003:{index:x}::1"), False, False, -1000 - index))
        if len(held) > limit:
            held.pop(worst(held))
    assert sum(place.peer.startswith("honest") for place in held) == 4


@given(st.lists(st.tuples(st.floats(0, 1), st.sampled_from(["begin", "end", "stranger"]), st.integers(0, 1 << 20))))
def test_strangers_get_a_share_while_members_want_all_and_all_when_they_do_not(steps):
    now, members, strangers, busy, wanted = 0.0, 0, 0, 0, -QUIET
    leftover = Leftover(lambda: now)
    for pause, step, size in steps:
        now += pause
        if step == "begin":
            leftover.begin()
            busy += 1
        elif step == "end" and busy:
            leftover.end(size)
            busy, members, wanted = busy - 1, members + size, now
        elif step == "stranger":
            taken = leftover.take(size)
            if not busy and now >= wanted + QUIET:
                assert taken  # nobody else wants it
            elif taken:
                strangers += size
                assert strangers <= SAVED + members / SHARE + now * TRICKLE + 1
    leftover.begin()
    now += SAVED / TRICKLE
    assert leftover.take(1 << 20)  # however long members want all


@pytest.mark.parametrize(
    "address, name",
    [("127.0.0.1", "peer"), ("::1", "peer"), ("10.1.2.3", "peer"), ("fd00::2", "peer"), ("9.9.9.9", "9.9.9.0/24")],
)
def test_whoever_is_in_one_network_shares_a_budget_but_for_machines_of_one_person(address, name):
    assert owner("peer", address) == name


def test_whose_turn_it_is():
    waiting = [
        Place("a", ("1",), False, False, 0.0),
        Place("b", ("2",), False, False, 1.0),
        Place("c", ("3",), True, False, 2.0),
        Place("d", ("4",), True, False, 3.0),
        Place("e", ("4",), True, False, 4.0),
    ]
    assert next_in_line(waiting, {}, strangers=False) == 2
    assert next_in_line(waiting, {"3": 1.0}, strangers=False) == 3
    assert next_in_line(waiting, {"3": 1.0, "4": 2.0}, strangers=False) == 2
    assert next_in_line(waiting, {"1": 1.0}, strangers=True) == 1
    assert next_in_line(waiting[:2], {"1": 1.0}, strangers=False) == 1
    assert next_in_line(waiting[2:], {}, strangers=True) == 0


def test_ever_new_networks_of_one_provider_have_its_turns_alone():
    waiting = [Place(ip, networks(ip), False, False, turn) for turn, ip in enumerate(("2001:db8:9::1", "2003:1::1"))]
    served = dict.fromkeys(networks("2001:db8:1::1"), 1.0)
    assert next_in_line(waiting, served, strangers=False) == 1
    served |= dict.fromkeys(networks("2003:1::1"), 2.0)
    assert next_in_line(waiting, served, strangers=False) == 0
