// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {IBonds, IInvitations} from "../src/ILedger.sol";

/// @dev Admits to a ledger's run whom a test says.
contract InvitationsDouble is IInvitations {
    mapping(address ledger => mapping(bytes32 run => mapping(address account => bool))) internal admitted;

    function set(address ledger, bytes32 run, address account, bool may) external {
        admitted[ledger][run][account] = may;
    }

    function admits(bytes32 run, address account) external view returns (bool) {
        return admitted[msg.sender][run][account];
    }
}

/// @dev Remembers what a ledger locked, for whom, and refuses what an account has not deposited.
contract BondsDouble is IBonds {
    error Short(address account, uint256 amount);
    error LockedTwice(address account);
    error NotLocked(address account);

    mapping(address ledger => mapping(bytes32 run => mapping(address account => uint256))) public deposited;
    mapping(address ledger => mapping(bytes32 run => mapping(address account => uint256))) public locked;

    function deposit(address ledger, bytes32 run, address account, uint256 amount) external {
        deposited[ledger][run][account] += amount;
    }

    function lock(bytes32 run, address account, uint256 amount) external {
        if (deposited[msg.sender][run][account] < amount) revert Short(account, amount);
        if (locked[msg.sender][run][account] != 0) revert LockedTwice(account);
        locked[msg.sender][run][account] = amount;
    }

    function release(bytes32 run, address account) external {
        if (locked[msg.sender][run][account] == 0) revert NotLocked(account);
        locked[msg.sender][run][account] = 0;
    }
}
