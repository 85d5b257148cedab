"""Lists of accounts: what Python proves is what the contract lets in."""

import secrets

import pytest
from eth_hash.auto import keccak
from ledger_run import NAME, config

from dlx.ledger.abi import checksum
from dlx.ledger.account_list import MOST_ACCOUNTS, AccountList
from dlx.ledger.bindings import Interface
from dlx.ledger.errors import Reverted
from dlx.ledger.keys import account_of
from tests.ledger.chain_support import wait_for
from tests.ledger.conftest import ROOT, key

CREATOR, STRANGER = 2300, 2301
NAMED = [account_of(key(2400 + number)) for number in range(64)]


@pytest.fixture(scope="module")
def run(embedded):
    creator = embedded.client(CREATOR)
    settings = config(manifest=secrets.token_bytes(32), stages=1, invited=True)
    return creator.create_run(settings, NAME, [b"\1" * 32], [creator.account])


@pytest.mark.parametrize("count", [1, 2, 3, 7, 64])
def test_the_contract_takes_the_proof_of_each_account_and_of_no_other(embedded, run, count):
    client, made = embedded.client(CREATOR), AccountList(NAMED[:count])
    client.set_list(run, made.root)
    assert client.list_of(run) == made.root == AccountList(NAMED[:count][::-1]).root, "whatever the order"
    contract, stranger = Interface("Invitations", client.rpc), account_of(key(STRANGER))

    def ask(account, proof):
        return contract.call(client.part("Invitations"), "admitListed", client.ledger, run, account, proof)

    for account in made.accounts:
        ask(account, made.proof(account))
        with pytest.raises(Reverted, match="NotListed"):
            ask(stranger, made.proof(account))
    with pytest.raises(KeyError):
        made.proof(stranger)
    last = NAMED[count - 1]
    client.admit_listed(run, last, made.proof(last))
    assert client.is_admitted(run, last) and not client.is_admitted(run, stranger)


def test_the_proof_of_the_longest_list_is_taken_for_the_gas_that_is_meant_for_it(embedded, run):
    """Of a tree of which only the account's way up is known."""
    client, guest = embedded.client(CREATOR), NAMED[30]
    proof = [secrets.token_bytes(32) for _ in range((MOST_ACCOUNTS - 1).bit_length())]
    root = AccountList([guest]).root  # the leaf
    for beside in proof:
        root = keccak(b"".join(sorted([root, beside])))
    assert len(proof) == 16
    client.set_list(run, root)
    with pytest.raises(Reverted, match="NotListed"):
        client.admit_listed(run, guest, [*proof[:-1], bytes(32)])
    client.admit_listed(run, guest, proof)
    assert client.is_admitted(run, guest)


def test_the_end_of_a_list_takes_nothing_back(embedded, run):
    client, made = embedded.client(CREATOR), AccountList(NAMED[10:13])
    first, second, _ = NAMED[10:13]
    client.set_list(run, made.root)
    client.admit_listed(run, first, made.proof(first))
    client.set_list(run, None)
    assert client.list_of(run) is None and client.is_admitted(run, first)
    with pytest.raises(Reverted, match="NotListed"):
        client.admit_listed(run, second, made.proof(second))


def test_who_was_revoked_waits_for_a_later_list(embedded, run):
    client, made = embedded.client(CREATOR), AccountList(NAMED[20:22])
    guest = NAMED[20]
    client.set_list(run, made.root)
    client.admit_listed(run, guest, made.proof(guest))
    client.revoke(run, guest)
    with pytest.raises(Reverted, match="IsRevoked"):
        client.admit_listed(run, guest, made.proof(guest))
    revoked = client.head().time
    wait_for(lambda: client.head().time > revoked)
    client.set_list(run, made.root)
    client.admit_listed(run, guest, made.proof(guest))
    assert client.is_admitted(run, guest)


def test_the_protocols_example_is_this_one():
    example = AccountList(checksum(number.to_bytes(20, "big")) for number in (1, 2, 3))
    assert f"`0x{example.root.hex()}`" in (ROOT / "docs" / "protocol" / "entry.md").read_text()


def test_a_list_is_neither_empty_nor_without_end():
    for count in (0, MOST_ACCOUNTS + 1):
        with pytest.raises(ValueError, match="1 to 65,536 accounts"):
            AccountList(map(str, range(count)))
