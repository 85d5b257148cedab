"""What the Python side relies on in the committed artifacts."""

import pytest
from eth_utils.abi import abi_to_signature, event_abi_to_log_topic

from dlx.contracts import load

CONFIG = (
    "(bytes32,uint32,uint16,uint16,uint16,uint16,uint16,uint16,uint32,uint32,uint32,uint32,uint64,uint64,bool,uint128,"
    "bytes32)"
)
OUTCOME = "(bytes32,bytes32,bytes32,bytes32,bytes11)"
BASIS = "(bytes32,uint16,uint32,bytes32,bytes32)"
# Topics and selectors are what is on the chain: changing one breaks every ledger and auditor there is.
EVENTS = {
    "NodeRegistry": {
        "NodeRegistered(address,bytes,uint256)": 1,
        "AddressesChanged(address,string[])": 1,
        "NodeDeregistered(address,bytes)": 1,
    },
    "Invitations": {
        "Admitted(address,bytes32,address,address)": 3,
        "Revoked(address,bytes32,address,address)": 3,
        "StewardSet(address,bytes32,address,bool)": 3,
        "ListSet(address,bytes32,bytes32)": 2,
    },
    "Bonds": {
        "Deposited(address,bytes32,address,uint256,address)": 3,
        "Withdrawn(address,bytes32,address,uint256)": 3,
        "Locked(address,bytes32,address,uint256)": 3,
        "Released(address,bytes32,address,uint256,uint64)": 3,
        "Slashed(address,bytes32,address,uint256,uint256,address,bytes32)": 3,
    },
    "TrainingLedger": {
        f"RunCreated(bytes32,address,{CONFIG},string,bytes32[],address[])": 2,
        "Joined(bytes32,address,uint16,uint16)": 2,
        "SiteEnlisted(bytes32,address,address,uint16,uint64)": 3,
        "SitePlaced(bytes32,address,uint16,address[])": 2,
        "Left(bytes32,address,uint16,uint16)": 2,
        "Moved(bytes32,address,uint16,uint16,uint16)": 2,
        "RunOpened(bytes32,uint64)": 1,
        "Dealt(bytes32,uint16,uint16,uint16)": 1,
        "Accused(bytes32,address,address,bool)": 2,
        "Answered(bytes32,address)": 2,
        "Evicted(bytes32,address,uint16,uint16,uint64)": 2,
        "Dismissed(bytes32,address,address,uint16,uint16,address,uint64)": 2,
        "Reclaimed(bytes32,address,address,uint16,uint16)": 3,
        "Convicted(bytes32,address,uint16,uint32,bytes32,bytes)": 2,
        f"Sealed(bytes32,uint16,uint32,bytes32,{OUTCOME},bytes,bytes)": 3,
        "CheckpointPublished(bytes32,uint32,address,bytes32,string)": 3,
        "Evaluated(bytes32,address,uint32,uint64,uint32,bytes32)": 2,
    },
}
FUNCTIONS = {
    "NodeRegistry": {
        "register(bytes32,bytes32,bytes,string[])",
        "setAddresses(string[])",
        "deregister()",
        "nonces(address)",
        "peerIdOf(address)",
        "accountOf(bytes32)",
        "isRegistered(address)",
        "changes()",
    },
    "Invitations": {
        "admits(bytes32,address)",
        "isAdmitted(address,bytes32,address)",
        "admit((address,bytes32,address,address,uint64,uint64),bytes)",
        "admitListed(address,bytes32,address,bytes32[])",
        "revoke(address,bytes32,address)",
        "setSteward(address,bytes32,address,bool)",
        "setList(address,bytes32,bytes32)",
        "isSteward(address,bytes32,address)",
        "guestOf(address,bytes32,address)",
    },
    "Bonds": {
        "deposit(address,bytes32,address)",
        "withdraw(address,bytes32)",
        "lock(bytes32,address,uint256)",
        "release(bytes32,address)",
        "bondOf(address,bytes32,address)",
        "proofs()",
        "twoStatements(address,bytes,bytes,bytes,bytes)",
        f"twoSeals(address,{BASIS},{OUTCOME},bytes,{OUTCOME},bytes)",
        f"falseVersion(address,{BASIS},{OUTCOME},bytes)",
    },
    "TrainingLedger": {
        f"createRun({CONFIG},string,bytes32[],address[])",
        "joinRun(bytes32,uint16)",
        "enlist(bytes32,uint16,uint40,bytes)",
        "joinSite(bytes32,uint16,address[])",
        "moveDown(bytes32)",
        "leaveRun(bytes32)",
        "accuse(bytes32,address)",
        "answer(bytes32)",
        "evict(bytes32,address)",
        "deal(bytes32,uint16)",
        "convict(bytes32,uint16,uint32,address,bytes32,bytes)",
        f"seal((bytes32,uint16,uint32,{OUTCOME},bytes,bytes))",
        "publishCheckpoint(bytes32,uint32,bytes32,string)",
        "evaluate(bytes32,uint32,uint64,uint32,bytes32)",
        "registry()",
        "runs()",
        "runConfig(bytes32)",
        "head(bytes32,uint16)",
        "holderOf(bytes32,uint16,uint16)",
        "memberOf(bytes32,address)",
        "stageOf(bytes32,uint16)",
        "nextRound(bytes32,uint16)",
        "openRound(bytes32)",
        "isForfeit(bytes32,address)",
        "enlistedOf(bytes32,address)",
        "weightsOf(bytes32,uint16)",
        "weightOf(bytes32,address)",
        "isFounder(bytes32,address)",
        "creatorOf(bytes32)",
        "staysOf(bytes32,address)",
        "earnedIn(bytes32,uint16,uint32,address,uint256)",
        "sealsIn(bytes32,uint16,uint32)",
        "dismiss(bytes32,address,address)",
    },
}
EVENTS["Campaigns"] = {
    "CampaignCreated(uint256,bytes32,(bytes32,address,uint32,uint32,uint32,uint32,uint128),uint16[])": 2,
    "Funded(uint256,address,uint256)": 2,
    "Settled(uint256,uint32,uint256,uint256)": 1,
    "Closed(uint256,uint256)": 1,
    "Claimed(uint256,address,uint16,uint256)": 2,
    "Forfeited(uint256,address,uint16,uint256)": 2,
    "SealRefunded(uint256,address,uint16,uint32,uint256)": 2,
    "Refunded(uint256,address,uint256)": 2,
}
FUNCTIONS["Campaigns"] = {
    "create((bytes32,address,uint32,uint32,uint32,uint32,uint128),uint16[],uint256)",
    "fund(uint256,uint256)",
    "settle(uint256,uint256)",
    "claim(uint256,address,uint16,uint32[])",
    "refund(uint256,address)",
    "ledger()",
    "proofs()",
    "campaignsOf(bytes32,uint256,uint256)",
}
NAMES = sorted(EVENTS)
PAYABLE = {"Bonds": ["deposit"], "Campaigns": ["create", "fund"]}


