// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Opening, Openings} from "./Openings.sol";
import {SoftFloat} from "./SoftFloat.sol";

/// @notice How payloads are coded. `level` and `rank` are those of every plan of the run: of these codecs neither moves.
struct Coding {
    uint8 codec; // 1 int4, 2 ternary, 3 topk
    uint8 level; // bits of a value
    uint16 rank; // topk: values kept of 4,096
}

/// @notice A payload, of which only size and Merkle root are known, and where in it a tensor's part begins.
struct Part {
    bytes32 root;
    uint256 size;
    uint256 start;
    uint256 count; // of the tensor's values
}

/// @title One value of a payload, from openings of it
/// @notice As docs/protocol/files.md says, with every check that the bytes shown allow. What no codec makes has no value:
/// then `sound` is false.
library Payloads {
    uint8 internal constant INT4 = 1;
    uint8 internal constant TERNARY = 2;
    uint8 internal constant TOPK = 3;
    uint256 private constant INFINITE = 0x7c00; // as binary16; NaN and negative numbers have higher bits
    uint256 private constant CHUNK = 4096; // values of topk

    error UnknownCodec(uint8 codec);

    /// @notice The bytes of the part of a tensor of so many values.
    function sizeOf(Coding calldata coding, uint256 count) internal pure returns (uint256) {
        if (coding.codec == INT4) return _ceil(count, 128) * (2 + 16 * uint256(coding.level));
        if (coding.codec == TERNARY) return 2 * _ceil(count, 640) + _ceil(count, 5);
        if (coding.codec == TOPK) return _layout(count, coding.rank).size;
        revert UnknownCodec(coding.codec);
    }

    /// @notice The value of number `index` of the tensor, as float32 bits.
    function valueOf(Coding calldata coding, Part memory part, uint256 index, Opening[] calldata openings)
        internal
        view
        returns (uint256 value, bool sound)
    {
        if (coding.codec == INT4) return _int4(coding.level, part, index, openings);
        if (coding.codec == TERNARY) return _ternary(part, index, openings);
        return _topk(coding.rank, part, index, openings);
    }

    function _int4(uint256 level, Part memory part, uint256 index, Opening[] calldata openings)
        private
        view
        returns (uint256 value, bool sound)
    {
        (uint256 scale, uint256 next) = _number(part, 2 * (index / 128), 2, openings, 0);
        uint256 bit = index * level;
        (uint256 code,) = _number(part, 2 * _ceil(part.count, 128) + bit / 8, 1, openings, next);
        code = (code >> (bit % 8)) & ((1 << level) - 1);
        uint256 lowest = 1 << (level - 1);
        if (scale >= INFINITE || code == lowest || (scale == 0 && code != 0)) return (0, false);
        bool negative = code > lowest;
        return (SoftFloat.mul(SoftFloat.whole(negative ? (1 << level) - code : code, negative), SoftFloat.half(scale)), true);
    }

    function _ternary(Part memory part, uint256 index, Opening[] calldata openings)
        private
        view
        returns (uint256 value, bool sound)
    {
        (uint256 scale, uint256 next) = _number(part, 2 * (index / 640), 2, openings, 0);
        (uint256 digits,) = _number(part, 2 * _ceil(part.count, 640) + index / 5, 1, openings, next);
        uint256 digit = (digits / 3 ** (index % 5)) % 3;
        if (scale >= INFINITE || digits > 242 || (scale == 0 && digit != 0)) return (0, false);
        if (digit == 0) return (0, true);
        return (SoftFloat.half(scale) | (digit == 2 ? 0x80000000 : 0), true);
    }

    // ---------------------------------------------------------------------------------------------------------- topk

    /// @dev Where what is in a part, from its first byte on: magnitudes, marks of the chunks, low bits of the places, codes.
    struct Layout {
        uint256 lowBits; // of a place
        uint256 marks;
        uint256 marksOfChunk; // bytes, of a full one
        uint256 lows;
        uint256 codes;
        uint256 size;
    }

    /// @dev Of one chunk: its number, how many values are kept before it and in it, and its length.
    struct Chunk {
        uint256 number;
        uint256 before;
        uint256 kept;
        uint256 length;
    }

    function _layout(uint256 count, uint256 rank) private pure returns (Layout memory l) {
        (uint256 full, uint256 rest, uint256 kept) = (count / CHUNK, count % CHUNK, _ceil(count * rank, CHUNK));
        while (2 * rank << l.lowBits <= CHUNK) ++l.lowBits;
        l.marks = 4 * _ceil(count, CHUNK);
        l.marksOfChunk = _marks(rank, CHUNK, l.lowBits);
        l.lows = l.marks + full * l.marksOfChunk;
        if (rest != 0) l.lows += _marks(kept - full * rank, rest, l.lowBits);
        l.codes = l.lows + _ceil(kept * l.lowBits, 8);
        l.size = l.codes + _ceil(2 * kept, 8);
    }

    function _marks(uint256 kept, uint256 length, uint256 lowBits) private pure returns (uint256) {
        return _ceil(kept + ((length - 1) >> lowBits), 8);
    }

    function _topk(uint256 rank, Part memory part, uint256 index, Opening[] calldata openings)
        private
        view
        returns (uint256 value, bool sound)
    {
        Layout memory l = _layout(part.count, rank);
        Chunk memory c = Chunk(index / CHUNK, index / CHUNK * rank, rank, CHUNK);
        if (part.count - c.number * CHUNK < CHUNK) {
            c.length = part.count - c.number * CHUNK;
            c.kept = _ceil(part.count * rank, CHUNK) - c.before;
        }
        uint256 next;
        uint256 first;
        uint256 end;
        (first, end, next, sound) = _candidates(l, c, part, (index % CHUNK) >> l.lowBits, openings);
        if (!sound || first == end) return (0, sound);
        uint256 found;
        (found, next, sound) = _search(l, c, part, index % CHUNK, first, end, openings, next);
        if (!sound || found == end) return (0, sound);
        return _chosen(l, c, part, index % CHUNK, found, openings, next);
    }

    /// @dev The kept values of the chunk, from `first` to before `end`, whose places have these high bits: in the row of
    /// marks they are what stands between that many and one more bits that are not set.
    function _candidates(Layout memory l, Chunk memory c, Part memory part, uint256 high, Opening[] calldata openings)
        private
        view
        returns (uint256 first, uint256 end, uint256 next, bool sound)
    {
        uint256 size = _marks(c.kept, c.length, l.lowBits);
        bytes memory marks;
        (marks, next) = _bytes(part, l.marks + c.number * l.marksOfChunk, size, openings, 0);
        uint256 ones;
        uint256 zeros;
        unchecked {
            for (uint256 i = 0; i < size; ++i) {
                uint256 byte_ = uint8(marks[i]);
                for (uint256 bit = 0; bit < 8; ++bit) {
                    if ((byte_ >> bit) & 1 == 0) {
                        ++zeros;
                    } else {
                        if (zeros < high) ++first;
                        if (zeros <= high) ++end;
                        ++ones;
                    }
                }
            }
        }
        sound = ones == c.kept;
    }

    /// @dev Which of the candidates has this place; `end` if none has.
    function _search(
        Layout memory l,
        Chunk memory c,
        Part memory part,
        uint256 place,
        uint256 first,
        uint256 end,
        Opening[] calldata openings,
        uint256 next
    ) private view returns (uint256 found, uint256 after_, bool sound) {
        uint256 bit = (c.before + first) * l.lowBits;
        bytes memory lows;
        (lows, after_) = _bytes(
            part, l.lows + bit / 8, _ceil((c.before + end) * l.lowBits, 8) - bit / 8, openings, next
        );
        bit %= 8;
        uint256 mask = (1 << l.lowBits) - 1;
        uint256 before; // the low bits of the one before, and 1
        found = end;
        for (uint256 i = first; i < end; ++i) {
            uint256 pair = uint256(uint8(lows[bit / 8])); // the low bits are at most 7, so in at most two bytes
            if (bit / 8 + 1 < lows.length) pair |= uint256(uint8(lows[bit / 8 + 1])) << 8;
            uint256 low = (pair >> (bit % 8)) & mask;
            if (low < before) return (0, after_, false);
            if (low == place & mask) found = i;
            (before, bit) = (low + 1, bit + l.lowBits);
        }
        sound = ((place >> l.lowBits) << l.lowBits) + before <= c.length;
    }

    function _chosen(
        Layout memory l,
        Chunk memory c,
        Part memory part,
        uint256 place,
        uint256 found,
        Opening[] calldata openings,
        uint256 next
    ) private view returns (uint256 value, bool sound) {
        uint256 code;
        uint256 magnitudes;
        (code, next) = _number(part, l.codes + (c.before + found) / 4, 1, openings, next);
        (magnitudes,) = _number(part, 4 * c.number, 4, openings, next);
        code = (code >> (2 * ((c.before + found) % 4))) & 3;
        (uint256 low, uint256 high) = (magnitudes & 0xffff, magnitudes >> 16);
        if (high >= INFINITE || (high == 0 ? low != 0 : low >= high)) return (0, false);
        uint256 magnitude = code & 1 == 1 ? high : low;
        if (magnitude == 0) return (0, code == 0 && place == found);
        return (SoftFloat.half(magnitude) | (code & 2 == 2 ? 0x80000000 : 0), true);
    }

    // ---------------------------------------------------------------------------------------------------------------

    /// @dev Bytes of the part, from its byte `offset` on.
    function _bytes(Part memory part, uint256 offset, uint256 length, Opening[] calldata openings, uint256 next)
        private
        view
        returns (bytes memory data, uint256 after_)
    {
        uint256 start = part.start + offset;
        return Openings.read(part.root, part.size, start, start + length, openings, next);
    }

    /// @dev A little-endian number of the part.
    function _number(Part memory part, uint256 offset, uint256 length, Opening[] calldata openings, uint256 next)
        private
        view
        returns (uint256 number, uint256 after_)
    {
        bytes memory data;
        (data, after_) = _bytes(part, offset, length, openings, next);
        for (uint256 i = length; i > 0; --i) number = (number << 8) | uint8(data[i - 1]);
    }

    function _ceil(uint256 a, uint256 b) private pure returns (uint256) {
        return (a + b - 1) / b;
    }
}
