"""Decoding raw logs: every event of the contracts, strictly."""

import eth_abi
import pytest
from ledger_logs import ACCOUNT, LEDGER, RUN, joined

from dlx import contracts
from dlx.ledger import events
from dlx.ledger.abi import TypedError
from dlx.ledger.events import (
    AddressesChanged,
    Answered,
    CheckpointPublished,
    Convicted,
    Dealt,
    Dismissed,
    Evicted,
    Joined,
    RunCreated,
    Sealed,
    decode_log,
    event_topic,
    parse_log,
)
from dlx.ledger.typed import Plan, Record, Seal, encode_records

PLACE = {"blockNumber": "0x1", "blockHash": "0x" + "11" * 32, "logIndex": "0x0", "transactionHash": "0x" + "22" * 32}


def log(cls, indexed: list[bytes], data: bytes) -> dict:
    topics = ["0x" + topic.hex() for topic in (event_topic(cls), *indexed)]
    return {"address": LEDGER, "topics": topics, "data": "0x" + data.hex(), **PLACE}


def test_every_event_of_the_contracts_is_known():
    names = set()
    for contract in ("NodeRegistry", "TrainingLedger"):
        for entry in contracts.load(contract)["abi"]:
            if entry["type"] != "event" or entry["name"] == "EIP712DomainChanged":
                continue
            names.add(entry["name"])
            topic = event_topic(getattr(events, entry["name"]))
            _, indexed, plain, _ = events._SPECS[topic]
            flags = [i["indexed"] for i in entry["inputs"]]
            assert flags == [True] * len(indexed) + [False] * len(plain), entry["name"]
    assert len(names) == len(events._SPECS) == 20


def test_logs_that_do_not_fit_their_event_are_refused():
    good = {**joined(), **PLACE}
    assert isinstance(decode_log(parse_log(good), 5), Joined)
    for change in (
        {"topics": good["topics"][:2]},
        {"data": good["data"][:-2]},
        {"data": "0x" + "ff" * 64},
        {"topics": [*good["topics"][:2], "0x" + "ff" * 32]},
    ):
        with pytest.raises(TypedError):
            decode_log(parse_log({**good, **change}), 5)
    for missing in good:
        with pytest.raises(TypedError):
            parse_log({key: value for key, value in good.items() if key != missing})


@pytest.mark.parametrize("name", [b"", b"-rf", b"two words", b"a\x1b[31m", b"<b>", "é".encode(), b"a" * 65, b"a\n"])
def test_a_name_that_no_ledger_of_ours_gives_a_run_is_refused(name):
    kinds = [events._CONFIG, "bytes", "bytes32[]", "address[]"]

    def created(text: bytes) -> dict:
        config = (bytes(32), *(1,) * 13, False, 0, bytes(32))
        data = eth_abi.encode(kinds, [config, text, [bytes(32)], [ACCOUNT]])
        return log(RunCreated, [RUN, bytes(12) + bytes.fromhex(ACCOUNT[2:])], data)

    found = decode_log(parse_log(created(b"A-run_1.0")), 5)
    assert isinstance(found, RunCreated) and (found.name, found.founders) == ("A-run_1.0", (ACCOUNT,))
    assert (found.config.horizon, found.config.invited, found.config.bond) == (1, False, 0)
    with pytest.raises(TypedError, match="no run's name"):
        decode_log(parse_log(created(name)), 5)


def test_events_of_later_contracts_are_passed_over():
    for topics in (["0x" + "33" * 32], []):
        assert decode_log(parse_log({**joined(), **PLACE, "topics": topics}), 5) is None


def test_text_of_strangers_is_text_and_no_reason_to_stop():
    account = bytes(12) + bytes.fromhex(ACCOUNT[2:])
    data = eth_abi.encode(["bytes[]"], [[b"/ip4/1.2.3.4", b"\xff\x1b"]])
    changed = decode_log(parse_log(log(AddressesChanged, [account], data)), 5)
    assert isinstance(changed, AddressesChanged) and changed.multiaddrs == ("/ip4/1.2.3.4", "\ufffd\ufffd")
    data = eth_abi.encode(["bytes32", "bytes"], [b"\1" * 32, b"\xc3(\x1b[2J\n"])
    published = decode_log(parse_log(log(CheckpointPublished, [RUN, (7).to_bytes(32, "big"), account], data)), 5)
    assert isinstance(published, CheckpointPublished) and (published.round, published.uri) == (
        7,
        "\ufffd(\ufffd[2J\ufffd",
    )


