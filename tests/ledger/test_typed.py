"""Signed structs: golden vectors, strict decoding, agreement with eth_account's EIP-712."""

import dataclasses
import json
from pathlib import Path

import pytest
from eth_account.messages import encode_typed_data
from eth_hash.auto import keccak
from hypothesis import given, settings
from hypothesis import strategies as st

from dlx.ledger.abi import checksum, static_fields
from dlx.ledger.keys import SignatureError, account_of, peer_id, peer_id_from_base58, peer_id_to_base58, recover, sign
from dlx.ledger.merkle import merkle_proof, merkle_root
from dlx.ledger.typed import (
    RECORD_SIZE,
    Contribution,
    Domain,
    Plan,
    Report,
    Seal,
    SignedContribution,
    TypedError,
    decode_records,
    encode_records,
    join_signatures,
    registration_digest,
    split_signatures,
    summarise,
)

KEY = bytes(31) + b"\x01"  # the well-known account 0x7E5F...
LEDGER = "0x5FbDB2315678afecb367f032d93F642f64180aa3"
DOMAIN = Domain(31337, LEDGER)
GOLDEN = json.loads((Path(__file__).parent / "golden_typed.json").read_text())
ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141

_VALUES = {
    "bytes32": st.binary(min_size=32, max_size=32),
    "address": st.binary(min_size=20, max_size=20).map(checksum),
    "uint8": st.integers(0, 2**8 - 1),
    "uint16": st.integers(0, 2**16 - 1),
    "uint32": st.integers(0, 2**32 - 1),
    "uint64": st.integers(0, 2**64 - 1),
}


def structs(cls, **more):
    return st.builds(cls, **{name: _VALUES[kind] for name, kind in static_fields(cls)}, **more)


SEALS = structs(Seal, multipliers=st.lists(st.integers(0, 65535), max_size=70).map(tuple))


def example(**changes) -> Contribution:
    """Every field distinct, so that a swapped pair changes the bytes."""
    values = {}
    for i, (name, kind) in enumerate(static_fields(Contribution), start=1):
        values[name] = bytes([i]) * 32 if kind == "bytes32" else account_of(KEY) if kind == "address" else i
    return Contribution(**{**values, **changes})


def example_seal(**changes) -> Seal:
    values = {}
    for i, (name, kind) in enumerate(static_fields(Seal), start=1):
        values[name] = bytes([i]) * 32 if kind == "bytes32" else i
    return Seal(**{**values, "multipliers": (32768, 1, 65535), **changes})


def typed_data(primary: str, members: str, message: dict, name: str = "dlx-node TrainingLedger") -> bytes:
    """The digest that eth_account makes of the same message."""
    fields = [{"type": m.split()[0], "name": m.split()[1]} for m in members.split(",")]
    domain_fields = [("name", "string"), ("version", "string"), ("chainId", "uint256")]
    domain_fields += [("verifyingContract", "address")]
    signable = encode_typed_data(
        full_message={
            "types": {"EIP712Domain": [{"name": n, "type": t} for n, t in domain_fields], primary: fields},
            "primaryType": primary,
            "domain": {"name": name, "version": "1", "chainId": 31337, "verifyingContract": LEDGER},
            "message": message,
        }
    )
    return keccak(b"\x19\x01" + signable.header + signable.body)


CONTRIBUTION_MEMBERS = (
    "bytes32 run,uint32 round,uint16 stage,uint16 replica,address account,bytes32 baseWeights,bytes32 payload,"
    "uint64 payloadSize,bytes32 plan,uint32 innerSteps,uint64 tokens,uint64 loss,bytes32 previous,bytes32 startPayload,"
    "bytes32 foldedPayload,bytes32 foldedPayload2,bytes32 weightsBefore,bytes32 weightsAfter,bytes32 optimiserBefore,"
    "bytes32 optimiserAfter,bytes32 residualBefore,bytes32 residualAfter,bytes32 segmentsRoot,uint16 segments,"
    "uint32 computeMs,uint32 exchangeMs,uint8 flags"
)
SEAL_MEMBERS = (
    "bytes32 run,uint16 stage,uint32 round,bytes32 previousWeights,bytes32 nextWeights,bytes32 previousMomentum,"
    "bytes32 nextMomentum,bytes32 contributionsRoot,bytes32 contributionsHash,uint16 count,uint64 totalTokens,"
    "uint64 meanLoss,uint8 planLevel,uint16 planRank,uint32 planInnerSteps,bytes multipliers"
)


