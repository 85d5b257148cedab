// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @notice The weight of those who had a slot of a stage and have none now, each as it was then and faded since, in
/// 2^-32, so that it does not matter how often it changes. One word.
struct Absent {
    uint64 forSeals; // fades with the stage's non-empty seals, and with time
    uint64 forVerdicts; // fades with seals alone: whose stage stands still while they are away lose nothing
    uint40 since; // both as of then,
    uint24 seals; // when its stage had so many non-empty seals
}

/// @title Weight is recent counted work
/// @notice Each holder of a stage's slot has a lane of 32 bits, eight lanes to a word: weight (16, the lowest bits), pay (12)
/// and age (4), the non-empty seals since the one that counted it last (15: that many, or never).
/// @dev Each non-empty seal adds FULL >> shift to the lanes that it counts, and takes a part of 2^-shift from all. So a
/// stage's weight grows towards FULL, and says what was counted in about the last 2^shift seals. What is taken is rounded
/// down after `jitter` was added, another number for each seal: rounded always alike, small weights would never fade, or
/// never grow.
library Weights {
    uint256 internal constant FULL = 1 << 16;
    uint256 internal constant ENOUGH = FULL / 2; // what is missing of it in a stage is its founders'
    uint256 internal constant SEAL_PAY = 255; // that a seal adds in all
    uint256 internal constant EPOCH_ROUNDS = 16; // whose pay is added up; 16 x 255 fit into 12 bits
    uint256 internal constant NEVER = 15; // an age
    uint256 internal constant LANES = 8; // of a word
    uint256 internal constant ABSENT_TIMEOUTS = 64; // in which the weight of the absent halves where seals are judged
    uint256 internal constant LATE_TIMEOUTS = 2; // likewise that of those who are silent in a late round
    uint256 internal constant FRACTION = 32; // bits of the pool of the absent

    uint256 private constant LOW = 0x0000000100000001000000010000000100000001000000010000000100000001;
    uint256 private constant WEIGHTS = LOW * 0xffff;
    uint256 private constant PAYS = LOW * 0x0fff0000;
    uint256 private constant ONE = 1 << 64;
    uint256 private constant LN2 = 12786308645202655659; // x 2^-64

    // ------------------------------------------------------------------------------------------------- a lane

    function lane(uint256 word, uint256 index) internal pure returns (uint256) {
        return (word >> (32 * (index % LANES))) & 0xffffffff;
    }

    function withLane(uint256 word, uint256 index, uint256 value) internal pure returns (uint256) {
        uint256 shift = 32 * (index % LANES);
        return (word & ~(uint256(0xffffffff) << shift)) | (value << shift);
    }

    /// @notice The lane of an account that has just taken a slot.
    function fresh(uint256 weight) internal pure returns (uint256) {
        return weight | (NEVER << 28);
    }

    function weightOf(uint256 value) internal pure returns (uint256) {
        return value & 0xffff;
    }

    function payOf(uint256 value) internal pure returns (uint256) {
        return (value >> 16) & 0xfff;
    }

    function ageOf(uint256 value) internal pure returns (uint256) {
        return value >> 28;
    }

    // ------------------------------------------------------------------------------------------------- a word

    /// @notice The weights of these lanes of the word, a bit for each of its eight, added up.
    function sum(uint256 word, uint256 lanes) internal pure returns (uint256) {
        unchecked {
            uint256 x = (lanes | (lanes << 124)) & (0xf | (0xf << 128));
            x = (x | (x << 62)) & (3 | (3 << 64) | (3 << 128) | (3 << 192));
            x = (x | (x << 31)) & LOW;
            return ((word & (x * 0xffff)) * LOW) >> 224; // the highest lane of the product is the sum of all
        }
    }

    /// @notice All its weights added up.
    function sum(uint256 word) internal pure returns (uint256) {
        unchecked {
            return ((word & WEIGHTS) * LOW) >> 224;
        }
    }

    /// @notice What is added before a weight is divided in a stage's seal of this number, below 2^shift.
    function jitter(uint256 seals, uint256 shift) internal pure returns (uint256) {
        return (seals * 0x9E3779B1) & ((1 << shift) - 1);
    }

    /// @notice The word after one more non-empty seal that counted none of its lanes.
    function age(uint256 word, uint256 shift, uint256 added) internal pure returns (uint256) {
        unchecked {
            word -= (((word & WEIGHTS) + LOW * added) >> shift) & WEIGHTS;
            uint256 oldest = (((word >> 28) & (LOW * 0xf)) + LOW) >> 4 & LOW;
            return word + ((LOW - oldest) << 28);
        }
    }

    /// @notice What a seal adds to the weights (`unit`) and pays (SEAL_PAY) of those who made the first `first` of its
    /// steps, as it is added to a lane; `offset` rounds.
    function part(uint256 unit, uint256 first, uint256 offset, uint256 steps) internal pure returns (uint256 earned) {
        assembly ("memory-safe") {
            earned := div(add(mul(unit, first), offset), steps)
            earned := or(earned, shl(16, div(add(mul(SEAL_PAY, first), offset), steps)))
        }
    }

    /// @notice A seal has counted one of the words' lanes, and gives it so much.
    // slither-disable-next-line incorrect-shift: the lane's mask is moved, not the number of its bits
    function credit(uint256[8] memory words, uint256 index, uint256 earned) internal pure {
        assembly ("memory-safe") {
            let word := add(words, shl(5, shr(3, index)))
            let shift := shl(5, and(index, 7))
            let value := and(shr(shift, mload(word)), 0x0fffffff)
            let weight := add(and(value, 0xffff), and(earned, 0xffff))
            if gt(weight, 0xffff) { weight := 0xffff } // of a member that is alone
            value := or(weight, add(and(value, 0x0fff0000), and(earned, 0x0fff0000)))
            mstore(word, or(and(mload(word), not(shl(shift, 0xffffffff))), shl(shift, value)))
        }
    }

    // ------------------------------------------------------------------------------------------- a byte a replica

    function put(uint256[2] memory bytes_, uint256 replica, uint256 value) internal pure {
        assembly ("memory-safe") {
            mstore8(add(bytes_, replica), value)
        }
    }

    function byteOf(uint256[2] memory bytes_, uint256 replica) internal pure returns (uint256 value) {
        assembly ("memory-safe") {
            value := byte(0, mload(add(bytes_, replica)))
        }
    }

    // ---------------------------------------------------------------------------------------------------- pay

    /// @notice The pay of its lanes, each where it is in the lane, and the word without it.
    function takePay(uint256 word) internal pure returns (uint256 pays, uint256 rest) {
        return (word & PAYS, word & ~PAYS);
    }

    // ------------------------------------------------------------------------------------------------- time

    /// @notice What is left of x after so many seconds, where half of it goes in `half`. However often somebody looks.
    function faded(uint256 x, uint256 time, uint256 half) internal pure returns (uint256) {
        unchecked {
            uint256 rate = LN2 / half; // of a second
            return (x * _power(ONE - rate + ((rate * rate) >> 65), time)) >> 64;
        }
    }

    /// @notice What is left of the weight of an account without a lane after so many non-empty seals: what would be in it.
    function aged(uint256 x, uint256 seals, uint256 shift) internal pure returns (uint256) {
        unchecked {
            return (x * _power(ONE - (ONE >> shift), seals)) >> 64;
        }
    }

    /// @notice The pool as it is now, after so many non-empty seals of its stage.
    function current(Absent memory a, uint256 timeout, uint256 shift, uint256 seals) internal view returns (Absent memory) {
        uint256 left = aged(a.forSeals, seals - a.seals, shift);
        return Absent(
            uint64(faded(left, block.timestamp - a.since, ABSENT_TIMEOUTS * timeout)),
            uint64(aged(a.forVerdicts, seals - a.seals, shift)),
            uint40(block.timestamp),
            uint24(seals)
        );
    }

    /// @dev Of a number below 1, in 2^-64; each product is rounded down.
    function _power(uint256 base, uint256 exponent) private pure returns (uint256 result) {
        unchecked {
            result = ONE;
            for (; exponent != 0 && result != 0; exponent >>= 1) {
                if (exponent & 1 != 0) result = (result * base) >> 64;
                base = (base * base) >> 64;
            }
        }
    }
}
