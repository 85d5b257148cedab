// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @title IEEE 754 binary32 in integers: round to nearest, ties to even, subnormals kept
/// @notice What the outer step uses, bit for bit what every machine's float32 gives. Numbers are their 32 bits. Every
/// NaN comes out as NAN. A finite number is sign, sig and e: its size is sig * 2^(e - BIAS).
library SoftFloat {
    uint256 internal constant NAN = 0x7fc00000;
    uint256 private constant SIGN = 0x80000000;
    uint256 private constant INFINITE = 0x7f800000;
    uint256 private constant BIAS = 600; // exponents stay positive
    uint256 private constant LOWEST = BIAS - 149; // of the last bit of a subnormal number
    uint256 private constant NORMAL = BIAS - 126; // of the first bit of the smallest normal number

    function mul(uint256 a, uint256 b) internal pure returns (uint256) {
        unchecked {
            uint256 sign = (a ^ b) & SIGN;
            (uint256 x, uint256 y) = (a & ~SIGN, b & ~SIGN);
            if (x >= INFINITE || y >= INFINITE) {
                return x > INFINITE || y > INFINITE || x == 0 || y == 0 ? NAN : sign | INFINITE;
            }
            (uint256 p, uint256 e) = _parts(x);
            (uint256 q, uint256 f) = _parts(y);
            return _pack(sign, p * q, e + f - BIAS);
        }
    }

    function add(uint256 a, uint256 b) internal pure returns (uint256) {
        unchecked {
            (uint256 x, uint256 y) = (a & ~SIGN, b & ~SIGN);
            if (x < y) (a, b, x, y) = (b, a, y, x);
            bool opposed = (a ^ b) & SIGN != 0;
            if (x >= INFINITE) return x > INFINITE || (y == INFINITE && opposed) ? NAN : a;
            if (y == 0) return x == 0 ? a & b : a; // only two of -0 make -0
            (uint256 p, uint256 e) = _parts(x);
            (uint256 q, uint256 f) = _parts(y);
            uint256 shift = e - f;
            if (shift > 60) (q, shift) = (1, 60); // too small to count, but it breaks a tie
            p <<= shift;
            if (opposed && p == q) return 0;
            return _pack(a & SIGN, opposed ? p - q : p + q, e - shift);
        }
    }

    function sub(uint256 a, uint256 b) internal pure returns (uint256) {
        return add(a, b ^ SIGN);
    }

    /// @notice A binary16 number that is finite and not negative: exact.
    function half(uint256 h) internal pure returns (uint256) {
        unchecked {
            uint256 x = h >> 10;
            return x == 0 ? _pack(0, h, BIAS - 24) : _pack(0, (h & 0x3ff) | 0x400, x + BIAS - 25);
        }
    }

    /// @notice A whole number below 2^24 with its sign: exact.
    function whole(uint256 size, bool negative) internal pure returns (uint256) {
        return _pack(negative ? SIGN : 0, size, BIAS);
    }

    /// @notice n / d rounded to binary64, then to binary32, as a language with floats of 64 bits does it. n and d below
    /// 2^128, d not zero.
    function ratio(uint256 n, uint256 d) internal pure returns (uint256) {
        unchecked {
            if (n == 0) return 0;
            uint256 scale = 255 - _log2(n);
            n <<= scale;
            uint256 q = n / d; // of more than 53 bits
            uint256 shift = _log2(q) - 52;
            uint256 middle = 1 << shift; // twice the value of half a bit; the lowest bit of `rest` is what q leaves
            uint256 rest = ((q & (middle - 1)) << 1) | (n % d == 0 ? 0 : 1);
            q >>= shift;
            if (rest > middle || (rest == middle && q & 1 == 1)) ++q;
            return _pack(0, q, BIAS + shift - scale);
        }
    }

    function _parts(uint256 size) private pure returns (uint256 sig, uint256 e) {
        unchecked {
            e = size >> 23;
            sig = size & 0x7fffff;
            return e == 0 ? (sig, LOWEST) : (sig | 0x800000, e + LOWEST - 1);
        }
    }

    function _pack(uint256 sign, uint256 sig, uint256 e) private pure returns (uint256) {
        unchecked {
            if (sig == 0) return sign;
            uint256 top = _log2(sig) + e;
            uint256 low = top < NORMAL ? LOWEST : top - 23; // of the last bit that is kept
            if (low <= e) {
                sig <<= e - low;
            } else {
                uint256 shift = low - e;
                if (shift > 250) return sign;
                uint256 rest = sig & ((1 << shift) - 1);
                uint256 middle = 1 << (shift - 1);
                sig >>= shift;
                if (rest > middle || (rest == middle && sig & 1 == 1)) ++sig;
            }
            uint256 bits = top < NORMAL ? sig : ((top - NORMAL) << 23) + sig; // a carry makes the exponent greater
            return sign | (bits >= INFINITE ? INFINITE : bits);
        }
    }

    /// @dev Of the highest bit of x, which is not zero.
    function _log2(uint256 x) private pure returns (uint256 r) {
        assembly ("memory-safe") {
            r := shl(7, lt(0xffffffffffffffffffffffffffffffff, x))
            r := or(r, shl(6, lt(0xffffffffffffffff, shr(r, x))))
            r := or(r, shl(5, lt(0xffffffff, shr(r, x))))
            r := or(r, shl(4, lt(0xffff, shr(r, x))))
            r := or(r, shl(3, lt(0xff, shr(r, x))))
            r := or(r, shl(2, lt(0xf, shr(r, x))))
            r := or(r, byte(shr(r, x), 0x0000010102020202030303030303030300000000000000000000000000000000))
        }
    }
}
