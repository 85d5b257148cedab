// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @notice What a sealed (round, stage) came to. An empty seal changes nothing: its four hashes are zero.
struct Outcome {
    bytes32 weights; // sha256 of V[s,t+1]
    bytes32 momentum; // sha256 of the outer momentum; zero where the outer optimiser has none
    bytes32 weightsRoot; // RFC 6962 Merkle roots over 1 KiB grains of the same two files
    bytes32 momentumRoot;
    bytes11 plans; // this round's inner steps (4); of round t + delay + 1 level (1), rank (2), inner steps (4)
}

/// @notice What closes (stage, round), with what proves it.
struct Seal {
    bytes32 run;
    uint16 stage;
    uint32 round;
    Outcome outcome;
    bytes records; // the counted contributions, replicas strictly ascending
    bytes signatures; // entries, see Seals
}

/// @title The bytes of a seal, and what is signed
/// @notice A record has 44 bytes: replica (1), statement (32, sha256 of all that the contribution says, its payload's
/// hash too), loss (4, micro-nats), inner steps (4), exchange (1, percent of the computing time, 0: not measured), and,
/// the proposer's choice, multiplier (2, 32768 is 1.0). An entry has 66 bytes: its maker's replica, as its record says where
/// it has one, and a signature of the seal, which also covers that record; or, with 128 added to the replica, of the
/// record alone, for makers who do not sign the seal; or 192, and a founder's signature of the seal.
library Seals {
    uint256 internal constant RECORD_BYTES = 44;
    uint256 private constant HALF_ORDER = 0x7FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF5D576E7357A4501DDFE92F46681B20A0;
    uint256 internal constant ENTRY_BYTES = 66;
    uint256 internal constant OF_RECORD = 128;
    uint256 internal constant OF_FOUNDER = 192;

    bytes32 internal constant TYPEHASH = keccak256(
        "Seal(bytes32 run,uint16 stage,uint32 round,bytes32 previous,bytes32 weights,bytes32 momentum,"
        "bytes32 weightsRoot,bytes32 momentumRoot,bytes11 plans,bytes records)"
    );
    bytes32 internal constant CONTRIBUTION_TYPEHASH = keccak256(
        "Contribution(bytes32 run,uint32 round,uint16 stage,uint16 replica,bytes32 statement,"
        "uint32 loss,uint32 innerSteps,uint8 exchange)"
    );

    /// @notice The EIP-712 struct hash of a seal; `previous` is the digest of the stage's seal before.
    function hash(Seal calldata s, bytes32 previous) internal pure returns (bytes32) {
        return keccak256(
            abi.encode(TYPEHASH, s.run, s.stage, s.round, previous, s.outcome, keccak256(s.records))
        );
    }

    /// @notice The EIP-712 struct hash of the contribution in record `index`: what its maker signed.
    function contributionHash(Seal calldata s, uint256 index) internal pure returns (bytes32) {
        bytes calldata record = s.records[index * RECORD_BYTES:(index + 1) * RECORD_BYTES];
        return keccak256(
            abi.encode(
                CONTRIBUTION_TYPEHASH,
                s.run,
                s.round,
                s.stage,
                uint8(record[0]),
                bytes32(record[1:33]),
                uint32(bytes4(record[33:37])),
                uint32(bytes4(record[37:41])),
                uint8(record[41])
            )
        );
    }

    /// @notice The inner steps of this round, and those of the next plan.
    function innerSteps(Outcome calldata o) internal pure returns (uint256 current, uint256 next) {
        return (uint88(o.plans) >> 56, uint32(uint88(o.plans)));
    }

    /// @notice Replica and inner steps of the record that starts at byte `start`, which must be there.
    function replicaAndSteps(bytes calldata records, uint256 start) internal pure returns (uint256 replica, uint256 steps) {
        unchecked {
            replica = _load(records, start) >> 248;
            steps = (_load(records, start + RECORD_BYTES - 32) >> 24) & type(uint32).max;
        }
    }

    /// @notice The first byte of the entry that starts at byte `start`, which must be there.
    function entryOf(bytes calldata signatures, uint256 start) internal pure returns (uint256) {
        return _load(signatures, start) >> 248;
    }

    /// @notice Who made the signature (r, s, v) that starts at byte `start`, which must be there; zero for nobody. Only v
    /// of 27 or 28 and the lower s pass, so that a signature has one form.
    function signer(bytes calldata entries, uint256 start, bytes32 digest) internal pure returns (address account) {
        unchecked {
            uint256 s = _load(entries, start + 32);
            uint256 v = _load(entries, start + 33) & 0xff;
            if (s <= HALF_ORDER) account = ecrecover(digest, uint8(v), bytes32(_load(entries, start)), bytes32(s));
        }
    }

    /// @dev The word at byte `start`. Whoever asks has looked at the length.
    function _load(bytes calldata data, uint256 start) private pure returns (uint256 word) {
        assembly ("memory-safe") {
            word := calldataload(add(data.offset, start))
        }
    }
}
