// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Contribution} from "../src/Contributions.sol";
import {NodeRegistry} from "../src/NodeRegistry.sol";
import {RunConfig} from "../src/Runs.sol";
import {Seal} from "../src/Seals.sol";
import {TrainingLedger} from "../src/TrainingLedger.sol";
import {vm, Vm} from "./Vm.sol";

string constant CONTRIBUTION_TYPE =
    "Contribution(bytes32 run,uint32 round,uint16 stage,uint16 replica,address account,bytes32 baseWeights,bytes32 payload,uint64 payloadSize,bytes32 plan,uint32 innerSteps,uint64 tokens,uint64 loss,bytes32 previous,bytes32 startPayload,bytes32 foldedPayload,bytes32 foldedPayload2,bytes32 weightsBefore,bytes32 weightsAfter,bytes32 optimiserBefore,bytes32 optimiserAfter,bytes32 residualBefore,bytes32 residualAfter,bytes32 segmentsRoot,uint16 segments,uint32 computeMs,uint32 exchangeMs,uint8 flags)";
string constant SEAL_TYPE =
    "Seal(bytes32 run,uint16 stage,uint32 round,bytes32 previousWeights,bytes32 nextWeights,bytes32 previousMomentum,bytes32 nextMomentum,bytes32 contributionsRoot,bytes32 contributionsHash,uint16 count,uint64 totalTokens,uint64 meanLoss,uint8 planLevel,uint16 planRank,uint32 planInnerSteps,bytes multipliers)";