def test_an_event_without_data():
    account = bytes(12) + bytes.fromhex(ACCOUNT[2:])
    answered = decode_log(parse_log(log(Answered, [RUN, account], b"")), 5)
    assert isinstance(answered, Answered) and (answered.run, answered.account) == (RUN, ACCOUNT)


def sealed(records: bytes, signatures: bytes, plans: bytes = bytes([0, 0, 0, 10, 1, 0, 2, 0, 0, 0, 20])) -> dict:
    kinds = ["bytes32", events._OUTCOME, "bytes", "bytes"]
    outcome = (*(bytes([i]) * 32 for i in range(1, 5)), plans)
    data = eth_abi.encode(kinds, [b"\6" * 32, outcome, records, signatures])
    return log(Sealed, [RUN, (3).to_bytes(32, "big"), (7).to_bytes(32, "big")], data)


def test_a_seal_is_decoded_with_its_records():
    records = tuple(Record(replica, b"\10" * 32, 300, 10, 25, 32768) for replica in (1, 5))
    found = decode_log(parse_log(sealed(encode_records(records), bytes(66))), 5)
    assert isinstance(found, Sealed) and (found.stage, found.round, found.at.time) == (3, 7, 5)
    assert found.records == records and found.signatures == bytes(66) and found.accounts == ()
    assert (found.outcome.weights, found.outcome.momentum_root) == (b"\1" * 32, b"\4" * 32)
    assert (found.outcome.inner_steps, found.outcome.plan) == (10, Plan(1, 2, 20))
    assert (found.count, found.steps, found.mean_loss) == (2, 20, 300)
    assert found.seal(b"\5" * 32) == Seal(RUN, 3, 7, b"\5" * 32, found.outcome, records)


def test_a_seal_of_other_bytes_is_refused():
    record = Record(1, bytes(32), 0, 1, 0, 0).encode()
    for records, signatures in (
        (record[:-1], b""),
        (record + record, b""),
        (record, bytes(65)),
        (b"\x40" + record[1:], b""),
    ):
        with pytest.raises(TypedError):
            decode_log(parse_log(sealed(records, signatures)), 5)


def test_a_conviction_is_decoded_with_whole_entries_only():
    def convicted(entries: bytes) -> dict:
        data = eth_abi.encode(["uint16", "uint32", "bytes32", "bytes"], [2, 7, b"\4" * 32, entries])
        return log(Convicted, [RUN, bytes(12) + bytes.fromhex(ACCOUNT[2:])], data)

    found = decode_log(parse_log(convicted(bytes(196))), 5)
    assert isinstance(found, Convicted) and (found.account, found.entries) == (ACCOUNT, bytes(196))
    assert (found.stage, found.round, found.statement) == (2, 7, b"\4" * 32)
    with pytest.raises(TypedError):
        decode_log(parse_log(convicted(bytes(97))), 5)


def test_small_events_have_the_contract_s_order():
    account = bytes(12) + bytes.fromhex(ACCOUNT[2:])
    words = b"".join(value.to_bytes(32, "big") for value in (2, 4, 6))
    dealt = decode_log(parse_log(log(Dealt, [RUN], words)), 5)
    assert isinstance(dealt, Dealt) and (dealt.stage, dealt.replica, dealt.other) == (2, 4, 6)
    data = account + words[:64] + account[:-1] + b"\1" + words[64:]
    dismissed = decode_log(parse_log(log(Dismissed, [RUN, account], data)), 5)
    assert isinstance(dismissed, Dismissed) and (dismissed.by, dismissed.successor[-2:]) == (ACCOUNT, "01")
    assert (dismissed.replica, dismissed.stage, dismissed.until) == (2, 4, 6)
    evicted = decode_log(parse_log(log(Evicted, [RUN, account], words)), 5)
    assert isinstance(evicted, Evicted) and (evicted.replica, evicted.stage, evicted.return_until) == (2, 4, 6)
