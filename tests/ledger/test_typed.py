"""Signed structs: golden vectors, strict decoding, agreement with eth_account's EIP-712."""

import dataclasses
import hashlib
import json
from pathlib import Path

import pytest
from eth_account.messages import encode_typed_data
from eth_hash.auto import keccak
from hypothesis import given, settings
from hypothesis import strategies as st

from dlx.ledger.abi import ascending, checksum, static_fields
from dlx.ledger.keys import SignatureError, account_of, peer_id, peer_id_from_base58, peer_id_to_base58, recover, sign
from dlx.ledger.typed import (
    FALSE,
    HONEST,
    RECORD_SIZE,
    SIGNED_SIZE,
    WITHHELD,
    Contribution,
    Domain,
    Entry,
    Outcome,
    Plan,
    Record,
    Report,
    Seal,
    SignedContribution,
    Signs,
    TypedError,
    Verdict,
    conviction_entries,
    decode_records,
    encode_records,
    entries,
    registration_digest,
    split_conviction,
    split_entries,
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


PLANS = structs(Plan)
OUTCOMES = st.builds(Outcome, *[_VALUES["bytes32"]] * 4, _VALUES["uint32"], PLANS)
RECORDS = st.lists(
    st.builds(
        Record,
        st.integers(0, 63),
        _VALUES["bytes32"],
        _VALUES["uint32"],
        _VALUES["uint32"],
        _VALUES["uint8"],
        _VALUES["uint16"],
    ),
    max_size=12,
    unique_by=lambda record: record.replica,
).map(lambda records: tuple(sorted(records, key=lambda record: record.replica)))
SEALS = st.builds(Seal, _VALUES["bytes32"], _VALUES["uint16"], _VALUES["uint32"], _VALUES["bytes32"], OUTCOMES, RECORDS)


def example(**changes) -> Contribution:
    """Every field distinct, so that a swapped pair changes the bytes."""
    values = {}
    for i, (name, kind) in enumerate(static_fields(Contribution), start=1):
        values[name] = bytes([i]) * 32 if kind == "bytes32" else account_of(KEY) if kind == "address" else i
    return Contribution(**{**values, **changes})


def example_record(replica: int = 4) -> Record:
    return Record(replica, b"\6" * 32, 0x07070707, 0x08080808, 9, 0x0A0A)


def example_seal(**changes) -> Seal:
    outcome = Outcome(*(bytes([i]) * 32 for i in range(5, 9)), 0x09090909, Plan(10, 0x0B0B, 0x0C0C0C0C))
    seal = Seal(b"\1" * 32, 2, 3, b"\4" * 32, outcome, (example_record(4), example_record(13)))
    return dataclasses.replace(seal, **changes)


def example_verdict(**changes) -> Verdict:
    verdict = Verdict(b"\1" * 32, 2, 3, account_of(KEY), b"\4" * 32, FALSE, b"\5" * 32)
    return dataclasses.replace(verdict, **changes)


def typed_data(
    primary: str, members: str, message: dict, name: str = "dlx-node TrainingLedger", version: str = "3"
) -> bytes:
    """The digest that eth_account makes of the same message."""
    fields = [{"type": m.split()[0], "name": m.split()[1]} for m in members.split(",")]
    domain_fields = [("name", "string"), ("version", "string"), ("chainId", "uint256")]
    domain_fields += [("verifyingContract", "address")]
    signable = encode_typed_data(
        full_message={
            "types": {"EIP712Domain": [{"name": n, "type": t} for n, t in domain_fields], primary: fields},
            "primaryType": primary,
            "domain": {"name": name, "version": version, "chainId": 31337, "verifyingContract": LEDGER},
            "message": message,
        }
    )
    return keccak(b"\x19\x01" + signable.header + signable.body)


CONTRIBUTION_MEMBERS = (
    "bytes32 run,uint32 round,uint16 stage,uint16 replica,bytes32 statement,uint32 loss,"
    "uint32 innerSteps,uint8 exchange"
)
SEAL_MEMBERS = (
    "bytes32 run,uint16 stage,uint32 round,bytes32 previous,bytes32 weights,bytes32 momentum,bytes32 weightsRoot,"
    "bytes32 momentumRoot,bytes11 plans,bytes records"
)


def test_golden_bytes():
    contribution, seal = example(), example_seal()
    signed = contribution.sign(DOMAIN, KEY)
    assert {
        "contribution": contribution.encode().hex(),
        "contribution_hash": contribution.hash().hex(),
        "contribution_digest": contribution.digest(DOMAIN).hex(),
        "record": contribution.record(32768).encode().hex(),
        "signature": signed.signature.hex(),
        "seal": seal.encode().hex(),
        "seal_digest": seal.digest(DOMAIN).hex(),
        "entries": entries({account_of(KEY): (13, signed.signature)}, {4: signed.signature}, bytes(65)).hex(),
        "plan_hash": Plan(1, 16, 10).hash().hex(),
        "report_digest": Report(b"\1" * 32, 2, 3, 4, (b"\4" * 32,), (b"\5" * 32, b"\6" * 32)).digest(DOMAIN).hex(),
        "verdict_digest": example_verdict().digest(DOMAIN).hex(),
        "conviction": conviction_entries([example_verdict().sign(DOMAIN, KEY)], DOMAIN).hex(),
        "registration_digest": registration_digest(31337, LEDGER, account_of(KEY), 7).hex(),
    } == GOLDEN


@settings(max_examples=25)
@given(structs(Contribution))
def test_a_statement_is_27_words_named_by_their_sha256(contribution):
    data = contribution.encode()
    assert len(data) == 896 and Contribution.decode(data) == contribution
    assert contribution.hash() == hashlib.sha256(data).digest()


@settings(max_examples=25)
@given(structs(Verdict))
def test_a_verdict_is_signed_as_any_wallet_would(verdict):
    members = "bytes32 run,uint16 stage,uint32 round,address account,bytes32 statement,uint8 finding,bytes32 report"
    assert verdict.digest(DOMAIN) == typed_data("Verdict", members, dataclasses.asdict(verdict))
    assert verdict.sign(DOMAIN, KEY).signer(DOMAIN) == account_of(KEY)


def test_a_conviction_takes_false_and_withheld_verdicts_on_one_contribution():
    signed = [example_verdict(finding=finding).sign(DOMAIN, KEY) for finding in (FALSE, WITHHELD)]
    data = conviction_entries(signed, DOMAIN)
    assert len(data) == 2 * 98
    assert [(e.finding, e.report, e.signature) for e in split_conviction(data)] == [
        (one.verdict.finding, one.verdict.report, one.signature) for one in signed
    ]
    others = [example_verdict(round=4), example_verdict(statement=b"\6" * 32), example_verdict(finding=HONEST)]
    for other in (*others, example_verdict(finding=4)):
        with pytest.raises(TypedError):
            conviction_entries([*signed, other.sign(DOMAIN, KEY)], DOMAIN)
    with pytest.raises(TypedError):
        conviction_entries([], DOMAIN)
    with pytest.raises(TypedError):
        split_conviction(data[:-1])


@settings(max_examples=25)
@given(structs(Contribution))
def test_what_an_account_signs_is_what_a_seal_will_say(contribution):
    message = {
        "run": contribution.run,
        "round": contribution.round,
        "stage": contribution.stage,
        "replica": contribution.replica,
        "statement": contribution.hash(),
        "loss": contribution.loss,
        "innerSteps": contribution.inner_steps,
        "exchange": contribution.exchange,
    }
    digest = contribution.digest(DOMAIN)
    assert digest == typed_data("Contribution", CONTRIBUTION_MEMBERS, message)
    for multiplier in (0, 65535):
        record = contribution.record(multiplier)
        assert record.digest(DOMAIN, contribution.run, contribution.round, contribution.stage) == digest


@settings(max_examples=25)
@given(SEALS)
def test_seal_round_trip_and_digest(seal):
    data = seal.encode()
    assert len(data) == 209 + 44 * seal.count and Seal.decode(data) == seal
    outcome = seal.outcome
    message = {
        "run": seal.run,
        "stage": seal.stage,
        "round": seal.round,
        "previous": seal.previous,
        "weights": outcome.weights,
        "momentum": outcome.momentum,
        "weightsRoot": outcome.weights_root,
        "momentumRoot": outcome.momentum_root,
        "plans": outcome.plans,
        "records": encode_records(seal.records),
    }
    assert seal.digest(DOMAIN) == typed_data("Seal", SEAL_MEMBERS, message)


@settings(max_examples=25)
@given(OUTCOMES)
def test_an_outcome_has_its_plans_in_11_bytes(outcome):
    plan = outcome.plan
    expected = outcome.inner_steps.to_bytes(4, "big") + bytes([plan.level])
    assert outcome.plans == expected + plan.rank.to_bytes(2, "big") + plan.inner_steps.to_bytes(4, "big")
    assert Outcome.of(*outcome.hashes, outcome.plans) == outcome


def test_the_exchange_is_percent_of_the_computing_time():
    known = {(0, 5): 0, (5, 0): 0, (1000, 1): 1, (1000, 14): 1, (1000, 15): 2, (100, 100): 100, (1, 2**32 - 1): 255}
    assert {times: example(compute_ms=times[0], exchange_ms=times[1]).exchange for times in known} == known


def test_the_records_of_a_seal_are_summed():
    seal = example_seal(
        records=tuple(dataclasses.replace(example_record(i), loss=10 * i, inner_steps=i) for i in (1, 2, 5))
    )
    assert (seal.count, seal.steps, seal.mean_loss) == (3, 8, 10 * (1 + 4 + 25) // 8)
    none = example_seal(records=())
    assert (none.count, none.steps, none.mean_loss) == (0, 0, 0)


def test_report_and_registration_digests():
    report = Report(b"\1" * 32, 2, 3, 4, (b"\4" * 32, b"\7" * 32), ())
    members = "bytes32 run,uint32 round,uint16 stage,uint64 made,bytes32[] holding,bytes32[] missing"
    message = {**dataclasses.asdict(report), "holding": list(report.holding), "missing": list(report.missing)}
    assert report.digest(DOMAIN) == typed_data("Report", members, message)
    message = {"account": account_of(KEY), "nonce": 7}
    registration = typed_data("Registration", "address account,uint256 nonce", message, "dlx-node NodeRegistry", "1")
    assert registration_digest(31337, LEDGER, account_of(KEY), 7) == registration


@settings(max_examples=200)
@given(st.integers(0, 863), st.integers(0, 7))
def test_a_flipped_bit_is_refused_or_another_contribution(position, bit):
    data = bytearray(example().encode())
    data[position] ^= 1 << bit
    try:
        decoded = Contribution.decode(bytes(data))
    except TypedError:
        return
    assert decoded != example() and decoded.encode() == data


@settings(max_examples=300)
@given(st.integers(0, 209 + 2 * 44 - 1), st.integers(0, 7))
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


def test_seal_decoder_refuses_other_lengths_and_orders():
    data = example_seal().encode()
    head, first, second = data[:209], data[209 : 209 + 44], data[209 + 44 :]
    for bad in (b"", data[:208], data[:-1], data + b"\0", head + second + first, head + first + first):
        with pytest.raises(TypedError):
            Seal.decode(bad)
    with pytest.raises(TypedError, match="64 replicas"):
        Seal.decode(head + b"\x40" + first[1:])


@pytest.mark.parametrize(
    "change",
    [
        {"stage": 2**16},
        {"round": -1},
        {"run": b"\1" * 31},
        {"previous": b"\1" * 33},
        {"records": (example_record(5), example_record(5))},
        {"records": (example_record(64),)},
        {"records": (dataclasses.replace(example_record(), multiplier=2**16),)},
        {"records": (dataclasses.replace(example_record(), statement=b"\1"),)},
        {"outcome": dataclasses.replace(example_seal().outcome, weights=b"")},
        {"outcome": dataclasses.replace(example_seal().outcome, plan=Plan(256, 0, 1))},
    ],
)
def test_no_seal_is_made_of_values_out_of_type(change):
    with pytest.raises(TypedError):
        example_seal(**change).encode()
    with pytest.raises(TypedError):
        example_seal(**change).digest(DOMAIN)


@pytest.mark.parametrize(
    "change",
    [
        {"round": -1},
        {"round": 2**32},
        {"flags": 256},
        {"loss": 2**32},
        {"run": b"\1" * 31},
        {"account": "0x" + "ab" * 20},
    ],
)
def test_values_out_of_type_are_not_encoded(change):
    with pytest.raises(TypedError):
        example(**change).encode()


def test_only_the_account_itself_can_sign_its_contribution():
    signed = example().sign(DOMAIN, KEY)
    signed.verify(DOMAIN)
    assert SignedContribution.decode(signed.encode()) == signed and len(signed.encode()) == SIGNED_SIZE
    with pytest.raises(SignatureError):
        example().sign(DOMAIN, b"\2" * 32).verify(DOMAIN)
    with pytest.raises(SignatureError):
        signed.verify(Domain(1, LEDGER))  # the same ledger on another chain
    with pytest.raises(SignatureError):
        dataclasses.replace(signed, contribution=example(loss=1)).verify(DOMAIN)


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


def test_the_makers_of_a_conviction_s_verdicts_ascend():
    keys = [bytes([i]) * 32 for i in range(1, 9)]
    signed = [example_verdict(report=key).sign(DOMAIN, key) for key in keys]
    found = split_conviction(conviction_entries(signed, DOMAIN))
    assert [account_of(entry.report) for entry in found] == list(ascending([account_of(key) for key in keys]))
    with pytest.raises(SignatureError):
        conviction_entries([dataclasses.replace(signed[0], signature=bytes(65))], DOMAIN)


def test_records_are_ascending_and_have_44_bytes():
    records = tuple(example_record(replica) for replica in (0, 1, 13, 63))
    data = encode_records(records)
    assert len(data) == 4 * RECORD_SIZE == 4 * 44 and decode_records(data) == records
    for wrong in (data[:-1], data[44:] + data[:44], data + data[-44:]):
        with pytest.raises(TypedError):
            decode_records(wrong)


def test_entries_say_whose_signatures_they_are_and_accounts_ascend():
    accounts = ascending([account_of(bytes([i]) * 32) for i in range(1, 5)])
    by_seal = {accounts[2]: (5, b"\3" * 65), accounts[0]: (7, b"\1" * 65), accounts[1]: (2, b"\2" * 65)}
    data = entries(by_seal, {5: b"\4" * 65, 0: b"\5" * 65}, b"\6" * 65)
    assert len(data) == 6 * 66
    assert split_entries(data) == (
        Entry(Signs.SEAL, 7, b"\1" * 65),
        Entry(Signs.SEAL, 2, b"\2" * 65),
        Entry(Signs.SEAL, 5, b"\3" * 65),
        Entry(Signs.RECORD, 0, b"\5" * 65),
        Entry(Signs.RECORD, 5, b"\4" * 65),
        Entry(Signs.FOUNDER, 0, b"\6" * 65),
    )
    for bad in (data[:-1], data + b"\0"):
        with pytest.raises(TypedError):
            split_entries(bad)
    for bad in ({accounts[0]: (64, bytes(65))}, {accounts[0]: (0, bytes(64))}):
        with pytest.raises(TypedError):
            entries(bad, {})


@given(st.lists(st.binary(min_size=66, max_size=66), max_size=5))
def test_entries_are_read_as_the_contract_reads_them(parts):
    for entry, part in zip(split_entries(b"".join(parts)), parts, strict=True):
        first = entry.signs.value + entry.replica
        assert entry.signature == part[1:] and first == min(part[0], Signs.FOUNDER.value)


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
