// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @notice What closes one (round, stage) of a run: the contributions it counts and the weights that follow from them.
struct Seal {
    bytes32 run;
    uint16 stage;
    uint32 round;
    bytes32 previousWeights;
    bytes32 nextWeights;
    bytes32 previousMomentum; // zero where the outer optimiser has none
    bytes32 nextMomentum;
    bytes32 contributionsRoot;
    bytes32 contributionsHash; // keccak256 of the records with their signatures
    uint16 count;
    uint64 totalTokens;
    uint64 meanLoss; // micro-nats, weighted by tokens, rounded down
    uint8 planLevel;
    uint16 planRank;
    uint32 planInnerSteps;
    bytes multipliers; // one big-endian uint16 per contribution; 32768 is 1.0
}

library Seals {
    bytes32 internal constant TYPEHASH = keccak256(
        "Seal(bytes32 run,uint16 stage,uint32 round,bytes32 previousWeights,bytes32 nextWeights,"
        "bytes32 previousMomentum,bytes32 nextMomentum,bytes32 contributionsRoot,bytes32 contributionsHash,"
        "uint16 count,uint64 totalTokens,uint64 meanLoss,uint8 planLevel,uint16 planRank,uint32 planInnerSteps,"
        "bytes multipliers)"
    );

    /// @notice The EIP-712 struct hash.
    function hash(Seal calldata s) internal pure returns (bytes32) {
        return keccak256(
            bytes.concat(
                abi.encode(TYPEHASH, s.run, s.stage, s.round, s.previousWeights, s.nextWeights),
                abi.encode(s.previousMomentum, s.nextMomentum, s.contributionsRoot, s.contributionsHash),
                abi.encode(s.count, s.totalTokens, s.meanLoss, s.planLevel, s.planRank, s.planInnerSteps),
                keccak256(s.multipliers)
            )
        );
    }
}
