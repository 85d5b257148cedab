// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @notice A grain of a file, and the hashes that lead from it to the root of the file's Merkle tree, lowest first.
struct Opening {
    bytes grain;
    bytes32[] path;
}

/// @title Bytes of a file of which only the Merkle root is known: RFC 6962 with sha256, over grains of 1,024 bytes
library Openings {
    uint256 internal constant GRAIN_BYTES = 1024;
    uint256 private constant SHA256 = 2; // the precompile

    error OpeningMissing();
    error WrongOpening(uint256 grain);

    /// @notice The bytes from `start` to before `end` (not the same) of the file of `size` bytes with that root. They may
    /// lie in several grains, whose openings are the next of the list; `after_` is the next one that was not used.
    function read(bytes32 root, uint256 size, uint256 start, uint256 end, Opening[] calldata openings, uint256 next)
        internal
        view
        returns (bytes memory data, uint256 after_)
    {
        data = new bytes(end - start);
        uint256 last = (end - 1) / GRAIN_BYTES;
        for (uint256 index = start / GRAIN_BYTES; index <= last; ++index) {
            if (next == openings.length) revert OpeningMissing();
            Opening calldata opening = openings[next++];
            check(root, size, index, opening);
            uint256 first = index * GRAIN_BYTES;
            uint256 from = start > first ? start : first;
            uint256 until = end < first + GRAIN_BYTES ? end : first + GRAIN_BYTES;
            bytes calldata grain = opening.grain;
            assembly ("memory-safe") {
                calldatacopy(add(add(data, 32), sub(from, start)), add(grain.offset, sub(from, first)), sub(until, from))
            }
        }
        return (data, next);
    }

    /// @notice Reverts unless this is the grain of that number.
    function check(bytes32 root, uint256 size, uint256 index, Opening calldata opening) internal view {
        bytes calldata grain = opening.grain;
        bytes32[] calldata path = opening.path;
        if (index * GRAIN_BYTES >= size) revert WrongOpening(index);
        uint256 left = size - index * GRAIN_BYTES;
        if (grain.length != (left < GRAIN_BYTES ? left : GRAIN_BYTES)) revert WrongOpening(index);
        bytes32 found = sha(0, grain);
        (uint256 place, uint256 last) = (index, (size - 1) / GRAIN_BYTES);
        for (uint256 i = 0; i < path.length; ++i) {
            if (last == 0) revert WrongOpening(index);
            if (place & 1 == 1 || place == last) {
                found = _node(path[i], found);
                while (place & 1 == 0 && place != 0) (place, last) = (place >> 1, last >> 1); // the last moves up alone
            } else {
                found = _node(found, path[i]);
            }
            (place, last) = (place >> 1, last >> 1);
        }
        if (last != 0 || found != root) revert WrongOpening(index);
    }

    /// @notice sha256 of a byte and data, in memory that is used again.
    function sha(uint8 prefix, bytes calldata data) internal view returns (bytes32 found) {
        assembly ("memory-safe") {
            let free := mload(0x40)
            mstore8(free, prefix)
            calldatacopy(add(free, 1), data.offset, data.length)
            if iszero(staticcall(gas(), SHA256, free, add(data.length, 1), 0, 32)) { revert(0, 0) }
            found := mload(0)
        }
    }

    /// @notice sha256 of data alone.
    function sha(bytes calldata data) internal view returns (bytes32 found) {
        assembly ("memory-safe") {
            let free := mload(0x40)
            calldatacopy(free, data.offset, data.length)
            if iszero(staticcall(gas(), SHA256, free, data.length, 0, 32)) { revert(0, 0) }
            found := mload(0)
        }
    }

    function _node(bytes32 left, bytes32 right) private view returns (bytes32 found) {
        assembly ("memory-safe") {
            let free := mload(0x40)
            mstore8(free, 1)
            mstore(add(free, 1), left)
            mstore(add(free, 33), right)
            if iszero(staticcall(gas(), SHA256, free, 65, 0, 32)) { revert(0, 0) }
            found := mload(0)
        }
    }
}
