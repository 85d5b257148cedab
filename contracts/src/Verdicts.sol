// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @title What checkers sign of a contribution, and its bytes
/// @notice An entry of a conviction has 98 bytes: finding (1), report (32, sha256), signature (65).
library Verdicts {
    uint256 internal constant ENTRY_BYTES = 98;
    uint256 internal constant SIGNATURE_AT = 33; // in an entry

    bytes32 internal constant TYPEHASH = keccak256(
        "Verdict(bytes32 run,uint16 stage,uint32 round,address account,bytes32 statement,uint8 finding,bytes32 report)"
    );

    /// @notice The EIP-712 struct hash of the verdict in an entry, on the contribution of `account` to (stage, round).
    function hash(
        bytes32 run,
        uint16 stage,
        uint32 round,
        address account,
        bytes32 statement,
        bytes calldata entry
    ) internal pure returns (bytes32) {
        return keccak256(
            abi.encode(TYPEHASH, run, stage, round, account, statement, uint8(entry[0]), bytes32(entry[1:SIGNATURE_AT]))
        );
    }

    /// @notice Whether the finding, the first byte of an entry, is 2 (false) or 3 (withheld); 1 is honest.
    function convicts(uint256 finding) internal pure returns (bool) {
        return finding == 2 || finding == 3;
    }
}