/// @dev A registry, a ledger, registered accounts in ascending order, and what their nodes do off-chain.
abstract contract Fixture {
    uint32 internal constant ROUND_TIMEOUT = 600;
    uint32 internal constant EVICTION_TIME = 120;
    uint64 internal constant TOKENS_PER_STEP = 4096;
    uint32 internal constant INNER_STEPS = 50;
    uint16 internal constant ANY = type(uint16).max;
    address internal constant CREATOR = address(0xc4ea7e);
    string internal constant NAME = "a-run";

    NodeRegistry internal registry;
    TrainingLedger internal ledger;
    address[] internal who; // ascending
    mapping(address => uint256) internal keyOf;

    constructor() {
        vm.warp(1_800_000_000);
        vm.roll(1000);
        registry = new NodeRegistry();
        ledger = new TrainingLedger(registry);
    }

    // ------------------------------------------------------------------------------------------- accounts, runs

    /// @dev Registers `count` accounts and puts them into `who`.
    function enrol(uint256 count) internal {
        for (uint256 i = 0; i < count; ++i) {
            address account = vm.addr(0xacc0 + i);
            keyOf[account] = 0xacc0 + i;
            register(account, 0x90de0 + i);
            who.push(account);
            for (uint256 j = who.length - 1; j > 0 && who[j] < who[j - 1]; --j) {
                (who[j], who[j - 1]) = (who[j - 1], who[j]);
            }
        }
    }

    function register(address account, uint256 nodeKey) internal {
        Vm.Wallet memory node = vm.createWallet(nodeKey);
        bytes32 registration =
            keccak256(abi.encode(registry.REGISTRATION_TYPEHASH(), account, registry.nonces(account)));
        (uint8 v, bytes32 r, bytes32 s) =
            vm.sign(nodeKey, digestIn("dlx-node NodeRegistry", address(registry), registration));
        vm.prank(account);
        registry.register(
            bytes32(node.publicKeyX), bytes32(node.publicKeyY), abi.encodePacked(r, s, v), new string[](0)
        );
    }

    function configOf(uint16 stages, uint16 minReplicas, uint16 maxReplicas) internal pure returns (RunConfig memory) {
        return RunConfig({
            manifest: keccak256("manifest"),
            rounds: 10,
            stages: stages,
            minReplicas: minReplicas,
            maxReplicas: maxReplicas,
            quorumNumerator: 2,
            quorumDenominator: 3,
            roundTimeout: ROUND_TIMEOUT,
            evictionTime: EVICTION_TIME,
            tokensPerStep: TOKENS_PER_STEP
        });
    }

    function genesisOf(uint256 stages) internal pure returns (bytes32[] memory hashes) {
        hashes = new bytes32[](stages);
        for (uint256 stage = 0; stage < stages; ++stage) {
            hashes[stage] = keccak256(abi.encode("genesis", stage));
        }
    }

    function create(RunConfig memory config) internal returns (bytes32) {
        vm.prank(CREATOR);
        return ledger.createRun(config, NAME, genesisOf(config.stages));
    }

    function join(bytes32 run, address account, uint16 stage) internal {
        vm.prank(account);
        ledger.joinRun(run, stage);
    }

    function requireSlot(bytes32 run, address account, uint16 replica, uint16 stage) internal view {
        (bool holds, uint16 r, uint16 s) = ledger.slotOf(run, account);
        vm.assertTrue(holds);
        vm.assertEq(r, replica, "replica");
        vm.assertEq(s, stage, "stage");
        vm.assertEq(ledger.holderOf(run, replica, stage), account);
    }

    // ------------------------------------------------------------------------------------------- typed messages

    function digestIn(string memory name, address verifier, bytes32 structHash) internal view returns (bytes32) {
        bytes32 domain = keccak256(
            abi.encode(
                keccak256("EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)"),
                keccak256(bytes(name)),
                keccak256("1"),
                block.chainid,
                verifier
            )
        );
        return keccak256(abi.encodePacked(hex"1901", domain, structHash));
    }

    function digestOf(Seal memory s) internal view returns (bytes32) {
        return digestIn("dlx-node TrainingLedger", address(ledger), vm.eip712HashStruct(SEAL_TYPE, abi.encode(s)));
    }

    function hashOf(Contribution memory c) internal pure returns (bytes32) {
        return vm.eip712HashStruct(CONTRIBUTION_TYPE, abi.encode(c));
    }

    function sign(address account, bytes32 digest) internal view returns (bytes memory) {
        (uint8 v, bytes32 r, bytes32 s) = vm.sign(keyOf[account], digest);
        return abi.encodePacked(r, s, v);
    }

    function signAll(address[] memory signers, Seal memory s) internal view returns (bytes memory signatures) {
        bytes32 digest = digestOf(s);
        for (uint256 i = 0; i < signers.length; ++i) {
            signatures = bytes.concat(signatures, sign(signers[i], digest));
        }
    }

    // -------------------------------------------------------------------------------------- contributions, seals

    /// @dev What `account` states for its slot in the stage's next round.
    function contributionOf(bytes32 run, address account) internal view returns (Contribution memory c) {
        (, c.replica, c.stage) = ledger.slotOf(run, account);
        c.run = run;
        c.round = ledger.nextRound(run, c.stage);
        c.account = account;
        (c.baseWeights,) = ledger.heads(run, c.stage);
        c.payload = keccak256(abi.encode("payload", account, c.round));
        c.payloadSize = 1 << 20;
        c.plan = keccak256(abi.encode(uint8(0), uint16(0), INNER_STEPS));
        c.innerSteps = INNER_STEPS;
        c.tokens = INNER_STEPS * TOKENS_PER_STEP;
        c.loss = 3_000_000 + uint64(uint160(account) % 1_000_000);
        c.weightsAfter = keccak256(abi.encode("after", account, c.round));
        c.segments = 3;
        c.computeMs = 90_000;
        c.exchangeMs = 4_000;
    }

    function contributionsOf(bytes32 run, address[] memory accounts) internal view returns (Contribution[] memory cs) {
        cs = new Contribution[](accounts.length);
        for (uint256 i = 0; i < accounts.length; ++i) {
            cs[i] = contributionOf(run, accounts[i]);
        }
    }

    function recordsOf(Contribution[] memory cs) internal view returns (bytes memory records) {
        for (uint256 i = 0; i < cs.length; ++i) {
            bytes32 digest = digestIn("dlx-node TrainingLedger", address(ledger), hashOf(cs[i]));
            records = bytes.concat(records, abi.encode(cs[i]), sign(cs[i].account, digest));
        }
    }

    /// @dev The seal of the stage's next round over these contributions, written without the ledger's code.
    function sealOf(bytes32 run, uint16 stage, Contribution[] memory cs) internal view returns (Seal memory s) {
        s.run = run;
        s.stage = stage;
        s.round = ledger.nextRound(run, stage);
        (s.previousWeights, s.previousMomentum) = ledger.heads(run, stage);
        (s.nextWeights, s.nextMomentum) = (s.previousWeights, s.previousMomentum);
        if (cs.length > 0) s.nextWeights = keccak256(abi.encode("weights", stage, s.round + 1));
        s.planInnerSteps = INNER_STEPS;
        summarise(s, cs);
    }

    function summarise(Seal memory s, Contribution[] memory cs) internal view {
        bytes32[] memory leaves = new bytes32[](cs.length);
        uint256 loss = 0;
        s.totalTokens = 0;
        s.multipliers = "";
        for (uint256 i = 0; i < cs.length; ++i) {
            leaves[i] = hashOf(cs[i]);
            s.totalTokens += cs[i].tokens;
            loss += uint256(cs[i].loss) * cs[i].tokens;
            s.multipliers = bytes.concat(s.multipliers, bytes2(uint16(32768)));
        }
        s.count = uint16(cs.length);
        s.meanLoss = cs.length == 0 ? 0 : uint64(loss / s.totalTokens);
        s.contributionsRoot = cs.length == 0 ? bytes32(0) : rootOf(leaves, 0, leaves.length);
        s.contributionsHash = keccak256(recordsOf(cs));
    }

    /// @dev The same tree as level by level with an odd node going up: left half of the largest power of two.
    function rootOf(bytes32[] memory leaves, uint256 from, uint256 to) internal pure returns (bytes32) {
        if (to - from == 1) return leaves[from];
        uint256 half = 1;
        while (half * 2 < to - from) half *= 2;
        (bytes32 a, bytes32 b) = (rootOf(leaves, from, from + half), rootOf(leaves, from + half, to));
        return a < b ? keccak256(abi.encodePacked(a, b)) : keccak256(abi.encodePacked(b, a));
    }

    /// @dev Seals the stage's next round with these contributors, all of whom sign.
    function sealWith(bytes32 run, uint16 stage, address[] memory accounts) internal {
        sealSignedBy(run, stage, accounts, accounts);
    }

    function sealSignedBy(bytes32 run, uint16 stage, address[] memory accounts, address[] memory signers) internal {
        Contribution[] memory cs = contributionsOf(run, accounts);
        Seal memory s = sealOf(run, stage, cs);
        ledger.seal(s, recordsOf(cs), signAll(signers, s));
    }

    function some(address a) internal pure returns (address[] memory list) {
        list = new address[](1);
        list[0] = a;
    }

    function some(address a, address b) internal pure returns (address[] memory list) {
        list = new address[](2);
        (list[0], list[1]) = (a, b);
    }

    function some(address a, address b, address c) internal pure returns (address[] memory list) {
        list = new address[](3);
        (list[0], list[1], list[2]) = (a, b, c);
    }

    function none() internal pure returns (address[] memory) {
        return new address[](0);
    }
}
