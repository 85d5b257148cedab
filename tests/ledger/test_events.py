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
    Joined,
    RunCreated,
    decode_log,
    event_topic,
    parse_log,
)

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
    assert len(names) == len(events._SPECS) == 13


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
    kinds = [events._CONFIG, "string", "bytes32[]"]

    def created(text: bytes) -> dict:
        fields = [(bytes(32), *(1,) * 9), text, [bytes(32)]]
        data = eth_abi.encode([kinds[0], "bytes", kinds[2]], fields)
        return log(RunCreated, [RUN, bytes(12) + bytes.fromhex(ACCOUNT[2:])], data)

    assert decode_log(parse_log(created(b"A-run_1.0")), 5).name == "A-run_1.0"
    with pytest.raises(TypedError, match="no run's name"):
        decode_log(parse_log(created(name)), 5)


def test_events_of_later_contracts_are_passed_over():
    for topics in (["0x" + "33" * 32], []):
        assert decode_log(parse_log({**joined(), **PLACE, "topics": topics}), 5) is None


def test_text_that_is_no_utf8_is_no_reason_to_stop():
    account = bytes(12) + bytes.fromhex(ACCOUNT[2:])
    data = eth_abi.encode(["bytes[]"], [[b"/ip4/1.2.3.4", b"\xff\xfe"]])
    changed = decode_log(parse_log(log(AddressesChanged, [account], data)), 5)
    assert isinstance(changed, AddressesChanged) and changed.multiaddrs == ("/ip4/1.2.3.4", "\ufffd\ufffd")
    data = eth_abi.encode(["bytes32", "bytes"], [b"\1" * 32, b"\xc3("])
    published = decode_log(parse_log(log(CheckpointPublished, [RUN, (7).to_bytes(32, "big"), account], data)), 5)
    assert isinstance(published, CheckpointPublished) and (published.round, published.uri) == (7, "\ufffd(")


def test_an_event_without_data():
    account = bytes(12) + bytes.fromhex(ACCOUNT[2:])
    answered = decode_log(parse_log(log(Answered, [RUN, account], b"")), 5)
    assert isinstance(answered, Answered) and (answered.run, answered.account) == (RUN, ACCOUNT)
