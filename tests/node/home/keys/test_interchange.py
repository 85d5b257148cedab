"""The file in which what was signed moves to another machine."""

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dlx.ledger.bonds import SignedSeal
from dlx.ledger.typed import account_of
from dlx.node.home.errors import Failure
from dlx.node.home.keys.encrypted_file import decrypt, encrypt, label
from dlx.node.home.keys.interchange import pack, unpack
from dlx.node.home.keys.slashing_protection import Entries
from tests.node.made_statements import ACCOUNT, DOMAIN, KEY
from tests.node.made_statements import contribution as made_contribution
from tests.node.made_statements import seal as made_seal

CHEAP = 10
numbers = st.integers(0, 2**16 - 1)
contributions = st.builds(
    lambda round, stage, payload: made_contribution(round, stage, payload).sign(DOMAIN, KEY), numbers, numbers, numbers
)
seals = st.builds(
    lambda round, stage, next, multipliers, signature: SignedSeal(
        made_seal(round, stage, next, multipliers=tuple(multipliers)), signature
    ),
    numbers,
    numbers,
    numbers,
    st.lists(numbers, max_size=4),
    st.binary(min_size=65, max_size=65),
)
entries = st.builds(
    lambda c, s: Entries(tuple(c), tuple(s)), st.lists(contributions, max_size=4), st.lists(seals, max_size=4)
)
SOME = Entries((made_contribution().sign(DOMAIN, KEY),), (SignedSeal(made_seal(), bytes(65)),))


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(entries, st.text(max_size=10))
def test_a_bundle_gives_back_what_went_in(signed: Entries, password: str) -> None:
    assert unpack(pack(ACCOUNT, signed, password, CHEAP), ACCOUNT, password) == signed


def test_every_flipped_byte_and_every_other_password_is_refused() -> None:
    made = pack(ACCOUNT, SOME, "password", CHEAP)
    with pytest.raises(Failure, match="the password does not open it"):
        unpack(made, ACCOUNT, "passwort")
    for at in range(0, len(made), 17):  # test_encrypted_file.py has each one
        damaged = made[:at] + bytes((made[at] ^ 1,)) + made[at + 1 :]
        with pytest.raises(Failure):
            unpack(damaged, ACCOUNT, "password")


def test_what_was_signed_is_not_readable_in_the_file() -> None:
    made = pack(ACCOUNT, SOME, "password", CHEAP)
    assert SOME.contributions[0].encode()[:64] not in made
    assert label(made) == f"dlx-node signed statements of {ACCOUNT}"


def test_a_bundle_of_another_account_is_refused_before_its_password_is_tried() -> None:
    other = account_of(b"\x09" * 32)
    with pytest.raises(Failure, match=f"not what {other} signed"):
        unpack(pack(ACCOUNT, SOME, "password", CHEAP), other, "wrong")
    with pytest.raises(Failure, match="a contribution that is not"):
        unpack(pack(other, SOME, "password", CHEAP), other, "password")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 1}, "has format 1, this release reads 2"),
        ({"version": None}, "has format None"),
        ({"format": "something"}, "no bundle"),
        ({"extra": 1}, "no bundle"),
        ({"contributions": [b"short"]}, "no bundle"),
        ({"contributions": None}, "no bundle"),
        ({"seals": [[b"short", b""]]}, "no bundle"),
        ({"seals": [[b"one"]]}, "no bundle"),
    ],
)
def test_wellformed_nonsense_is_refused(change: dict, said: str) -> None:
    made = pack(ACCOUNT, SOME, "password", CHEAP)
    plain = msgpack.packb({**msgpack.unpackb(decrypt(made, "password")), **change})
    with pytest.raises(Failure, match=said):
        unpack(encrypt(plain, "password", label(made), CHEAP), ACCOUNT, "password")
    for torn in (plain[:-1], plain + b"\0", b"", b"\xc1", b"\x81\x91\x01\x02"):
        with pytest.raises(Failure, match=r"no bundle|has format None"):
            unpack(encrypt(torn, "password", label(made), CHEAP), ACCOUNT, "password")
