// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @title When a contract was created
/// @notice Whoever reads its events begins there, and needs no old state to find the place.
abstract contract Deployed {
    /// @dev Arbitrum's own blocks are not those of `block.number`, which are its parent chain's: this contract counts them.
    address private constant ARB_SYS = address(100);
    uint256 private constant ARB_SYS_GAS = 50_000; // other chains may have something there that takes all that it gets

    uint64 private immutable _block;
    uint64 private immutable _time;

    constructor() {
        (_block, _time) = (uint64(_number()), uint64(block.timestamp));
    }

    /// @notice The block of its creation, as the chain's nodes count, and that block's time: by both together a reader
    /// knows that the block is the right one.
    function deployedAt() external view returns (uint64 number, uint64 time) {
        return (_block, _time);
    }

    function _number() private view returns (uint256) {
        (bool done, bytes memory number) =
            ARB_SYS.staticcall{gas: ARB_SYS_GAS}(abi.encodeWithSignature("arbBlockNumber()"));
        return done && number.length == 32 ? abi.decode(number, (uint256)) : block.number;
    }
}
