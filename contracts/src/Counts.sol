// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @title Which of a stage's last eight non-empty seals counted each seat's holder
/// @notice A byte for each seat, 32 seats to a word; its lowest bit is the newest seal. A byte goes where its holder goes.
library Counts {
    uint256 private constant LOW = 0x0101010101010101010101010101010101010101010101010101010101010101;

    /// @notice The seats of this word whose byte has at least one bit, as a bitmap of 32.
    function once(uint256 word) internal pure returns (uint256) {
        unchecked {
            // Carries stay inside a byte: 0x7f more than seven bits fit into eight.
            return _gather((((word & (LOW * 0x7f)) + LOW * 0x7f) | word) >> 7 & LOW);
        }
    }

    /// @notice The seats of this word whose byte has at least two bits, as a bitmap of 32.
    function twice(uint256 word) internal pure returns (uint256) {
        unchecked {
            word -= (word >> 1) & (LOW * 0x55);
            word = (word & (LOW * 0x33)) + ((word >> 2) & (LOW * 0x33));
            word = (word + (word >> 4)) & (LOW * 0x0f); // 0 to 8 in each byte
            return _gather(((word + LOW * 0x7e) >> 7) & LOW);
        }
    }

    /// @notice The word after one more non-empty seal that counted the seats of this bitmap of 32.
    function push(uint256 word, uint256 counted) internal pure returns (uint256) {
        return ((word << 1) & (LOW * 0xfe)) | _spread(counted);
    }

    function get(uint256 word, uint256 seat) internal pure returns (uint256) {
        return (word >> (8 * (seat & 31))) & 0xff;
    }

    function set(uint256 word, uint256 seat, uint256 value) internal pure returns (uint256) {
        uint256 shift = 8 * (seat & 31);
        return (word & ~(uint256(0xff) << shift)) | (value << shift);
    }

    /// @notice How many non-empty seals ago a byte was last counted: 0 for the newest one, 8 where it is empty.
    function age(uint256 value) internal pure returns (uint256 seals) {
        while (seals < 8 && (value >> seals) & 1 == 0) ++seals;
    }

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

    /// @dev Bit 8i becomes bit i.
    function _gather(uint256 x) private pure returns (uint256) {
        x = (x | (x >> 7)) & 0x0003000300030003000300030003000300030003000300030003000300030003;
        x = (x | (x >> 14)) & 0x0000000f0000000f0000000f0000000f0000000f0000000f0000000f0000000f;
        x = (x | (x >> 28)) & 0x00000000000000ff00000000000000ff00000000000000ff00000000000000ff;
        x = (x | (x >> 56)) & 0x0000000000000000000000000000ffff0000000000000000000000000000ffff;
        return (x | (x >> 112)) & 0xffffffff;
    }

    /// @dev Bit i becomes bit 8i.
    function _spread(uint256 x) private pure returns (uint256) {
        x = (x | (x << 112)) & 0x0000000000000000000000000000ffff0000000000000000000000000000ffff;
        x = (x | (x << 56)) & 0x00000000000000ff00000000000000ff00000000000000ff00000000000000ff;
        x = (x | (x << 28)) & 0x0000000f0000000f0000000f0000000f0000000f0000000f0000000f0000000f;
        x = (x | (x << 14)) & 0x0003000300030003000300030003000300030003000300030003000300030003;
        return (x | (x << 7)) & LOW;
    }
}
