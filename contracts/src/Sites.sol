// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @notice An account lets the others of its site place it, until then; `site` is the address of the key that named it.
struct Enlisted {
    address site; // of the last time; zero: never
    uint40 until; // 0: it took a slot
}

/// @title What a site's key signs: that an account is one of its machines
library Sites {
    uint256 internal constant SIGNATURE_BYTES = 65;

    bytes32 internal constant TYPEHASH = keccak256("SiteMember(bytes32 run,address account)");

    function hash(bytes32 run, address account) internal pure returns (bytes32) {
        return keccak256(abi.encode(TYPEHASH, run, account));
    }
}
