// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @title Sets of up to 64 numbers
library Bitmaps {
    /// @notice How many bits of a bitmap of 64 are set.
    function size(uint256 bitmap) internal pure returns (uint256 x) {
        unchecked {
            x = bitmap - ((bitmap >> 1) & 0x5555555555555555);
            x = (x & 0x3333333333333333) + ((x >> 2) & 0x3333333333333333);
            x = (x + (x >> 4)) & 0x0f0f0f0f0f0f0f0f;
            x = ((x * 0x0101010101010101) >> 56) & 0xff;
        }
    }

    /// @notice The lowest bit that is set in a bitmap that is not empty.
    function lowest(uint256 bitmap) internal pure returns (uint256) {
        unchecked {
            return size((bitmap & (~bitmap + 1)) - 1);
        }
    }
}