def test_golden_bytes():
    contribution, seal = example(), example_seal()
    record = contribution.sign(DOMAIN, KEY)
    assert {
        "contribution": contribution.encode().hex(),
        "contribution_hash": contribution.hash().hex(),
        "contribution_digest": contribution.digest(DOMAIN).hex(),
        "signature": record.signature.hex(),
        "seal": seal.encode().hex(),
        "seal_digest": seal.digest(DOMAIN).hex(),
        "plan_hash": Plan(1, 16, 10).hash().hex(),
        "report_digest": Report(b"\1" * 32, 2, 3, (b"\4" * 32,), (b"\5" * 32, b"\6" * 32)).digest(DOMAIN).hex(),
        "registration_digest": registration_digest(31337, LEDGER, account_of(KEY), 7).hex(),
    } == GOLDEN


@settings(max_examples=25, deadline=None)
@given(structs(Contribution))
def test_contribution_round_trip_and_digest(contribution):
    data = contribution.encode()
    assert len(data) == 864 and Contribution.decode(data) == contribution
    names = [member.split()[1] for member in CONTRIBUTION_MEMBERS.split(",")]
    message = dict(zip(names, dataclasses.astuple(contribution), strict=True))
    assert contribution.digest(DOMAIN) == typed_data("Contribution", CONTRIBUTION_MEMBERS, message)


@settings(max_examples=25, deadline=None)
@given(SEALS)
def test_seal_round_trip_and_digest(seal):
    assert Seal.decode(seal.encode()) == seal
    names = [member.split()[1] for member in SEAL_MEMBERS.split(",")]
    message = dict(zip(names, dataclasses.astuple(seal), strict=True))
    message["multipliers"] = b"".join(m.to_bytes(2, "big") for m in seal.multipliers)
    assert seal.digest(DOMAIN) == typed_data("Seal", SEAL_MEMBERS, message)


def test_report_and_registration_digests():
    report = Report(b"\1" * 32, 2, 3, (b"\4" * 32, b"\7" * 32), ())
    members = "bytes32 run,uint32 round,uint16 stage,bytes32[] holding,bytes32[] missing"
    message = {**dataclasses.asdict(report), "holding": list(report.holding), "missing": list(report.missing)}
    assert report.digest(DOMAIN) == typed_data("Report", members, message)
    message = {"account": account_of(KEY), "nonce": 7}
    registration = typed_data("Registration", "address account,uint256 nonce", message, "dlx-node NodeRegistry")
    assert registration_digest(31337, LEDGER, account_of(KEY), 7) == registration


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 863), st.integers(0, 7))
def test_a_flipped_bit_is_refused_or_another_contribution(position, bit):
    data = bytearray(example().encode())
    data[position] ^= 1 << bit
    try:
        decoded = Contribution.decode(bytes(data))
    except TypedError:
        return
    assert decoded != example() and decoded.encode() == data


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 18 * 32 + 31), st.integers(0, 7))
def test_a_flipped_bit_is_refused_or_another_seal(position, bit):
    data = bytearray(example_seal().encode())
    data[position] ^= 1 << bit
    try:
        decoded = Seal.decode(bytes(data))
    except TypedError:
        return
    assert decoded != example_seal() and decoded.encode() == data


@pytest.mark.parametrize(
    "data",
    [b"", example().encode()[:-1], example().encode() + b"\0", example().encode()[:32] + b"\xff" * 32 + bytes(800)],
)
def test_contribution_decoder_refuses(data):
    with pytest.raises(TypedError):
        Contribution.decode(data)


def test_seal_decoder_refuses_other_lengths_and_odd_multipliers():
    data = example_seal().encode()
    head = 32 * 17
    odd = data[:head] + (5).to_bytes(32, "big") + data[head + 32 : head + 37] + bytes(27)
    huge = data[:head] + (2**255).to_bytes(32, "big") + data[head + 32 :]
    for bad in (b"", data[:-1], data + bytes(32), odd, huge, data[:head]):
        with pytest.raises(TypedError):
            Seal.decode(bad)


@pytest.mark.parametrize(
    "change",
    [
        {"round": -1},
        {"round": 2**32},
        {"flags": 256},
        {"tokens": True},
        {"run": b"\1" * 31},
        {"account": "0x" + "ab" * 20},
    ],
)
def test_values_out_of_type_are_not_encoded(change):
    with pytest.raises(TypedError):
        example(**change).encode()


