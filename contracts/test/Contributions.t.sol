// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {MerkleProof} from "@openzeppelin/contracts/utils/cryptography/MerkleProof.sol";

import {Contribution, Contributions} from "../src/Contributions.sol";
import {Seal} from "../src/Seals.sol";
import {TrainingLedger} from "../src/TrainingLedger.sol";
import {Fixture} from "./Fixture.sol";
import {vm} from "./Vm.sol";

/// @dev The ledger's own arithmetic against a plain one, and the gas of the largest seal.
contract ContributionsTest is Fixture {
    uint256 private constant MOST = 64;
    uint256 private constant GAS_BOUND = 16_000_000;

    bytes32 private run;
    bytes32 private large; // sealed once, as a live run would be

    function setUp() public {
        enrol(MOST);
        run = create(configOf(1, 1, 16));
        for (uint256 i = 0; i < 16; ++i) {
            join(run, who[i], ANY);
        }
        large = ledger.createRun(configOf(1, uint16(MOST), uint16(MOST)), NAME, genesisOf(1));
        for (uint256 i = 0; i < MOST; ++i) {
            join(large, who[i], ANY);
        }
        sealWith(large, 0, who);
    }

    function merkleRoot(bytes32[] memory leaves) external pure returns (bytes32) {
        return Contributions.merkleRoot(leaves);
    }

    function testFuzz_merkleRootIsThatOfThePlainTree(bytes32[] memory leaves) public view {
        vm.assume(leaves.length > 0);
        vm.assertEq(this.merkleRoot(leaves), rootOf(leaves, 0, leaves.length));
    }

    function testFuzz_aSealProvesMembershipWithAStandardProof(bytes32[5] memory five) public view {
        bytes32[] memory leaves = new bytes32[](5);
        for (uint256 i = 0; i < 5; ++i) {
            leaves[i] = five[i];
        }
        bytes32[] memory proof = new bytes32[](1); // the odd fifth leaf goes up twice
        proof[0] = rootOf(leaves, 0, 4);
        vm.assertTrue(MerkleProof.verify(proof, this.merkleRoot(leaves), five[4]));
    }

    function test_noLeavesHaveTheZeroRoot() public view {
        vm.assertEq(this.merkleRoot(new bytes32[](0)), bytes32(0));
    }

    /// @dev Any contributions of any members: what the fixture recomputes plainly, the ledger accepts; one bit more or
    /// less it does not.
    function testFuzz_hashRootTotalAndMeanAgreeWithAPlainReimplementation(uint256 seed, uint16 members) public {
        address[] memory accounts = pick(members);
        vm.assume(accounts.length > 0);
        Contribution[] memory cs = contributionsOf(run, accounts);
        for (uint256 i = 0; i < cs.length; ++i) {
            seed = scramble(cs[i], seed);
        }
        Seal memory s = sealOf(run, 0, cs);
        bytes memory records = recordsOf(cs);
        bytes memory signatures = signAll(who16(), s);

        records[seed % records.length] ^= bytes1(uint8(1 << (seed % 8)));
        vm.expectRevert();
        ledger.seal(s, records, signatures);
        records[seed % records.length] ^= bytes1(uint8(1 << (seed % 8)));
        ledger.seal(s, records, signatures);
        vm.assertEq(ledger.sealDigest(run, 0, 0), digestOf(s));
        for (uint256 i = 0; i < accounts.length; ++i) {
            vm.assertTrue(ledger.isActive(run, accounts[i]));
        }
    }

    function test_theLargestSealStaysWithinItsGas() public {
        address[] memory accounts = who;
        Contribution[] memory cs = contributionsOf(large, accounts);
        uint256 seed = 1;
        for (uint256 i = 0; i < cs.length; ++i) {
            seed = scramble(cs[i], seed);
        }
        Seal memory s = sealOf(large, 0, cs);
        s.nextMomentum = keccak256("momentum"); // its first write
        bytes memory call = abi.encodeCall(TrainingLedger.seal, (s, recordsOf(cs), signAll(accounts, s)));
        (uint256 total, uint256 floor) = gasOf(call);
        vm.assertLt(total, GAS_BOUND, "gas of a seal");
        vm.assertLt(floor, GAS_BOUND, "calldata floor of a seal (EIP-7623)");
        vm.assertEq(ledger.nextRound(large, 0), 2);
    }

    /// @dev The transaction's gas, and the least that its calldata costs since EIP-7623.
    function gasOf(bytes memory data) private returns (uint256 total, uint256 floor) {
        total = floor = 21_000;
        for (uint256 i = 0; i < data.length; ++i) {
            total += data[i] == 0 ? 4 : 16;
            floor += data[i] == 0 ? 10 : 40;
        }
        vm.cool(address(ledger)); // as at the start of a transaction
        address to = address(ledger);
        bool success;
        uint256 before = gasleft();
        assembly {
            // straight from memory: a copy would be charged to the seal
            success := call(gas(), to, 0, add(data, 32), mload(data), 0, 0)
        }
        total += before - gasleft();
        vm.assertTrue(success);
    }

    function who16() private view returns (address[] memory accounts) {
        return pick(type(uint16).max);
    }

    function pick(uint16 members) private view returns (address[] memory accounts) {
        uint256 count = 0;
        for (uint256 i = 0; i < 16; ++i) {
            if ((members >> i) & 1 == 1) ++count;
        }
        accounts = new address[](count);
        for (uint256 i = 16; i > 0; --i) {
            if ((members >> (i - 1)) & 1 == 1) accounts[--count] = who[i - 1];
        }
    }

    /// @dev Arbitrary values for whatever the ledger does not prescribe.
    function scramble(Contribution memory c, uint256 seed) private pure returns (uint256) {
        seed = uint256(keccak256(abi.encode(seed)));
        c.innerSteps = uint32(1 + (seed % 10_000));
        c.tokens = c.innerSteps * TOKENS_PER_STEP;
        c.loss = uint64(seed >> 32);
        c.baseWeights = keccak256(abi.encode(seed, 0));
        c.payload = keccak256(abi.encode(seed, 1));
        c.payloadSize = uint64(seed >> 64);
        c.previous = keccak256(abi.encode(seed, 2));
        c.startPayload = keccak256(abi.encode(seed, 3));
        c.foldedPayload = keccak256(abi.encode(seed, 4));
        c.foldedPayload2 = keccak256(abi.encode(seed, 5));
        c.weightsBefore = keccak256(abi.encode(seed, 6));
        c.weightsAfter = keccak256(abi.encode(seed, 7));
        c.optimiserBefore = keccak256(abi.encode(seed, 8));
        c.optimiserAfter = keccak256(abi.encode(seed, 9));
        c.residualBefore = keccak256(abi.encode(seed, 10));
        c.residualAfter = keccak256(abi.encode(seed, 11));
        c.segmentsRoot = keccak256(abi.encode(seed, 12));
        c.segments = uint16(seed >> 128);
        c.computeMs = uint32(seed >> 144);
        c.exchangeMs = uint32(seed >> 176);
        c.flags = uint8(seed >> 208);
        return seed;
    }
}
