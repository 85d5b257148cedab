// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Bitmaps} from "../src/Bitmaps.sol";
import {Absent, Weights} from "../src/Weights.sol";
import {vm} from "./Vm.sol";

/// @dev The arithmetic on whole words beside loops that anyone can read, with words that nobody chose.
contract WeightsTest {
    using Weights for uint256;

    function testFuzz_lanes(uint256 word, uint8 index, uint32 value) public pure {
        index %= 8;
        uint256 changed = word.withLane(index, value);
        for (uint256 other = 0; other < 8; ++other) {
            uint256 expected = other == index ? value : (word >> (32 * other)) & 0xffffffff;
            vm.assertEq(changed.lane(other), expected);
            vm.assertEq(changed.lane(other + 16), expected); // the third word's
        }
        vm.assertEq(uint256(value).weightOf(), value % (1 << 16));
        vm.assertEq(uint256(value).payOf(), (value >> 16) % (1 << 12));
        vm.assertEq(uint256(value).ageOf(), value >> 28);
    }

    function testFuzz_aFreshLaneWasNeverCounted(uint16 weight) public pure {
        uint256 lane = Weights.fresh(weight);
        vm.assertEq(lane.weightOf(), weight);
        vm.assertEq(lane.payOf(), 0);
        vm.assertEq(lane.ageOf(), 15);
    }

    function testFuzz_sums(uint256 word, uint8 lanes) public pure {
        uint256 some;
        uint256 all;
        for (uint256 i = 0; i < 8; ++i) {
            uint256 weight = word.lane(i).weightOf();
            all += weight;
            if ((lanes >> i) & 1 == 1) some += weight;
        }
        vm.assertEq(word.sum(lanes), some);
        vm.assertEq(word.sum(), all);
    }

    function testFuzz_age(uint256 word, uint8 shift, uint16 jitter) public pure {
        shift = 3 + shift % 8;
        uint256 added = jitter % (1 << shift);
        uint256 older = word.age(shift, added);
        for (uint256 i = 0; i < 8; ++i) {
            (uint256 was, uint256 is_) = (word.lane(i), older.lane(i));
            uint256 weight = was.weightOf();
            vm.assertEq(is_.weightOf(), weight - (weight + added) / (1 << shift), "weight");
            vm.assertEq(is_.payOf(), was.payOf(), "pay");
            vm.assertEq(is_.ageOf(), was.ageOf() == 15 ? 15 : was.ageOf() + 1, "age");
        }
    }

    /// @dev What a seal adds is the whole unit, in the order of the records, whoever they are.
    function testFuzz_parts(uint24[8] memory steps, uint8 shift, uint8 seals) public pure {
        uint256 unit = Weights.FULL >> (3 + shift % 8);
        uint256 total;
        for (uint256 i = 0; i < 8; ++i) total += steps[i] = 1 + steps[i] % 100_000;
        uint256 offset = total * (seals % 16) / 16;
        uint256 sum;
        uint256 before;
        uint256[8] memory words;
        for (uint256 i = 0; i < 8; ++i) {
            uint256 next = sum + steps[i];
            uint256 earned = Weights.part(unit, next, offset, total);
            Weights.credit(words, 8 * i + i, earned - before);
            uint256 lane = words[i].lane(i);
            vm.assertEq(lane.weightOf(), (unit * next + offset) / total - (unit * sum + offset) / total, "weight");
            vm.assertEq(lane.payOf(), (255 * next + offset) / total - (255 * sum + offset) / total, "pay");
            (sum, before) = (next, earned);
        }
        vm.assertEq(before, unit | (255 << 16));
    }

    /// @dev A lane that was counted is of age 0, and nothing runs into its neighbours.
    function testFuzz_credit(uint256 word, uint8 index, uint16 weight, uint8 pay) public pure {
        index %= 64;
        uint256 was = word.lane(index);
        vm.assume(was.payOf() + pay < 1 << 12);
        uint256[8] memory words;
        words[index / 8] = word;
        Weights.credit(words, index, weight | (uint256(pay) << 16));
        for (uint256 i = 0; i < 64; ++i) {
            if (i / 8 != index / 8) vm.assertEq(words[i / 8], 0);
            else if (i != index) vm.assertEq(words[i / 8].lane(i), word.lane(i));
        }
        uint256 is_ = words[index / 8].lane(index);
        uint256 sum = was.weightOf() + weight;
        vm.assertEq(is_.weightOf(), sum < 1 << 16 ? sum : (1 << 16) - 1); // of a member that is alone
        vm.assertEq(is_.payOf(), was.payOf() + pay);
        vm.assertEq(is_.ageOf(), 0);
    }

    function testFuzz_takePay(uint256 word) public pure {
        (uint256 pays, uint256 rest) = word.takePay();
        vm.assertEq(pays | rest, word);
        for (uint256 i = 0; i < 8; ++i) {
            vm.assertEq(pays.lane(i), word.lane(i).payOf() << 16);
            vm.assertEq(rest.lane(i).payOf(), 0);
        }
    }

    function testFuzz_bytes(uint8[64] memory values) public pure {
        uint256[2] memory bytes_;
        for (uint256 i = 0; i < 64; ++i) Weights.put(bytes_, 63 - i, values[63 - i]);
        for (uint256 i = 0; i < 64; ++i) vm.assertEq(Weights.byteOf(bytes_, i), values[i]);
    }

    // ---------------------------------------------------------------------------------------------------- time

    function testFuzz_halfIsLeftAfterHalfATime(uint16 x, uint32 timeout, uint8 halvings) public pure {
        uint256 half = 4 * (1 + uint256(timeout) % 30 days);
        halvings %= 20;
        uint256 left = uint256(x).faded(halvings * half, half);
        uint256 exact = (uint256(x) << 32) >> halvings;
        vm.assertTrue((left << 32) <= exact + exact / 128 && ((left + 1) << 32) >= exact - exact / 128);
    }

    /// @dev However often somebody looks, but for the rounding.
    function testFuzz_fadingIsTheSameInParts(uint16 x, uint32 a, uint32 b, uint32 timeout) public pure {
        uint256 half = 32 * (1 + uint256(timeout) % 1 days);
        uint256 once = uint256(x).faded(uint256(a) + b, half);
        uint256 twice = uint256(x).faded(a, half).faded(b, half);
        vm.assertTrue(twice <= once + 1 && once <= twice + 2);
        vm.assertTrue(once <= uint256(x).faded(a, half) && uint256(x).faded(a, half) <= x);
    }

    function test_nothingIsLeftInTheEnd() public pure {
        vm.assertEq(uint256(65_535).faded(0, 4), 65_535);
        vm.assertEq(uint256(65_535).faded(20 * 4, 4), 0);
        vm.assertEq(uint256(65_535).faded(type(uint40).max, 512 * 30 days), 0);
        vm.assertEq(uint256(65_535).faded(1, 512 * 30 days), 65_534);
    }

    /// @dev As in a lane that no seal counts, but for rounding.
    function testFuzz_aged(uint16 x, uint16 seals, uint8 shift, uint24 first) public pure {
        shift = 3 + shift % 8;
        uint256 word = x;
        seals %= 2048;
        for (uint256 k = 0; k < seals; ++k) word = word.age(shift, Weights.jitter(first + k, shift));
        uint256 left = uint256(x).aged(seals, shift);
        vm.assertTrue(word.weightOf() <= left + 8 && left <= word.weightOf() + 8);
        vm.assertEq(uint256(x).aged(0, shift), x);
    }

    /// @dev Over a horizon of seals each number below it is added once.
    function testFuzz_jitter(uint24 first, uint8 shift) public pure {
        shift = 3 + shift % 8;
        bool[] memory had = new bool[](1 << shift);
        for (uint256 k = 0; k < had.length; ++k) {
            uint256 added = Weights.jitter(first + k, shift);
            vm.assertFalse(had[added]);
            had[added] = true;
        }
    }

    // ------------------------------------------------------------------------------------------------- bitmaps

    function test_everyLowestBit() public pure {
        for (uint256 bit = 0; bit < 64; ++bit) {
            vm.assertEq(Bitmaps.lowest(1 << bit), bit);
            vm.assertEq(Bitmaps.lowest(uint256(type(uint64).max >> bit) << bit), bit);
            vm.assertEq(Bitmaps.size((1 << bit) - 1), bit);
        }
        vm.assertEq(Bitmaps.size(type(uint64).max), 64);
        vm.assertEq(Bitmaps.size(0), 0);
    }

    function testFuzz_sizeAndLowest(uint64 bitmap) public pure {
        uint256 bits;
        for (uint256 x = bitmap; x != 0; x >>= 1) bits += x & 1;
        vm.assertEq(Bitmaps.size(bitmap), bits);
        vm.assume(bitmap != 0);
        uint256 lowest;
        while ((bitmap >> lowest) & 1 == 0) ++lowest;
        vm.assertEq(Bitmaps.lowest(bitmap), lowest);
    }
}