def test_only_the_account_itself_can_sign_its_contribution():
    record = example().sign(DOMAIN, KEY)
    record.verify(DOMAIN)
    assert SignedContribution.decode(record.encode()) == record and len(record.encode()) == RECORD_SIZE
    with pytest.raises(SignatureError):
        example().sign(DOMAIN, b"\2" * 32).verify(DOMAIN)
    with pytest.raises(SignatureError):
        record.verify(Domain(1, LEDGER))  # the same ledger on another chain
    with pytest.raises(SignatureError):
        dataclasses.replace(record, contribution=example(loss=1)).verify(DOMAIN)


def test_signing_is_deterministic_and_recoverable():
    digest = keccak(b"x")
    assert sign(digest, KEY) == sign(digest, KEY) and recover(digest, sign(digest, KEY)) == account_of(KEY)
    assert account_of(KEY) == "0x7E5F4552091A69125d5DfCb7b8C2659029395Bdf"


def test_malleable_and_malformed_signatures_are_refused():
    digest = keccak(b"x")
    good = sign(digest, KEY)
    high_s = good[:32] + (ORDER - int.from_bytes(good[32:64], "big")).to_bytes(32, "big") + bytes([55 - good[64]])
    beyond = ORDER.to_bytes(32, "big")
    for bad in (
        high_s,
        good[:64],
        good + b"\0",
        good[:64] + bytes([good[64] - 27]),
        good[:64] + b"\x1d",
        bytes(64) + b"\x1b",
        beyond + good[32:],
    ):
        with pytest.raises(SignatureError):
            recover(digest, bad)


def test_records_are_ascending_by_number_and_summed():
    keys = sorted((bytes([i]) * 32 for i in range(1, 6)), key=lambda key: int(account_of(key), 16))
    records = [example(account=account_of(k), tokens=i, loss=10 * i).sign(DOMAIN, k) for i, k in enumerate(keys, 1)]
    data = encode_records(records)
    assert list(decode_records(data)) == records
    summary = summarise(records)
    assert (summary.count, summary.total_tokens, summary.mean_loss) == (5, 15, 10 * 55 // 15)
    assert summary.hash == keccak(data)
    assert summarise([]).root == bytes(32) and summarise([]).mean_loss == 0
    for wrong in (records[::-1], [records[0], records[0]]):
        with pytest.raises(TypedError):
            encode_records(wrong)
        with pytest.raises(TypedError):
            decode_records(b"".join(record.encode() for record in wrong))
    with pytest.raises(TypedError):
        decode_records(data[:-1])


def test_signatures_are_joined_in_account_order():
    signatures = {account_of(bytes([i]) * 32): bytes([i]) * 65 for i in range(1, 9)}
    parts = split_signatures(join_signatures(signatures))
    assert list(parts) == [signatures[a] for a in sorted(signatures, key=lambda a: int(a, 16))]
    with pytest.raises(TypedError):
        split_signatures(bytes(66))


@given(st.lists(st.binary(min_size=32, max_size=32), min_size=1, max_size=33), st.data())
def test_merkle_proofs(leaves, data):
    index = data.draw(st.integers(0, len(leaves) - 1))
    found = leaves[index]
    for sibling in merkle_proof(leaves, index):
        found = keccak(min(found, sibling) + max(found, sibling))
    assert found == merkle_root(leaves)


def test_merkle_root_promotes_the_odd_leaf():
    a, b, c = (keccak(bytes([i])) for i in range(3))
    ab = keccak(min(a, b) + max(a, b))
    assert merkle_root([a, b, c]) == keccak(min(ab, c) + max(ab, c)) and merkle_root([a]) == a


def test_peer_id_is_libp2ps():
    from libp2p.crypto.secp256k1 import create_new_key_pair
    from libp2p.peer.id import ID

    pair = create_new_key_pair(KEY)
    raw = peer_id(pair.public_key.to_bytes())
    assert raw == ID.from_pubkey(pair.public_key).to_bytes() and len(raw) == 39
    assert peer_id_to_base58(raw) == str(ID.from_pubkey(pair.public_key))
    assert peer_id_from_base58(peer_id_to_base58(raw)) == raw
    for bad in ("QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWnPbdG", "", "0OIl", "1" * 100):
        with pytest.raises(ValueError):
            peer_id_from_base58(bad)