def of_type(name: str, kind: str) -> list[dict]:
    return [entry for entry in load(name)["abi"] if entry["type"] == kind]


@pytest.mark.parametrize("name", NAMES)
def test_events_are_those_on_every_chain(name):
    found = {abi_to_signature(e): sum(i["indexed"] for i in e["inputs"]) for e in of_type(name, "event")}
    found.pop("EIP712DomainChanged()", None)
    assert found == EVENTS[name]
    assert len({event_abi_to_log_topic(e) for e in of_type(name, "event")}) == len(of_type(name, "event"))


@pytest.mark.parametrize("name", NAMES)
def test_functions_that_callers_use_are_there(name):
    assert {abi_to_signature(e) for e in of_type(name, "function")} >= FUNCTIONS[name]


@pytest.mark.parametrize("name", NAMES)
def test_nobody_can_own_or_upgrade_a_contract_or_pay_it_without_a_purpose(name):
    functions = of_type(name, "function")
    assert [e["name"] for e in functions if e["stateMutability"] == "payable"] == PAYABLE.get(name, [])
    words = ("owner", "admin", "pause", "upgrade", "initialize", "proxy")
    assert not [e["name"] for e in functions if any(word in e["name"].lower() for word in words)]
    assert not of_type(name, "fallback") and not of_type(name, "receive")


@pytest.mark.parametrize("name", NAMES)
def test_code_fits_the_chain_and_immutables_are_blank(name):
    artifact = load(name)
    code = bytes.fromhex(artifact["deployedBytecode"].removeprefix("0x"))
    assert 0 < len(code) <= 24_576
    assert len(bytes.fromhex(artifact["bytecode"].removeprefix("0x"))) <= 49_152
    assert artifact["immutableReferences"]
    for place in artifact["immutableReferences"]:
        assert code[place["start"] : place["start"] + place["length"]] == bytes(place["length"])


def test_an_unknown_contract_is_a_missing_file():
    with pytest.raises(FileNotFoundError):
        load("NoSuchContract")


def test_disproofs_are_told_alike_on_every_chain():
    events = {abi_to_signature(e): sum(i["indexed"] for i in e["inputs"]) for e in of_type("OuterProofs", "event")}
    assert events == {
        "VersionDisproved(bytes32,uint16,uint32,bytes32,bool,uint32,uint64,uint32,uint32)": 3,
        "Summed(bytes32,address,uint256)": 2,
    }
    functions = {abi_to_signature(e) for e in of_type("OuterProofs", "function")}
    assert functions >= {
        "disproved(bytes32)",
        "firstDisproved(bytes32,uint16)",
        "noted(bytes32,uint16,bytes32)",
        "ledger()",
    }
    assert not [e for e in of_type("OuterProofs", "function") if e["stateMutability"] == "payable"]
