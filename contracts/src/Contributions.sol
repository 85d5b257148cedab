// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Hashes} from "@openzeppelin/contracts/utils/cryptography/Hashes.sol";

/// @notice The signed statement about one payload. Its fields are all static: abi.encode gives 27 words.
struct Contribution {
    bytes32 run;
    uint32 round;
    uint16 stage;
    uint16 replica;
    address account;
    bytes32 baseWeights;
    bytes32 payload;
    uint64 payloadSize;
    bytes32 plan;
    uint32 innerSteps;
    uint64 tokens;
    uint64 loss; // micro-nats
    bytes32 previous;
    bytes32 startPayload;
    bytes32 foldedPayload;
    bytes32 foldedPayload2;
    bytes32 weightsBefore;
    bytes32 weightsAfter;
    bytes32 optimiserBefore;
    bytes32 optimiserAfter;
    bytes32 residualBefore;
    bytes32 residualAfter;
    bytes32 segmentsRoot;
    uint16 segments;
    uint32 computeMs;
    uint32 exchangeMs;
    uint8 flags; // 1: private data, 2: state reset
}

/// @title Reading the concatenated contribution records of a seal
/// @notice A record is abi.encode(Contribution) followed by the account's 65-byte signature. The signature is not
/// checked on-chain: the seal's signers and every auditor check it.
library Contributions {
    uint256 internal constant ENCODED_BYTES = 864;
    uint256 internal constant RECORD_BYTES = ENCODED_BYTES + 65;

    bytes32 internal constant TYPEHASH = keccak256(
        "Contribution(bytes32 run,uint32 round,uint16 stage,uint16 replica,address account,bytes32 baseWeights,"
        "bytes32 payload,uint64 payloadSize,bytes32 plan,uint32 innerSteps,uint64 tokens,uint64 loss,bytes32 previous,"
        "bytes32 startPayload,bytes32 foldedPayload,bytes32 foldedPayload2,bytes32 weightsBefore,bytes32 weightsAfter,"
        "bytes32 optimiserBefore,bytes32 optimiserAfter,bytes32 residualBefore,bytes32 residualAfter,"
        "bytes32 segmentsRoot,uint16 segments,uint32 computeMs,uint32 exchangeMs,uint8 flags)"
    );

    /// @notice The bytes are no whole number of records.
    error ContributionsLength(uint256 length);

    /// @notice The number of records in `records`.
    function count(bytes calldata records) internal pure returns (uint256) {
        if (records.length % RECORD_BYTES != 0) revert ContributionsLength(records.length);
        return records.length / RECORD_BYTES;
    }

    /// @notice Record `index`, decoded (reverting on out-of-range fields), and its EIP-712 struct hash.
    function read(bytes calldata records, uint256 index) internal pure returns (Contribution memory, bytes32) {
        uint256 start = index * RECORD_BYTES;
        bytes calldata encoded = records[start:start + ENCODED_BYTES];
        return (abi.decode(encoded, (Contribution)), keccak256(bytes.concat(TYPEHASH, encoded)));
    }

    /// @notice The Merkle root of `level` in its order: commutative pair hashes, an odd last node goes up as it is;
    /// zero where there are no leaves. Overwrites `level`.
    function merkleRoot(bytes32[] memory level) internal pure returns (bytes32) {
        if (level.length == 0) return bytes32(0);
        for (uint256 width = level.length; width > 1; width = (width + 1) / 2) {
            for (uint256 i = 0; i < width; i += 2) {
                level[i / 2] = i + 1 < width ? Hashes.commutativeKeccak256(level[i], level[i + 1]) : level[i];
            }
        }
        return level[0];
    }
}
