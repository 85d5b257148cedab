// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {ERC20} from "@openzeppelin/contracts/token/ERC20/ERC20.sol";

/// @dev A token whose transfers call back, keep a part, or do not happen.
contract Token is ERC20("Token", "TKN") {
    uint256 public fee; // percent
    bool public lies;
    address private _caller;
    bytes private _call;

    function mint(address to, uint256 amount) external {
        _mint(to, amount);
    }

    function setFee(uint256 percent) external {
        fee = percent;
    }

    function lie() external {
        lies = true;
    }

    /// @dev Of an account's balance, as a rebase does.
    function shrink(address account, uint256 amount) external {
        _burn(account, amount);
    }

    /// @dev What each transfer calls from now on.
    function hook(address target, bytes calldata call) external {
        (_caller, _call) = (target, call);
    }

    function _update(address from, address to, uint256 amount) internal override {
        if (_call.length != 0 && from != address(0)) {
            (bool ok, bytes memory said) = _caller.call(_call);
            if (!ok) assembly ("memory-safe") { revert(add(said, 32), mload(said)) }
        }
        if (lies && from != address(0)) return;
        uint256 kept = from == address(0) ? 0 : amount * fee / 100;
        if (kept != 0) super._update(from, address(0xfee), kept);
        super._update(from, to, amount - kept);
    }
}
