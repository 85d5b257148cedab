// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Counts} from "../src/Counts.sol";
import {vm} from "./Vm.sol";

/// @dev The arithmetic on whole words beside loops that anyone can read: each byte and each bit at every place, and
/// words that nobody chose.
contract CountsTest {
    function test_everyByteAtEveryPlace() public pure {
        for (uint256 value = 0; value < 256; ++value) {
            for (uint256 seat = 0; seat < 32; ++seat) {
                uint256 alone = Counts.set(0, seat, value);
                uint256 among = Counts.set(type(uint256).max, seat, value);
                vm.assertEq(alone, value << (8 * seat));
                vm.assertEq(Counts.get(among, seat), value);
                // All neighbours empty, all neighbours full: nothing is carried into or out of a byte.
                uint256 others = type(uint32).max ^ (1 << seat);
                vm.assertEq(Counts.once(alone), value == 0 ? 0 : 1 << seat);
                vm.assertEq(Counts.once(among) ^ others, value == 0 ? 0 : 1 << seat);
                vm.assertEq(Counts.twice(alone), bits(value) < 2 ? 0 : 1 << seat);
                vm.assertEq(Counts.twice(among) ^ others, bits(value) < 2 ? 0 : 1 << seat);
            }
        }
    }

    function test_everyByteHasItsAge() public pure {
        for (uint256 value = 0; value < 256; ++value) {
            uint256 newest = 8;
            for (uint256 bit = 0; bit < 8; ++bit) {
                if (newest == 8 && (value >> bit) & 1 == 1) newest = bit;
            }
            vm.assertEq(Counts.age(value), newest);
        }
    }

    function test_everySeatIsCountedInItsPlace() public pure {
        for (uint256 seat = 0; seat < 32; ++seat) {
            vm.assertEq(Counts.push(0, 1 << seat), 1 << (8 * seat));
        }
    }

    function test_everyLowestBit() public pure {
        for (uint256 bit = 0; bit < 64; ++bit) {
            vm.assertEq(Counts.lowest(1 << bit), bit);
            vm.assertEq(Counts.lowest(uint256(type(uint64).max >> bit) << bit), bit);
            vm.assertEq(Counts.size((1 << bit) - 1), bit);
        }
        vm.assertEq(Counts.size(type(uint64).max), 64);
        vm.assertEq(Counts.size(0), 0);
    }

    function testFuzz_onceAndTwice(uint256 word) public pure {
        uint256 once;
        uint256 twice;
        for (uint256 seat = 0; seat < 32; ++seat) {
            uint256 n = bits(Counts.get(word, seat));
            if (n >= 1) once |= 1 << seat;
            if (n >= 2) twice |= 1 << seat;
        }
        vm.assertEq(Counts.once(word), once);
        vm.assertEq(Counts.twice(word), twice);
    }

    function testFuzz_push(uint256 word, uint32 counted) public pure {
        uint256 pushed = Counts.push(word, counted);
        for (uint256 seat = 0; seat < 32; ++seat) {
            uint256 expected = (Counts.get(word, seat) * 2) % 256 + (counted >> seat) % 2;
            vm.assertEq(Counts.get(pushed, seat), expected);
        }
    }

    /// @dev Eight seals fill a byte, the newest in its lowest bit; a ninth forgets the first.
    function testFuzz_nineSeals(uint32[9] memory counted) public pure {
        uint256 word;
        for (uint256 i = 0; i < 9; ++i) word = Counts.push(word, counted[i]);
        for (uint256 seat = 0; seat < 32; ++seat) {
            for (uint256 ago = 0; ago < 8; ++ago) {
                vm.assertEq((Counts.get(word, seat) >> ago) & 1, (counted[8 - ago] >> seat) & 1);
            }
        }
    }

    function testFuzz_getAndSet(uint256 word, uint8 seat, uint8 value) public pure {
        uint256 changed = Counts.set(word, seat, value);
        for (uint256 other = 0; other < 32; ++other) {
            uint256 expected = other == seat % 32 ? value : Counts.get(word, other);
            vm.assertEq((changed >> (8 * other)) & 0xff, expected);
        }
        vm.assertEq(Counts.get(changed, seat), value);
    }

    function testFuzz_sizeAndLowest(uint64 bitmap) public pure {
        vm.assertEq(Counts.size(bitmap), bits(bitmap));
        vm.assume(bitmap != 0);
        uint256 lowest;
        while ((bitmap >> lowest) & 1 == 0) ++lowest;
        vm.assertEq(Counts.lowest(bitmap), lowest);
    }

    function bits(uint256 x) private pure returns (uint256 n) {
        for (; x != 0; x >>= 1) n += x & 1;
    }
}
